"""The translation hierarchy of this machine, inferred from timing: `anatomy`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from . import _core, cpuid, effective, facts, inference, machine, pages, timing
from .inference import Cost, Dearer, Entries, Level, Side, WalkStep
from .measurement import (
    Get,
    Put,
    Result,
    below,
    format_ns,
    from_below,
    package_version,
    recorded_host,
)
from .pages import BackingError, Region, SparseRegion, find_policy, round_up
from .points import UNTIMED_PASSES, Common
from .probes import node_parameters
from .units import Size, approximate_size, format_size, parse_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[np.float64]
Pages = npt.NDArray[np.int64]

SIDE_SECONDS = 4.0  # for one side on one policy
MAP_SECONDS = 1.0  # for the picture of conflicts
WALK_SECONDS = 6.0
JUMP_FLOOR_NS = 0.06  # jumps are predicted and overlap: smaller steps than this have many reasons
HALF_SECONDS = 1.0  # for the instruction side once more, on half the pages
LEAST_NODES = 24576  # of a side on small translations: beyond every second level there is
TIMES_CLAIMED = 6  # as many nodes as that times the entries that the processor claims, if these are more
CODE_NODES = 12288  # of the instruction side
FEWEST_NODES = 64
FAR_OFF = 2.0  # times a claim, or the reverse: what differs more may be another level
WIDE = 2.0  # times its lower end: a range up to there says whether a claim is right
TIMES_REACH = 2  # of the claimed reach: what a side on huge translations needs

SLICE_ACCESSES = 1 << 14  # at least: tens of microseconds where everything hits
LONG_SLICE_NS = 2e6  # slices longer than this are fewer, and shorter
MANY_NODES = 8192  # of which every slice is long
LEAST_SLICES = 3
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
        seed: int = 0,
    ) -> None:
        self.region, self.beside, self.far = region, beside, far
        self.unit, self.kernel, self.seed = unit, kernel, seed
        self.base, self.line = region.base_page, machine.cache_line_size()
        self.most_nodes = min(region.mapped_bytes // unit, beside.mapped_bytes // self.line)
        self.far_bits = FAR_BITS if far is not None else 0
        self.floor_ns = JUMP_FLOOR_NS if kernel == "jump" else 0.0
        self.origin = -far.address % (FAR_ALIGNED * self.base) if far is not None else 0
        self.rounds = 0
        self._expected: dict[int, float] = {}  # nanoseconds of one access each, by nodes

    def nearest(self, nodes: int) -> int:
        """Any number of nodes will do."""
        return nodes

    def pair(self, nodes: int, spacing: int, slices: int) -> tuple[Array, Array]:
        """Slices of one round: nodes so many units apart, and as many lines side by side."""
        step, region, offset = spacing * self.unit, self.region, 0
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

    def places(self, pages: Pages, slices: int) -> tuple[Array, Array]:
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
    ) -> tuple[Array, Array]:
        size = round_up(nodes * self.line, self.base)
        packed = (self.beside, self.kernel, 0, size, self._nodes(nodes, self.base, "packed"))
        accesses = max(nodes, SLICE_ACCESSES)
        fewer = [n for n in self._expected if n <= nodes]
        known = self._expected[max(fewer)] if fewer else 0.0
        if nodes > MANY_NODES or known * accesses > LONG_SLICE_NS:
            accesses, slices = nodes, min(slices, LEAST_SLICES)
        with _core.Session([spread, packed]) as session:
            for _ in range(UNTIMED_PASSES):
                session.pass_over()
            ns = session.measure((accesses, accesses), slices)["ns"] / accesses
        self._expected[nodes] = float(ns.min(axis=1).sum())
        return ns[0], ns[1]


# --- results ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """What the processor claims of one level, beside what was measured."""

    level: int
    entries: int | None
    measured: tuple[int, int] | None
    verdict: str  # "agree", "disagree" or "unknown"
    note: str = ""

    def __str__(self) -> str:
        claimed = "nothing" if self.entries is None else f"{self.entries} entries"
        note = f" ({self.note})" if self.note else ""
        return f"claimed {claimed}, measured {format_range(self.measured)}: {self.verdict}{note}"


@dataclass(frozen=True, eq=False)
class Part:
    """One side of the TLB on one page policy.

    Attributes
    ----------
    name : str
        ``"data"`` or ``"instruction"``.
    pages : str
        Page policy.
    unit : int or None
        Bytes from one node to the next, which is one translation.
    effective : str
        What the TLB holds for these bytes, in one sentence.
    side : inference.Side
        Levels, and the curve that they were read from.
    claims : tuple of Claim
        Level by level.
    conflicts : ndarray of float64, shape (strides, counts)
        Nanoseconds a lap that conflicting pages add: see `inference.conflict_map`; empty if not measured.
    strides, counts : tuple of int
        Of `conflicts`: distance in pages, and how many of them.
    reason : str
        Why nothing, or not all, could be told; empty if it could.
    seconds : float
        Time it took.
    complete : bool
        Whether it was looked at far enough to show every level that there may be; otherwise what misses the
        last one that was found may be in a further one.
    """

    name: str
    pages: str
    unit: int | None
    effective: str
    side: Side
    claims: tuple[Claim, ...] = ()
    conflicts: Array = field(default_factory=lambda: np.empty((0, 0)))
    strides: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    reason: str = ""
    seconds: float = 0.0
    complete: bool = True

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels, the first one first."""
        return self.side.levels

    @property
    def why(self) -> str:
        """Why nothing, or not all, could be told: of the curve first."""
        return "; ".join(filter(None, (self.side.reason, self.reason)))

    @property
    def title(self) -> str:
        """Which side of which pages."""
        return f"{self.name}, {self.pages}"


