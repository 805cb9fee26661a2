"""The anatomy of this machine's TLB, measured: sides, conflicts and walks."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from .. import _core
from ..cores.current import current
from ..machine import cpuid, cpus, facts, paging
from ..measuring.nodes import node_parameters
from ..measuring.point import UNTIMED_PASSES, Common
from ..measuring.slices import shortest_slice_ns
from ..memory.backing import BackingError
from ..memory.policies import find_policy, page_policies, round_up
from ..memory.region import Region, SparseRegion
from ..units import Floats, Ints, Size, format_size, parse_size
from . import inference
from .anatomy import NO_SIDE, Anatomy, Part
from .claims import claimed_levels, judged_claims
from .effective import effective_page_size
from .inference import Side, WalkStep

UNMEASURED = (MemoryError, BackingError, OSError, ValueError)  # what leaves a part without a measurement

# Time of each step, in seconds.
SIDE_SECONDS = 4.0  # for one side on one policy
HALF_SECONDS = 1.0  # for the instruction side once more, on half the pages
MAP_SECONDS = 1.0  # for the picture of conflicts
WALK_SECONDS = 6.0

# How many nodes it takes until every level has shown itself.
LEAST_NODES = 24576  # of a side on small translations: beyond every second level there is
TIMES_CLAIMED = 6  # as many nodes as that times the entries that the processor claims, if these are more
TIMES_REACH = 2  # of the claimed reach: what a side on huge translations needs
TIMES_WALKED = 3  # the entries of the last level: as many nodes walk
FEWEST_PAGES = 64
CODE_NODES = 12288  # of the instruction side
JUMP_FLOOR_NS = 0.06  # jumps are predicted and overlap: smaller steps than this have many reasons

# Slices: long enough for the clock where everything hits, and short and few where every access walks.
SLICE_ACCESSES = 1 << 14  # at least: tens of microseconds where everything hits
LONG_SLICE_NS = 2e6  # slices longer than this are fewer, and shorter
MANY_NODES = 8192  # of which every slice is long
FEW_SLICES = 3

# Pages at will, and those of the picture of conflicts.
FAR_BITS = 34  # of page numbers: half of what a process may address
FAR_ALIGNED = 1 << 30  # pages: an address whose low bits are the page number's own
FAR_TOUCHED = 1 << 17  # pages that may come to exist in address space so large
LINES_OF_PAGE = 64
MAP_STRIDES = tuple(1 << bits for bits in range(6, 14))  # pages
MAP_COUNTS = (*range(4, 18), 20, 24, 32)


# --- slices of this machine ------------------------------------------------------------------------------


class Hardware:
    """Slices of a kernel on memory of this machine: one mapping for all of them.

    Parameters
    ----------
    region, beside : Region
        For spread nodes, and for packed ones.
    far : Region, optional
        Address space for pages at will.
    unit : int
        Bytes from one node to the next: one translation.
    kernel : str
        Whose slices.
    floor_ns : float
        Smaller steps than this have many reasons.
    seed : int
        Of the orders of the nodes.
    """

    def __init__(
        self,
        region: Region,
        beside: Region,
        far: Region | None,
        *,
        unit: int,
        kernel: str = "chase",
        floor_ns: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.region, self.beside, self.far = region, beside, far
        self.unit, self.kernel, self.seed = unit, kernel, seed
        self.base, self.line = region.base_page, paging.cache_line_size()
        self.most_nodes = min(region.mapped_bytes // unit, beside.mapped_bytes // self.line)
        self.far_bits = FAR_BITS if far is not None else 0
        self.floor_ns, self.halves = floor_ns, True
        self.origin = -far.address % (FAR_ALIGNED * self.base) if far is not None else 0
        self.rounds = 0
        self._expected: dict[int, float] = {}  # nanoseconds of one access each, by nodes

    def nearest(self, nodes: int) -> int:
        """Any number of nodes will do."""
        return nodes

    def pair(self, nodes: int, spacing: float, slices: int) -> tuple[Floats, Floats]:
        """Slices of one round: nodes so many units apart, and as many lines side by side."""
        step, region, offset = round(spacing * self.unit), self.region, 0
        if spacing > 1:
            assert self.far is not None
            region, offset = self.far, self.origin
        part = (
            region,
            self.kernel,
            offset,
            round_up(nodes * step, self.base),
            self._nodes(nodes, step, "spread"),
        )
        return self._measure(part, nodes, slices)

    def places(self, pages: Ints, slices: int) -> tuple[Floats, Floats]:
        """Slices of one round: a line on each of some pages, and as many lines side by side."""
        assert self.far is not None
        number = np.arange(len(pages))
        lines = (number + number // LINES_OF_PAGE) % LINES_OF_PAGE
        offsets = self.origin + pages * self.base + lines * self.line
        np.frombuffer(memoryview(self.far), np.uint64, len(pages))[:] = offsets
        parameters = {"nodes": len(pages), "list": 0, "seed": self._next_seed()}
        return self._measure((self.far, "places", 0, self.far.mapped_bytes, parameters), len(pages), slices)

    def _nodes(self, nodes: int, step: int, placement: str) -> dict[str, int]:
        known = node_parameters(nodes, step, placement, self._next_seed())
        return {name: known[name] for name in _core.kernels()[self.kernel]}

    def _next_seed(self) -> int:
        self.rounds += 1
        return (self.seed + (self.rounds << 32)) % (1 << 64)

    def _measure(
        self, spread: tuple[Region, str, int, int, dict[str, int]], nodes: int, slices: int
    ) -> tuple[Floats, Floats]:
        size = round_up(nodes * self.line, self.base)
        packed = (self.beside, self.kernel, 0, size, self._nodes(nodes, self.base, "packed"))
        fewer = [n for n in self._expected if n <= nodes]
        known = self._expected[max(fewer)] if fewer else 0.0
        least = SLICE_ACCESSES
        if (
            known and current().shortest_ns < shortest_slice_ns()
        ):  # nothing interrupts: the clock alone decides
            least = min(least, round(shortest_slice_ns() / known))
        accesses = max(nodes, least)
        if nodes > MANY_NODES or known * accesses > LONG_SLICE_NS:
            # Each is warmed by a lap: where nothing disturbs, all are the same.
            accesses, slices = nodes, 1 if current().quiet else min(slices, FEW_SLICES)
        with current().session([spread, packed]) as session:
            for _ in range(UNTIMED_PASSES):
                session.pass_over()
            ns = session.measure((accesses, accesses), slices)["ns"] / accesses
        self._expected[nodes] = float(ns.min(axis=1).sum())
        return ns[0], ns[1]


# --- the anatomy -----------------------------------------------------------------------------------------


def anatomy(
    pages: str | Iterable[str] | None = None,
    *,
    memory: Size = "1GiB",
    strict: bool = True,
    seed: int = 0,
    cpu: int | None = None,
    max_seconds: float = 30.0,
) -> Anatomy:
    """Infer the translation hierarchy of this machine from the time of dependent loads.

    Parameters
    ----------
    pages : str or iterable of str, optional
        Page policies, see `page_policies`; base pages, and every transparent and hugetlb policy of PMD size
        or larger that this machine offers, by default.
    memory : int or str
        Bytes that may be touched on each policy, at most; to find out what the TLB holds of larger pages
        takes 8 MiB of base pages beside. With less than 96 MiB not every level can show itself.
    strict : bool
        Whether pages other than asked are a reason to conclude nothing.
    seed : int
        Of orders and cycles, 0 to 2**64 - 1.
    cpu : int, optional
        CPU to pin this thread to while measuring; the one it runs on by default.
    max_seconds : float
        Time for all of it.

    Returns
    -------
    Anatomy
        Levels with entries, ways, index and costs; the walk; what the processor claims beside it; and for
        everything that is not identifiable the reason.

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong, or if the cores of this machine differ and `cpu` names none.

    Notes
    -----
    Isolates: translation, by the difference of spread and packed nodes (see `translation`), and sets, by
    pages a power of two apart. Confounded by: whoever shares the TLB, such as the other thread of a core,
    which takes entries; processors that coalesce adjacent pages. Limits: a level that a smaller one hides;
    index functions that no power-of-two distance makes collide; random replacement, which blurs small steps.
    The model in `tlbprobe.model` says what a machine of given numbers would show.

    References
    ----------
    .. [1] R. H. Saavedra and A. J. Smith, Measuring cache and TLB performance and their effect on benchmark
       runtimes, IEEE Transactions on Computers 44 (1995).
    .. [2] B. Gras, K. Razavi, H. Bos and C. Giuffrida, Translation Leak-aside Buffer, USENIX Security 2018.

    Examples
    --------
    >>> found = anatomy("base", memory="4MiB", max_seconds=0.5)
    >>> len(found.sentences())
    3
    """
    names = _checked_policies(pages)
    room = parse_size(memory, "memory")
    least = FEWEST_PAGES * paging.base_page_size()
    if room < least:
        raise ValueError(f"memory={memory!r} is too small: at least {format_size(least)}")
    Common(strict, seed, cpu, max_seconds=max_seconds)
    host = facts.host()
    if host.get("cpu.hybrid") and cpu is None:
        raise ValueError("cpu=None: the cores of this machine differ, name the one to look at")
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    with cpus.pinned(cpu) as pinned:
        task = _Task(host, room, strict, seed, current().now() + max_seconds)
        parts = [measure_data(task, name) for name in names]
        parts.append(measure_instructions(task))
        walk, structures = measure_walk(task, parts)
    params = {"pages": names, "memory": room, "strict": bool(strict), "seed": int(seed), "cpu": pinned,
              "max_seconds": float(max_seconds)}  # fmt: skip
    return Anatomy(
        tuple(parts), walk, structures, host.to_dict(), params, started, warnings=tuple(task.warnings)
    )


def _checked_policies(given: str | Iterable[str] | None) -> list[str]:
    if given is None:
        kinds = ("thp", "hugetlb")
        return ["base", *(one.name for one in page_policies() if one.offered and one.kind in kinds)]
    if not isinstance(given, Iterable):
        raise TypeError(f"pages={given!r} must be the name of a page policy, or several")
    names = [find_policy(name).name for name in ([given] if isinstance(given, str) else given)]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"pages={given!r} must name at least one policy, and none twice")
    return names


@dataclass
class _Task:
    """What all parts of one anatomy share."""

    host: facts.Host
    room: int
    strict: bool
    seed: int
    deadline: float
    warnings: list[str] = field(default_factory=list)

    def until(self, seconds: float) -> float:
        """The end of a step that may take so long."""
        return min(self.deadline, current().now() + seconds)

    def check(self, region: Region) -> None:
        """Check its pages: other ones are an error, or where they are allowed a warning of the result."""
        complaint = region.complaint(region.backing())
        if complaint and self.strict:
            region.check_backing()
        elif complaint and complaint not in self.warnings:
            self.warnings.append(complaint)

    def claimed(self, unit: int) -> dict[int, cpuid.TlbClaim]:
        """What the processor claims of the data side for translations of a size."""
        return claimed_levels(self.host.tlb, "data", unit)

    def wanted(self, unit: int) -> int:
        """Bytes that all levels of the data side for translations of a size take to show."""
        most = max((row.entries for row in self.claimed(unit).values()), default=0)
        if unit > paging.base_page_size():
            return max(FEWEST_PAGES, TIMES_REACH * most) * unit
        return max(LEAST_NODES, TIMES_CLAIMED * most) * unit

    @contextlib.contextmanager
    def far_pages(self, wanted: bool = True) -> Iterator[SparseRegion | None]:
        """Address space for pages at will; nothing, and a warning that says why, where it cannot be had."""
        region = None
        if wanted:
            size = ((1 << FAR_BITS) + FAR_ALIGNED) * paging.base_page_size()
            try:
                region = SparseRegion(size, FAR_TOUCHED, "a set of pages far apart")
            except (MemoryError, OSError) as error:
                self.warnings.append(f"no pages far apart: {error}")
        with region or contextlib.nullcontext():
            yield region


# --- the data side ---------------------------------------------------------------------------------------


def measure_data(task: _Task, name: str) -> Part:
    """The data side on one policy; what keeps it from being measured is its reason."""
    start = current().now()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of other pages, which the result tells of
            part = _on_policy(task, name)
    except UNMEASURED as error:
        part = Part("data", name, None, "", NO_SIDE, reason=str(error))
    return _timed(part, start)


def _on_policy(task: _Task, name: str) -> Part:
    """First what the TLB holds for the memory, then levels of such translations, on the same memory."""
    base = paging.base_page_size()
    page = find_policy(name).page_size or base
    if page > task.room:
        raise ValueError(f"needs {format_size(page)} for one page, memory={format_size(task.room)}")
    if page > base and current().now() > task.deadline:
        raise TimeoutError("the time was over before it: see max_seconds")
    wanted = max(task.wanted(base), task.wanted(page))
    with Region(min(wanted, task.room) // page * page, name, strict=task.strict) as region:
        task.check(region)
        if page == base:
            return _with_levels(task, region, name, base)
        found = effective_page_size(region, seed=task.seed)
        if found.page_size is None:
            return Part("data", name, None, str(found), NO_SIDE, reason=found.reason)
        return replace(_with_levels(task, region, name, found.page_size), effective=str(found))


def _with_levels(task: _Task, region: Region, name: str, unit: int) -> Part:
    """Levels for translations of a size."""
    wanted = task.wanted(unit)
    nodes = min(wanted, region.mapped_bytes) // unit
    with (
        Region(nodes * paging.cache_line_size()) as beside,
        task.far_pages(unit == region.base_page) as far,
    ):
        hardware = Hardware(region, beside, far, unit=unit, seed=task.seed)
        side = inference.infer(hardware, task.seed, task.until(SIDE_SECONDS))
        part = Part("data", name, unit, "", side, judged_claims(side, task.claimed(unit)))
        if far is not None and side.levels and side.levels[0].entries.range:
            part = _with_map(task, part, hardware, side.levels[0].entries.range[1])
    task.check(region)
    return replace(part, **_how_far(task, side, unit, nodes * unit, wanted))


def _with_map(task: _Task, part: Part, hardware: Hardware, first: int) -> Part:
    beside = round(inference.OVER_BEFORE * first)
    found = inference.conflict_map(hardware, beside, MAP_STRIDES, MAP_COUNTS, task.until(MAP_SECONDS))
    return replace(part, conflicts=found, strides=MAP_STRIDES, counts=MAP_COUNTS)


def _how_far(task: _Task, side: Side, unit: int, size: int, wanted: int) -> dict[str, Any]:
    """Whether a side was looked at beyond all levels that there may be, and why not."""
    if size < wanted // unit * unit:
        needs = f"needs {format_size(wanted)} for all of it, memory={format_size(task.room)}"
        return {"complete": False, "reason": needs}
    if unit > paging.base_page_size() and not task.claimed(unit):
        unknown = f"how far levels for translations of {format_size(unit)} reach is not claimed here"
        return {"complete": False, "reason": unknown}
    return {"complete": bool(side.nodes) and not side.reason}


# --- the instruction side --------------------------------------------------------------------------------


def measure_instructions(task: _Task) -> Part:
    """The instruction side, on base pages, from jumps instead of loads."""
    start, unit = current().now(), paging.base_page_size()
    if not _core.JUMP_REACH:
        reason = "code that jumps is not known for this instruction set"
        return Part("instruction", "base", unit, "", NO_SIDE, reason=reason)
    try:
        side, reason, sure = _of_jumps(task, unit)
    except UNMEASURED as error:
        return _timed(Part("instruction", "base", unit, "", NO_SIDE, reason=str(error)), start)
    claims = judged_claims(side, claimed_levels(task.host.tlb, "instruction", unit))
    if reason:
        note = "some rises are not of translation: which level it is, is not sure"
        later = (replace(claim, verdict="unknown", note=note) for claim in claims[sure:])
        claims = (*claims[:sure], *later)
    return _timed(Part("instruction", "base", unit, "", side, claims, reason=reason), start)


def _of_jumps(task: _Task, unit: int) -> tuple[Side, str, int]:
    """Levels of pages, why others are none, and how many of the first levels are sure to be that."""
    nodes = min(CODE_NODES, task.room // unit)
    with Region(nodes * unit) as region, Region(nodes * paging.cache_line_size()) as beside:
        hardware = Hardware(
            region, beside, None, unit=unit, kernel="jump", floor_ns=JUMP_FLOOR_NS, seed=task.seed
        )
        side = inference.infer(hardware, task.seed, task.until(SIDE_SECONDS), lines=False)
        first = side.levels[:1]
        side, reason = inference.of_pages(side, hardware, task.until(HALF_SECONDS))
        return side, reason, int(side.levels[:1] == first)


# --- the walk --------------------------------------------------------------------------------------------

Structures = dict[str, tuple[int, int] | str]  # entries of paging-structure caches, or why they are not known
STRUCTURES = {1: "paging-structure cache, lowest", 2: "paging-structure cache, next"}  # by the level above


def measure_walk(task: _Task, parts: list[Part]) -> tuple[tuple[WalkStep, ...], Structures]:
    """The walk over the distance of nodes, on base pages, with as many as miss every level."""
    unit = paging.base_page_size()
    found = next((part for part in parts if part.name == "data" and part.unit == unit and part.levels), None)
    nodes = _walked_nodes(found) if found else 0
    if found is None or not nodes:
        reason = "no level was found whose misses are sure to be walks"
        return (), dict.fromkeys(STRUCTURES.values(), reason)
    sizes = nodes * unit, nodes * paging.cache_line_size()
    with Region(sizes[0]) as region, Region(sizes[1]) as beside, task.far_pages() as far:
        if far is None:
            reason = "there is no address space for nodes so far apart"
            return (), dict.fromkeys(STRUCTURES.values(), reason)
        hardware = Hardware(region, beside, far, unit=unit, seed=task.seed)
        packed = inference.packed_ns(found.levels[0], sizes[1] / unit)
        until = task.until(WALK_SECONDS)
        steps = inference.walk_steps(hardware, nodes, task.seed, until, packed_ns=packed)
    structures: Structures = {}
    for level, name in STRUCTURES.items():
        entries, reason = inference.paging_entries(steps, level)
        structures[name] = reason if entries is None else entries
    return steps, structures


def _walked_nodes(part: Part) -> int:
    """Nodes of which hardly any hits, wherever they lie: far apart they fill sets unevenly; 0: not known."""
    last = part.levels[-1]
    if last.miss_ns is None or not part.complete or part.side.still_rises(last.miss_ns):
        return 0
    wanted = TIMES_WALKED * last.entries.range[1] if last.entries.range else 0
    return max(last.miss_ns.nodes, min(wanted, part.side.nodes[-1]))


def _timed(part: Part, start: float) -> Part:
    return replace(part, seconds=current().now() - start)
