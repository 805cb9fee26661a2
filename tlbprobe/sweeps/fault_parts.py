"""Where the time of a page fault goes: one part after another, each with how it was separated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from ..declared import Bytes, Declared, Nanoseconds, Spec
from ..machine import paging
from ..memory.policies import page_policies
from ..probes.fault import KindName, PageTimes, fault
from ..results.result import Result
from ..results.words import format_time, hazard_rows
from ..units import Size, format_size, parse_size

# Beside first writes, without which there is nothing to separate.
BESIDE_WRITES: tuple[KindName, ...] = ("read", "write_after_read", "second", "populate_write", "fork_child")
LEAST_DISTURBED = 0.1  # quantile of times that are too few, or too long, for their median to be undisturbed
UNDISTURBED = 0.999  # share of first accesses that no interruption of milliseconds falls into
NOISE = 3.0  # times the spread of the second touches that hidden faults must exceed to be told from them


@dataclass(frozen=True)
class FaultPart(Declared):
    """One part of what a page costs; ``ns`` is ``None`` where it cannot be separated, and `how` says why."""

    name: str
    ns: Nanoseconds | None
    per: str
    how: str


@dataclass(frozen=True, eq=False, repr=False)
class FaultParts(Result):
    """What a page costs from its mapping to its unmapping, part by part.

    Attributes
    ----------
    size : int
        Bytes that each kind of fault was measured on.
    parts : tuple of FaultPart
        Name, nanoseconds (``None``: cannot be separated here), what they are counted for, and how they were
        separated or why not.
    runs : dict of str to PageTimes
        What it was worked out from, by kind of fault on base pages, and for first writes by page policy.
    """

    kind: ClassVar[str] = "fault_parts"

    size: Bytes
    parts: tuple[FaultPart, ...]
    runs: Annotated[dict[str, PageTimes], Spec(some=True, place="{}")]

    def __getitem__(self, name: str) -> FaultPart:
        return {part.name: part for part in self.parts}[name]

    @property
    def subject(self) -> str:
        """What was dissected."""
        return f"where the time of a page fault goes, on {format_size(self.size)} each"

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a reader wants to know: names and texts."""
        for part in self.parts:
            time = "cannot be separated" if part.ns is None else f"{format_time(part.ns)} {part.per}"
            yield part.name, f"{time}: {part.how}"
        for name, run in self.runs.items():
            for warning in run.warnings:
                yield f"warning, {name}", warning
        yield from hazard_rows(next(iter(self.runs.values())).hazards)

    def summary(self) -> dict[str, Any]:
        """Every figure as a plain value."""
        runs = {name: run.summary() for name, run in self.runs.items()}
        return {**self.plain("size", "parts"), "runs": runs}


def fault_parts(size: Size = "64MiB", *, seed: int = 0, cpu: int | None = None) -> FaultParts:
    """Separate what a page costs into mapping, trap, kernel path, clearing, copying, hidden part, unmapping.

    Parameters
    ----------
    size : int or str
        Bytes that each kind of fault is measured on, one after the other.
    seed : int
        Of the order of touches, 0 to 2**64 - 1.
    cpu : int, optional
        CPU to pin to; the one it runs on by default.

    Returns
    -------
    FaultParts
        Each part in nanoseconds with how it was separated; ``None`` with the reason where it cannot be.

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.
    MemoryError
        If not even first writes would fit.

    Notes
    -----
    Medians of single touches, so that interrupts do not count. The parts are differences of kinds of faults
    that share all else; what a hypervisor does in the middle of a fault is in them.

    Examples
    --------
    >>> parts = fault_parts("4MiB")
    >>> parts["unmapping"].ns > 0
    True
    """
    parsed = parse_size(size)
    runs: dict[str, PageTimes] = {"write": fault(parsed, kind="write", seed=seed, cpu=cpu)}
    missing: dict[str, str] = {}
    wanted: dict[str, dict[str, Any]] = {kind: {"kind": kind} for kind in BESIDE_WRITES}
    wanted |= {f"write on {name}": {"pages": name, "strict": False} for name in _larger_pages(parsed)}
    for name, asked in wanted.items():
        try:
            runs[name] = fault(parsed, seed=seed, cpu=cpu, **asked)
        except (OSError, MemoryError) as error:
            missing[name] = f"{name}: {error}"
    return FaultParts(parsed, tuple(_separate(runs, missing)), runs)


def _larger_pages(size: int) -> list[str]:
    """Policies with pages above the base page that are on offer and fit the size a few times."""
    kinds = ("thp", "mthp", "hugetlb")
    offered = [policy for policy in page_policies() if policy.offered and policy.kind in kinds]
    return [policy.name for policy in offered if 4 * (policy.page_size or size) <= size]


def _separate(runs: Mapping[str, PageTimes], missing: Mapping[str, str]) -> Iterator[FaultPart]:
    """All parts; where a kind of fault could not be measured, with its reason instead."""
    for name, (kinds, separate) in PARTS.items():
        reasons = [missing[kind] for kind in kinds if kind in missing]
        yield _inseparable(name, reasons[0]) if reasons else separate(name, *(runs[kind] for kind in kinds))
    lacking = [why for name, why in missing.items() if name not in BESIDE_WRITES]
    yield from _slope([run for name, run in runs.items() if name.split(" ")[0] == "write"], lacking)


def _inseparable(name: str, why: str) -> FaultPart:
    return FaultPart(name, None, "", why)