NO_SIDE = Side((), (), (), (), (), 0.0)


@dataclass(frozen=True, eq=False, repr=False)
class Anatomy(Result):
    """The translation hierarchy of a machine, inferred from timing.

    Attributes
    ----------
    parts : tuple of Part
        One for each page policy, and the instruction side.
    walk : tuple of WalkStep
        Cost of a walk over the distance of the nodes.
    paging : dict of str to (tuple of int or str)
        Entries of the paging-structure caches, or why they are not identifiable.
    host : dict
        Facts of the machine.
    params : dict
        What was asked, completed.
    started, version : str
        Start in UTC (ISO 8601), version of tlbprobe.
    warnings : tuple of str
        What a reader must know.
    """

    kind: ClassVar[str] = "anatomy"

    parts: tuple[Part, ...]
    walk: tuple[WalkStep, ...]
    paging: dict[str, tuple[int, int] | str]
    host: dict[str, Any]
    params: dict[str, Any]
    started: str
    version: str = field(default_factory=package_version)
    warnings: tuple[str, ...] = ()

    @property
    def data(self) -> Part | None:
        """The data side on the smallest translations that were measured, if any level was found there."""
        found = [part for part in self.parts if part.name == "data" and part.levels]
        return min(found, key=lambda part: part.unit or 0) if found else None

    @property
    def title(self) -> str:
        """What was measured, in a few words."""
        host = recorded_host(self.host)
        name = host.get("cpu.name") if host else None
        return "anatomy of the TLB" + (f" of {name}" if name else "")

    def sentences(self) -> tuple[str, str, str]:
        """The result in three plain sentences: what it holds, what it costs, what to make of the claims."""
        part = self.data
        if part is None:
            reasons = (one.why for one in self.parts if one.name == "data")
            return (
                "No level of the data side of the TLB is identifiable here.",
                f"The reason: {next(filter(None, reasons), 'it is not known')}.",
                "Nothing is guessed.",
            )
        unit = format_size(part.unit or 0)
        sizes = " and ".join(format_entries(level.entries) for level in part.levels)
        levels = "one level" if len(part.levels) == 1 else f"{len(part.levels)} levels"
        doubted = part.side.certain < len(part.levels) or not part.complete
        at_least = "at least " if doubted else ""
        holds = f"The data side shows {at_least}{levels} for translations of {unit}: {sizes} entries."
        return holds, _cost_sentence(part), self._claim_sentence(part)

    def _claim_sentence(self, part: Part) -> str:
        verdicts = [f"level {claim.level}: {claim.verdict}" for claim in part.claims]
        claimed = f"CPUID beside that: {', '.join(verdicts)}" if verdicts else "This processor claims nothing"
        others = [one for one in self.parts if one.name == "data" and one.effective and one.pages != "base"]
        return f"{claimed}{''.join(f'; {one.pages}: {one.effective}' for one in others)}."

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a reader wants to know: names and texts."""
        yield from zip(("holds", "costs", "claims"), self.sentences(), strict=True)
        for part in self.parts:
            yield from _part_rows(part)
        for step in self.walk:
            yield f"walk, {format_size(step.pages * machine.base_page_size())} apart", _cost_text(step.cost)
        for name, found in self.paging.items():
            yield (
                name,
                f"not identifiable: {found}" if isinstance(found, str) else f"{format_range(found)} entries",
            )
        for warning in self.warnings:
            yield "warning", warning

    def summary(self) -> dict[str, Any]:
        """Every figure as a plain value, without the curves."""
        parts = [{**_plain(part), "reasons": dict(_reasons(part))} for part in self.parts]
        for part, plain in zip(self.parts, parts, strict=True):
            for name in CURVES:
                del plain["side"][name]
            for level, entry in zip(part.levels, plain["side"]["levels"], strict=True):
                entry["entries"]["confidence"] = level.entries.confidence
        return {
            "sentences": list(self.sentences()),
            "parts": parts,
            "walk": [asdict(step) for step in self.walk],
            "paging": self.paging,
            "params": self.params,
            "warnings": list(self.warnings),
            "started": self.started,
            "version": self.version,
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the translation cost over the pages in use, with the levels; returns the Axes."""
        from . import plot

        return plot.anatomy(self, ax)

    def figure(self) -> Figure:
        """Draw the curve, and the map of set conflicts beside it."""
        from . import plot

        return plot.anatomy_figure(self)

    def to_parts(self, put: Put) -> dict[str, Any]:
        """Plain values; each array goes to `put`."""
        for number, part in enumerate(self.parts):
            store = below(f"part{number}", put)
            store("conflicts", part.conflicts)
            for name in CURVES:
                store(name, np.array(getattr(part.side, name), np.float64))
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            **plain,
            "parts": [_plain(part) for part in self.parts],
            "walk": [asdict(step) for step in self.walk],
        }

    @classmethod
    def from_parts(cls, parts: dict[str, Any], get: Get) -> Self:
        """Read back what `to_parts` wrote."""
        read = [_part_from(part, from_below(f"part{n}", get)) for n, part in enumerate(parts["parts"])]
        paging = {
            name: found if isinstance(found, str) else tuple(found) for name, found in parts["paging"].items()
        }
        walk = tuple(WalkStep(step["pages"], Cost(**step["cost"])) for step in parts["walk"])
        known = {one.name: parts[one.name] for one in fields(cls) if one.name in parts}
        return cls(
            **{
                **known,
                "parts": tuple(read),
                "walk": walk,
                "paging": paging,
                "warnings": tuple(parts["warnings"]),
            }
        )


