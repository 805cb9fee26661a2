"""The anatomy of a TLB: the result, and its words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from ..declared import Bytes, Declared, Keys, Put, Seconds, Spec, Whole
from ..machine import paging
from ..results.result import Result, package_version
from ..results.words import format_ns, recorded_host
from ..units import Floats, approximate_size, format_size
from .claims import Claim, format_range
from .inference import Cost, Dearer, Entries, MeasuredLevel, Range, Side, WalkStep


@dataclass(frozen=True, eq=False)
class Part(Declared):
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
    unit: Bytes | None
    effective: str
    side: Side
    claims: tuple[Claim, ...] = ()
    conflicts: Annotated[Floats, Spec("ns", ("strides", "counts"))] = field(
        default_factory=lambda: np.empty((0, 0))
    )
    strides: Annotated[tuple[Whole, ...], Spec("pages", ("strides",))] = ()
    counts: Annotated[tuple[Whole, ...], Spec(axes=("counts",))] = ()
    reason: str = ""
    seconds: Seconds = 0.0
    complete: bool = True

    def to_parts(self, put: Put) -> dict[str, Any]:
        """Plain values; each array goes to `put`, those of the side too, although the header has them."""
        for name in CURVES:
            put(name, np.array(getattr(self.side, name), np.float64))
        return super().to_parts(put)

    @property
    def levels(self) -> tuple[MeasuredLevel, ...]:
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


CURVES = ("nodes", "spread", "packed")  # of a side
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

    parts: Annotated[tuple[Part, ...], Spec(place="part{}")]
    walk: tuple[WalkStep, ...]
    paging: dict[str, Range | str]
    host: dict[str, Any]
    params: Annotated[dict[str, Any], Keys()]
    started: str
    version: str = field(default_factory=package_version)
    warnings: tuple[str, ...] = ()

    @property
    def data(self) -> Part | None:
        """The data side on the smallest translations that were measured, if any level was found there."""
        found = [part for part in self.parts if part.name == "data" and part.levels]
        return min(found, key=lambda part: part.unit or 0) if found else None

    @property
    def subject(self) -> str:
        """What was measured, in a few words."""
        host = recorded_host(self.host)
        name = host.get("cpu.name") if host and not self.simulated else None
        return "anatomy of the TLB" + (f" of {name}" if name else "")

    @property
    def nothing(self) -> str:
        """That no level is identifiable, if that is so."""
        return "" if any(part.levels for part in self.parts) else "no level is identifiable"

    @property
    def drawable(self) -> bool:
        """Whether there is a curve: it shows why no level is to be found in it."""
        return any(part.side.nodes for part in self.parts)

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
        source = "The description" if self.simulated else "CPUID"
        claimed = (
            f"{source} beside that: {', '.join(verdicts)}" if verdicts else "This processor claims nothing"
        )
        others = [one for one in self.parts if one.name == "data" and one.effective and one.pages != "base"]
        return f"{claimed}{''.join(f'; {one.pages}: {one.effective}' for one in others)}."

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a reader wants to know: names and texts."""
        yield from zip(("holds", "costs", "claims"), self.sentences(), strict=True)
        for part in self.parts:
            yield from _part_rows(part)
        for step in self.walk:
            yield f"walk, {format_size(step.pages * paging.base_page_size())} apart", _cost_text(step.cost)
        for name, found in self.paging.items():
            yield (
                name,
                f"not identifiable: {found}" if isinstance(found, str) else f"{format_range(found)} entries",
            )
        for warning in self.warnings:
            yield "warning", warning

    def summary(self) -> dict[str, Any]:
        """Every figure as a plain value, without the curves."""
        parts = [{**part.plain(), "reasons": dict(_reasons(part))} for part in self.parts]
        for part, plain in zip(self.parts, parts, strict=True):
            for name in CURVES:
                del plain["side"][name]
            for level, entry in zip(part.levels, plain["side"]["levels"], strict=True):
                entry["entries"]["confidence"] = level.entries.confidence
        return {
            "sentences": list(self.sentences()),
            "parts": parts,
            **self.plain("walk", "paging", "params", "warnings", "started", "version"),
        }


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


def _level_text(level: MeasuredLevel, unit: int) -> str:
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