def _difference_part(name: str, ns: float, per: str, how: str) -> FaultPart:
    """What one kind costs more than another; noise may hide it."""
    return (
        FaultPart(name, ns, per, how) if ns > 0 else _inseparable(name, f"{how}: {ns:.0f} ns, which is noise")
    )


def _mapping_part(name: str, *runs: PageTimes) -> FaultPart:
    least = min(run.setup["map"] for run in runs) * 1e9
    return FaultPart(name, least, "a call", f"mmap and the advice on it, the fastest of {len(runs)}")


def _no_zero_page(name: str, after_read: PageTimes) -> FaultPart | None:
    if after_read.counts.get("zero_page_bytes"):
        return None
    why = "this kernel has no zero page, or does not tell: a first read may allocate as a first write does"
    return _inseparable(name, why)


def _trap_and_path(name: str, read: PageTimes, after_read: PageTimes) -> FaultPart:
    how = "first read: the zero page is mapped, nothing allocated"
    return _no_zero_page(name, after_read) or FaultPart(name, read.median, "a base page", how)


def _allocation(name: str, write: PageTimes, read: PageTimes, after_read: PageTimes) -> FaultPart:
    more = write.median - read.median
    how = "first write less first read"
    return _no_zero_page(name, after_read) or _difference_part(name, more, "a base page", how)


def _trap(name: str, write: PageTimes, populate: PageTimes) -> FaultPart:
    pages = populate.bytes_per_time / paging.base_page_size()
    saved = write.median - populate.quantile(LEAST_DISTURBED) / pages
    how = "first write less MADV_POPULATE_WRITE, one trap for many"
    return _difference_part(name, saved, "a base page", how)


def _copying(name: str, write: PageTimes, forked: PageTimes) -> FaultPart:
    more = forked.median - write.median
    return _difference_part(name, more, "a base page more than clearing", "write after fork less first write")


def _hidden(name: str, populate: PageTimes, second: PageTimes) -> FaultPart:
    """What the first access after populating costs more than a second touch: faults that nobody counted."""
    counted = populate.counts["faults_after"]
    if counted:
        return _inseparable(name, f"{counted} first accesses after populating were counted as faults")
    kept = np.sort(populate.after)[: math.ceil(populate.after.size * UNDISTURBED)]
    extra = float(np.mean(kept)) - second.mean
    spread = float(np.std(second.ns)) + populate.overhead_ns + second.overhead_ns
    how = "first access after populating less a second touch, no fault counted"
    if extra <= NOISE * spread:
        return _inseparable(name, f"{how}: {extra:.0f} ns, within what the clock can tell")
    return FaultPart(name, extra, "a base page", how)


def _second(name: str, second: PageTimes) -> FaultPart:
    return FaultPart(name, second.median, "a touch", f"mean of {second.touches_per_time} at a time")


def _unmapping(name: str, *runs: PageTimes) -> FaultPart:
    pages = runs[0].params["mapped_bytes"] // paging.base_page_size()
    least = min(run.setup["unmap"] for run in runs) * 1e9 / pages
    return FaultPart(name, least, "a base page", f"munmap of all, divided, the fastest of {len(runs)}")


def _whole_write(name: str, write: PageTimes) -> FaultPart:
    throughput = f"{write.gib_per_second:.3g} GiB/s"
    return FaultPart(name, write.mean, "a base page", f"the mean, interruptions included: {throughput}")


# Of each part, the kinds of faults that it is separated from, and how.
PARTS: dict[str, tuple[tuple[KindName, ...], Callable[..., FaultPart]]] = {
    "mapping": (("write", "read", "second"), _mapping_part),
    "trap and kernel path": (("read", "write_after_read"), _trap_and_path),
    "allocation and clearing": (("write", "read", "write_after_read"), _allocation),
    "trap alone": (("write", "populate_write"), _trap),
    "copying": (("write", "fork_child"), _copying),
    "hidden by a hypervisor": (("populate_write", "second"), _hidden),
    "second touch": (("second",), _second),
    "unmapping": (("write", "write_after_read", "second"), _unmapping),
    "whole first write": (("write",), _whole_write),
}
SLOPE = ("fixed cost of a fault", "cost by size")


def _slope(writes: Sequence[PageTimes], lacking: Sequence[str]) -> Iterator[FaultPart]:
    """A line through the times of one fault over the size of its page: what grows with it, and what not.

    `lacking` says which page sizes are on offer and could not be had, and why.
    """
    runs = [run for run in writes if run.backing.page_size]
    sizes = np.array([run.backing.page_size for run in runs], float)
    if len(set(sizes)) < 2:
        only = "only one size of pages is on offer here, or proved: no second one to compare with"
        why = "; ".join((only, *lacking))
        yield from (_inseparable(name, why) for name in SLOPE)
        return
    times = np.array([run.quantile(LEAST_DISTURBED) for run in runs])
    slope, fixed = np.polyfit(sizes / paging.base_page_size(), times, 1, w=1 / times)
    shown = ", ".join(format_size(int(size)) for size in sorted(set(sizes)))
    how = "; without ".join((f"line through fast first writes on pages of {shown}", *lacking))
    if fixed <= 0 or slope <= 0:
        why = (
            f"{how}: it would cost {fixed:.0f} ns and {slope:.0f} ns more a base page, so they lie on none; "
            "clearing memory that a hypervisor has not backed yet can take that long"
        )
        yield from (_inseparable(name, why) for name in SLOPE)
        return
    yield FaultPart(SLOPE[0], float(fixed), "a fault", how)
    yield FaultPart(SLOPE[1], float(slope), "a base page of it", how)