CURVES = ("nodes", "spread", "packed")


def _plain(part: Part) -> dict[str, Any]:
    plain = {one.name: getattr(part, one.name) for one in fields(part) if one.name != "conflicts"}
    return {**plain, "side": asdict(part.side), "claims": [asdict(claim) for claim in part.claims]}


def _part_from(plain: dict[str, Any], get: Get) -> Part:
    side = plain["side"]
    curves = {name: tuple(get(name).tolist()) for name in CURVES}
    found = Side(
        levels=tuple(_level_from(level) for level in side["levels"]),
        dearer=tuple(Dearer(**{**one, "nodes": tuple(one["nodes"])}) for one in side["dearer"]),
        **{**curves, "nodes": tuple(map(int, curves["nodes"]))},
        noise=side["noise"],
        reason=side["reason"],
    )
    claims = tuple(Claim(**{**claim, "measured": _pair(claim["measured"])}) for claim in plain["claims"])
    listed = {name: tuple(plain[name]) for name in ("strides", "counts")}
    return Part(**{**plain, **listed, "side": found, "claims": claims, "conflicts": get("conflicts")})


def _level_from(plain: dict[str, Any]) -> Level:
    ranges = {name: _pair(plain["entries"].get(name)) for name in ("range", "widest", "step")}
    entries = Entries(**{**plain["entries"], **ranges})
    costs = {name: Cost(**plain[name]) if plain[name] else None for name in ("hit_ns", "miss_ns")}
    return Level(**{**plain, **costs, "entries": entries})


def _pair(found: Any) -> tuple[int, int] | None:
    return None if found is None else (found[0], found[1])


# --- words -----------------------------------------------------------------------------------------------


def format_range(found: tuple[int, int] | None) -> str:
    """One number, or from and to, or that there is none."""
    if found is None:
        return "not identifiable"
    return f"{found[0]}" if found[0] == found[1] else f"{found[0]} to {found[1]}"


def format_reach(entries: tuple[int, int], unit: int) -> str:
    """Bytes that so many translations cover."""
    least, most = (approximate_size(count * unit) for count in entries)
    return least if least == most else f"{least} to {most}"


def format_entries(entries: Entries) -> str:
    """The range, and how it looked."""
    if entries.range is None:
        return "an unknown number of"
    return format_range(entries.range) + ("" if entries.even else " (its sets fill unevenly)")


def _cost_text(cost: Cost) -> str:
    return f"{format_ns(cost.ns)} ({format_ns(cost.low)} to {format_ns(cost.high)}, at {cost.nodes} pages)"


def _cost_sentence(part: Part) -> str:
    *found, last = [level.miss_ns for level in part.levels]
    known = [f"{format_ns(cost.ns)} where level {n} has it" for n, cost in enumerate(found, 2) if cost]
    if last is None:
        walk = "what a walk of the page table adds is not identifiable"
    elif not part.complete:
        walk = (
            f"one that none of these holds {format_ns(last.ns)}, by a further level or a walk, which is open"
        )
    elif part.side.still_rises(last):
        walk = (
            f"a walk of the page table more than {format_ns(last.ns)}: at {last.nodes} pages it still rises"
        )
    else:
        dearer = [one for one in part.side.dearer if one.after_ns > last.ns and one.confirmed]
        later = "".join(_dearer_words(one) for one in dearer[-1:])
        walk = f"a walk of the page table {format_ns(last.ns)}{later}"
    if not known:
        return f"Of a translation that it does not hold: {walk}."
    return f"A translation that the first level does not hold adds {', '.join(known)}; {walk}."


def _dearer_words(one: Dearer) -> str:
    where = f"from about {one.nodes[1]} pages on, where the page table has left a cache"
    return f", and {format_ns(one.after_ns)} {where}"


def _part_rows(part: Part) -> Iterator[tuple[str, str]]:
    if part.effective:
        yield part.title, part.effective
    for number, level in enumerate(part.levels, 1):
        yield f"{part.title}, level {number}", _level_text(level, part.unit or 0)
    for one in part.side.dearer:
        where = (
            f"from {one.nodes[0]} to {one.nodes[1]} pages{'' if one.confirmed else ', the last point alone'}"
        )
        yield (
            f"{part.title}, dearer walks",
            f"{format_ns(one.before_ns)} to {format_ns(one.after_ns)}, {where}",
        )
    for claim in part.claims:
        yield f"{part.title}, claim {claim.level}", str(claim)
    for name, reason in _reasons(part):
        yield f"{part.title}, {name}", f"not identifiable: {reason}"


def _level_text(level: Level, unit: int) -> str:
    sure = f" ({level.entries.confidence:.1%} sure)" if level.entries.confidence else ""
    words = [f"{format_entries(level.entries)} entries{sure}"]
    if level.entries.range and unit:
        words.append(f"reach {format_reach(level.entries.range, unit)}")
    if level.sets == 1:
        words.append("fully associative")
    elif level.ways:
        words.append(f"{level.sets} sets of {level.ways} ways")
    if level.index:
        words.append(f"{level.index} index of {level.index_bits} page bits")
    if level.miss_ns:
        words.append(f"a miss adds {_cost_text(level.miss_ns)}")
    return ", ".join(words)


def _reasons(part: Part) -> Iterator[tuple[str, str]]:
    if part.why:
        yield "further levels" if part.levels else "all", part.why
    for number, level in enumerate(part.levels, 1):
        if level.entries.reason:
            yield f"entries of level {number}", level.entries.reason
        for name, reason in level.reasons.items():
            yield f"{name} of level {number}", reason


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
    names = _policies(pages)
    room = parse_size(memory, "memory")
    least = FEWEST_NODES * machine.base_page_size()
    if room < least:
        raise ValueError(f"memory={memory!r} is too small: at least {format_size(least)}")
    Common(strict, seed, cpu, 0.01, max_seconds, ())
    host = facts.host()
    if host.get("cpu.hybrid") and cpu is None:
        raise ValueError("cpu=None: the cores of this machine differ, name the one to look at")
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    with timing.pinned(cpu) as pinned:
        task = _Task(host, room, strict, seed, time.perf_counter() + max_seconds)
        parts = [task.data(name) for name in names]
        parts.append(task.instruction())
        walk, paging = task.walk(parts)
    params = {"pages": names, "memory": room, "strict": bool(strict), "seed": int(seed), "cpu": pinned,
              "max_seconds": float(max_seconds)}  # fmt: skip
    return Anatomy(tuple(parts), walk, paging, host.to_dict(), params, started, warnings=tuple(task.warnings))


def _policies(given: str | Iterable[str] | None) -> list[str]:
    if given is None:
        kinds = ("thp", "hugetlb")
        return ["base", *(one.name for one in pages.page_policies() if one.offered and one.kind in kinds)]
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
        return min(self.deadline, time.perf_counter() + seconds)

    def data(self, name: str) -> Part:
        """The data side on one policy; what keeps it from being measured is its reason."""
        start = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", RuntimeWarning
                )  # `_check` tells of other pages, in the result
                part = self._data(name)
        except (MemoryError, BackingError, OSError, ValueError) as error:
            part = Part("data", name, None, "", NO_SIDE, reason=str(error))
        return _timed(part, start)

    def _data(self, name: str) -> Part:
        """First what the TLB holds for the memory, then levels of such translations, on the same memory."""
        base = machine.base_page_size()
        page = find_policy(name).page_size or base
        if page > self.room:
            raise ValueError(f"needs {format_size(page)} for one page, memory={format_size(self.room)}")
        if page > base and time.perf_counter() > self.deadline:
            raise TimeoutError("the time was over before it: see max_seconds")
        wanted = max(self._wanted(base), self._wanted(page))
        with Region(min(wanted, self.room) // page * page, name, strict=self.strict) as region:
            self._check(region)
            if page == base:
                return self._measured(region, name, base)
            found = effective.effective_page_size(region, seed=self.seed)
            if found.page_size is None:
                return Part("data", name, None, str(found), NO_SIDE, reason=found.reason)
            return replace(self._measured(region, name, found.page_size), effective=str(found))

    def _check(self, region: Region) -> None:
        """Check its pages: other ones are an error, or where they are allowed a warning of the result."""
        complaint = region.complaint(region.backing())
        if complaint and self.strict:
            region.check_backing()
        elif complaint and complaint not in self.warnings:
            self.warnings.append(complaint)

    def _claimed(self, unit: int) -> dict[int, cpuid.TlbClaim]:
        return _claimed(self.host.tlb, "data", unit)

    def _wanted(self, unit: int) -> int:
        """Bytes that all levels for translations of a size take to show."""
        most = max((row.entries for row in self._claimed(unit).values()), default=0)
        if unit > machine.base_page_size():
            return max(FEWEST_NODES, TIMES_REACH * most) * unit
        return max(LEAST_NODES, TIMES_CLAIMED * most) * unit

    def _measured(self, region: Region, name: str, unit: int) -> Part:
        """Levels for translations of a size."""
        claimed, line = self._claimed(unit), machine.cache_line_size()
        wanted = self._wanted(unit)
        nodes = min(wanted, region.mapped_bytes) // unit
        with Region(nodes * line) as beside, _far(self.warnings, wanted=unit == region.base_page) as far:
            hardware = Hardware(region, beside, far, unit=unit, seed=self.seed)
            side = inference.infer(hardware, self.seed, self.until(SIDE_SECONDS))
            part = Part("data", name, unit, "", side, _claims(side, claimed))
            if far is not None and side.levels and side.levels[0].entries.range:
                part = self._with_map(part, hardware, side.levels[0].entries.range[1])
        self._check(region)
        return replace(part, **self._how_far(side, unit, nodes * unit, wanted))

    def _how_far(self, side: Side, unit: int, size: int, wanted: int) -> dict[str, Any]:
        """Whether a side was looked at beyond all levels that there may be, and why not."""
        if size < wanted // unit * unit:
            needs = f"needs {format_size(wanted)} for all of it, memory={format_size(self.room)}"
            return {"complete": False, "reason": needs}
        huge = unit > machine.base_page_size()
        if huge and not self._claimed(unit):
            unknown = f"how far levels for translations of {format_size(unit)} reach is not claimed here"
            return {"complete": False, "reason": unknown}
        return {"complete": bool(side.nodes) and not side.reason}

    def _with_map(self, part: Part, hardware: Hardware, first: int) -> Part:
        beside = round(inference.OVER_BEFORE * first)
        found = inference.conflict_map(hardware, beside, MAP_STRIDES, MAP_COUNTS, self.until(MAP_SECONDS))
        return replace(part, conflicts=found, strides=MAP_STRIDES, counts=MAP_COUNTS)

    def instruction(self) -> Part:
        """The instruction side, on base pages, from jumps instead of loads."""
        start = time.perf_counter()
        unit, line = machine.base_page_size(), machine.cache_line_size()
        if "jump" not in _core.kernels():
            reason = "this build has no kernel 'jump', which runs code on many pages"
            return Part("instruction", "base", unit, "", NO_SIDE, reason=reason)
        nodes = min(CODE_NODES, self.room // unit)
        try:
            with Region(nodes * unit) as region, Region(nodes * line) as beside:
                sources = [
                    Hardware(region, beside, None, unit=each, kernel="jump", seed=self.seed)
                    for each in (unit, unit // 2)
                ]
                side = inference.infer(sources[0], self.seed, self.until(SIDE_SECONDS))
                first = side.levels[:1]
                side, reason = inference.of_pages(side, sources[0], sources[1], self.until(HALF_SECONDS))
                sure = int(side.levels[:1] == first)  # whether the first level is still that
        except (MemoryError, BackingError, OSError, ValueError) as error:
            return _timed(Part("instruction", "base", unit, "", NO_SIDE, reason=str(error)), start)
        claimed = _claimed(self.host.tlb, "instruction", unit)
        claims = _claims(side, claimed)
        if reason:
            note = "some rises are not of translation: which level it is, is not sure"
            later = (replace(claim, verdict="unknown", note=note) for claim in claims[sure:])
            claims = (*claims[:sure], *later)
        part = Part("instruction", "base", unit, "", side, claims, reason=reason)
        return _timed(part, start)

    def walk(self, parts: list[Part]) -> tuple[tuple[WalkStep, ...], dict[str, tuple[int, int] | str]]:
        """The walk over the distance of nodes, on base pages, with as many as miss every level."""
        unit, line = machine.base_page_size(), machine.cache_line_size()
        found = next(
            (part for part in parts if part.name == "data" and part.unit == unit and part.levels), None
        )
        cost = found.levels[-1].miss_ns if found else None
        names = {1: "paging-structure cache, lowest", 2: "paging-structure cache, next"}
        if found is None or cost is None or not found.complete or found.side.still_rises(cost):
            return (), dict.fromkeys(names.values(), "no level was found whose misses are sure to be walks")
        sizes = cost.nodes * unit, cost.nodes * line
        with Region(sizes[0]) as region, Region(sizes[1]) as beside, _far(self.warnings) as far:
            if far is None:
                reason = "there is no address space for nodes so far apart"
                return (), dict.fromkeys(names.values(), reason)
            hardware = Hardware(region, beside, far, unit=unit, seed=self.seed)
            steps = inference.walk_steps(hardware, cost.nodes, self.seed, self.until(WALK_SECONDS))
        paging: dict[str, tuple[int, int] | str] = {}
        for level, name in names.items():
            entries, reason = inference.paging_entries(steps, level)
            paging[name] = reason if entries is None else entries
        return steps, paging


class _far:  # noqa: N801 - a context manager
    """Address space for pages at will; nothing, and a warning that says why, where it cannot be had."""

    def __init__(self, warnings: list[str], *, wanted: bool = True) -> None:
        self.warnings, self.wanted = warnings, wanted
        self.region: SparseRegion | None = None

    def __enter__(self) -> SparseRegion | None:
        if self.wanted:
            size = ((1 << FAR_BITS) + FAR_ALIGNED) * machine.base_page_size()
            try:
                self.region = SparseRegion(size, FAR_TOUCHED, "a set of pages far apart")
            except (MemoryError, OSError) as error:
                self.warnings.append(f"no pages far apart: {error}")
        return self.region

    def __exit__(self, *_: object) -> None:
        if self.region is not None:
            self.region.close()


def _timed(part: Part, start: float) -> Part:
    return replace(part, seconds=time.perf_counter() - start)


# --- claims ----------------------------------------------------------------------------------------------


def _claimed(rows: Iterable[cpuid.TlbClaim], side: str, unit: int) -> dict[int, cpuid.TlbClaim]:
    """What is claimed for translations of a size, by level; several rows of a level add up."""
    found: dict[int, cpuid.TlbClaim] = {}
    for row in rows:
        if row.side in (side, "unified") and unit in row.page_sizes and row.access in ("any", "load"):
            entries = row.entries + (found[row.level].entries if row.level in found else 0)
            found[row.level] = cpuid.TlbClaim(**{**asdict(row), "entries": entries})
    return dict(sorted(found.items()))


def _claims(side: Side, claimed: dict[int, cpuid.TlbClaim]) -> tuple[Claim, ...]:
    """Each level that is claimed or was found, with the verdict."""
    count = max([len(side.levels), *claimed])
    return tuple(_judged(level, side, claimed.get(level)) for level in range(1, count + 1)) if claimed else ()


def _judged(level: int, side: Side, row: cpuid.TlbClaim | None) -> Claim:
    found = side.levels[level - 1].entries if level <= len(side.levels) else None
    measured = found.range if found else None
    doubtful = level - 1 > side.certain
    if row is None or measured is None or doubtful:
        note = "which level it is, is not sure" if doubtful and measured else ""
        return Claim(level, row.entries if row else None, measured, "unknown", note)
    if not row.reliable:
        note = f"{row.note}; {row.candidate} would {'' if _within(row.candidate, measured) else 'not '}agree"
        return Claim(level, row.entries, measured, "unknown", note)
    if not _within(row.entries, measured):
        near = measured[0] <= FAR_OFF * row.entries and row.entries <= FAR_OFF * measured[1]
        note = "" if near else "so far off that it may be another level"
        return Claim(level, row.entries, measured, "disagree" if near else "unknown", note)
    if measured[1] > WIDE * measured[0]:
        return Claim(level, row.entries, measured, "unknown", "it lies within a range too wide to tell")
    return Claim(level, row.entries, measured, "agree")


def _within(entries: int | None, measured: tuple[int, int]) -> bool:
    return entries is not None and measured[0] <= entries <= measured[1]
