"""Trials: the same program, or function, on other pages in turn, and what that showed."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ..declared import Bytes, FieldError, Keys, Spec
from ..memory.backing import Backing
from ..results import analysis
from ..results.progress import Progress, progress_bar
from ..results.result import package_version
from ..results.table import Table, tabulate
from ..units import Floats, Interval, Ints, approximate_size, format_average, format_seconds, format_size
from .verdicts import Pair, Verdict, judge_trial, ratio_text

Times = Literal["wall", "cpu"]
RUNS = ("rounds", "variants")
RunSeconds = Annotated[Floats, Spec("s", RUNS, least=0, gaps=True)]
RunFaults = Annotated[Floats, Spec("faults", RUNS, least=0, gaps=True)]
RunBytes = Annotated[Floats, Spec("B", RUNS, least=0, gaps=True)]


@dataclass(frozen=True, eq=False, repr=False)
class Trial(Table):
    """A program or a function, run with other pages in turn.

    Attributes
    ----------
    program : str
        Its name, without folder and arguments.
    what : {"command", "function"}
        Of which kind it is.
    variants : tuple of str
        What was tried; of a function, page policies.
    reference : str
        The variant that the others are compared with.
    order : ndarray of int64, shape (rounds, variants)
        Numbers of the variants in the order of running.
    wall, cpu, system : ndarray of float64, shape (rounds, variants)
        Seconds of the clock and of processors, and of these the kernel's; of a function, for one call.
    minor, major : ndarray of float64, shape (rounds, variants)
        Page faults; of a function, for one call.
    peak : ndarray of float64, shape (rounds, variants)
        Most bytes in memory at once; NaN where that is not known.
    resident, huge : ndarray of float64, shape (rounds, variants)
        Bytes in memory when that was most of all that was seen, and those of them on huge pages.
    exit_resident, exit_huge : ndarray of float64, shape (rounds, variants)
        The same just before the exit; NaN where it was not stopped there.
    page : int
        Bytes of the huge page in question, or of a function's array if that is smaller.
    status : int or None
        Exit status of the first run of a command.
    backing : dict of str to Backing
        Of a function: the proved pages of its array, by variant.
    params : dict
        What was asked, completed.
    refused : dict of str to str
        Why each other variant was not tried.
    host : dict
        Facts of the machine.
    started, version : str
        Start in UTC (ISO 8601), version of tlbprobe.
    warnings : tuple of str
        What a reader must know.
    """

    kind: ClassVar[str] = "trial"

    program: str
    what: Literal["command", "function"]
    variants: Annotated[tuple[str, ...], Spec(axes=("variants",))]
    reference: str
    order: Annotated[Ints, Spec(axes=RUNS, least=0)]
    wall: RunSeconds
    cpu: RunSeconds
    system: RunSeconds
    minor: RunFaults
    major: RunFaults
    peak: RunBytes
    resident: RunBytes
    huge: RunBytes
    exit_resident: RunBytes
    exit_huge: RunBytes
    page: Bytes
    status: Annotated[int, Spec()] | None
    params: Annotated[dict[str, Any], Keys((), bytes=Bytes)]
    host: dict[str, Any]
    started: str
    version: str = field(default_factory=package_version)
    backing: dict[str, Backing] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference not in self.variants:
            raise FieldError("is none of the variants", "reference")

    def median(self, field_name: str, variant: str) -> float | None:
        """Median of a field over the rounds of a variant; ``None`` where it is not known."""
        return finite_median(getattr(self, field_name)[:, self.variants.index(variant)])

    def round_ratios(self, variant: str, times: Times = "wall") -> npt.NDArray[np.float64]:
        """Time of a variant over that of the reference, round by round; NaN where one of them is 0."""
        values: npt.NDArray[np.float64] = getattr(self, times)
        one, other = (values[:, self.variants.index(name)] for name in (variant, self.reference))
        ratios = np.full(one.size, math.nan)
        np.divide(one, other, out=ratios, where=(one > 0) & (other > 0))
        return ratios

    def ratio(self, variant: str, times: Times = "wall") -> tuple[float, Interval]:
        """Time of a variant over that of the reference, and its 95 % interval, from the pairs of each round.

        NaN where a time was too short for the clock of the kernel; no interval for fewer than 6 rounds.
        """
        values: npt.NDArray[np.float64] = getattr(self, times)
        pair = values[:, [self.variants.index(variant), self.variants.index(self.reference)]]
        return (
            analysis.paired_ratio(pair[:, 0], pair[:, 1])
            if pair.size and pair.min() > 0
            else (math.nan, None)
        )

    @functools.cached_property
    def pairs(self) -> dict[str, Pair]:
        """Each variant against the reference; the one that offers most comes first."""
        others = [name for name in self.variants if name != self.reference]
        return {name: self._pair(name) for name in sorted(others, key=lambda name: name == "refused")}

    def _pair(self, name: str) -> Pair:
        huge, reference = self.median("huge", name), self.median("huge", self.reference)
        times = self.ratio(name, "wall"), self.ratio(name, "cpu")
        return Pair(name, self.reference, huge, reference, self.page, *times)

    @functools.cached_property
    def verdict(self) -> Verdict:
        """Whether huge pages help it, with the evidence."""
        return judge_trial(self.pairs)

    def to_numpy(self) -> npt.NDArray[Any]:
        """Return one row a run, a structured array.

        Returns
        -------
        ndarray, shape (rounds * variants,)
            Columns ``round``, ``variant``, then the fields by their names; what is missing is NaN.
        """
        rounds = len(self.order)
        return tabulate({
            "round": [number for number in range(rounds) for _ in self.variants],
            "variant": list(self.variants) * rounds,
            **{name: getattr(self, name).ravel().tolist() for name in MEASURED},
        })  # fmt: skip

    @property
    def subject(self) -> str:
        """What was tried, in a few words."""
        over = f" over {format_size(self.params['bytes'])}" if "bytes" in self.params else ""
        return f"trial of {self.program}{over}, {len(self.order)} rounds"

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a reader wants to know: names and texts."""
        yield "verdict", str(self.verdict)
        for name in self.variants:
            yield name, self._words(name)
        for name, pair in self.pairs.items():
            yield f"{name} / {self.reference}", f"wall {ratio_text(*pair.wall)}, CPU {ratio_text(*pair.cpu)}"
        yield from self.remarks()

    def _words(self, name: str) -> str:
        wall, cpu, system = (self.median(what, name) or 0.0 for what in ("wall", "cpu", "system"))
        times = (
            f"{format_seconds(wall)} (CPU {format_seconds(cpu)}, the kernel's {format_seconds(system)}), "
            f"{format_average(self.median('minor', name))} page faults"
        )
        if name in self.backing:
            return f"{times}, {self.backing[name]}"
        return f"{times}, on huge pages: {self.huge_words(name)}"

    def huge_words(self, name: str) -> str:
        """Say how much of a variant's memory was on huge pages."""
        huge, resident = self.median("huge", name), self.median("resident", name)
        if huge is None or not resident:
            return "not seen"
        return f"{approximate_size(huge)} of {approximate_size(resident)}"

    def remarks(self) -> Iterator[tuple[str, str]]:
        """What a reader must know beside the figures."""
        for text in self.verdict.evidence[len(self.pairs) :]:
            yield "because", text
        for text in self.verdict.missing:
            yield "to know more", text
        if self.what == "command" and self.wall.size:
            seen = float(np.isfinite(self.exit_huge).mean())
            yield "pages", f"read while it ran, and in {seen:.0%} of the runs as it stopped before its exit"
        for name, reason in self.refused.items():
            yield f"not tried: {name}", reason
        for warning in self.warnings:
            yield "warning", warning

    def summary(self) -> dict[str, Any]:
        """Every figure as a plain value."""
        medians = {name: {what: self.median(what, name) for what in MEASURED} for name in self.variants}
        return {
            **self.plain("program", "what", "reference"),
            "rounds": len(self.order),
            "medians": medians,
            "ratios": {name: _plain_ratios(pair) for name, pair in self.pairs.items()},
            **self.plain("backing", "status"),
            "verdict": self.verdict.to_dict(),
            **self.plain("params", "refused", "warnings", "started", "version"),
        }


MEASURED = (
    "wall",
    "cpu",
    "system",
    "minor",
    "major",
    "peak",
    "resident",
    "huge",
    "exit_resident",
    "exit_huge",
)


def finite_median(values: npt.NDArray[np.float64]) -> float | None:
    """Median of the values that are known; ``None`` where none is."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else None


def _plain_ratios(pair: Pair) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (ratio, interval) in (("wall", pair.wall), ("cpu", pair.cpu)):
        found[name] = None if math.isnan(ratio) else ratio
        found[f"{name}_interval"] = interval and list(interval)
    return found


def balanced_order(rounds: int, variants: int, seed: int) -> npt.NDArray[np.int64]:
    """Order of the variants in each round: at random, each as often in each place as the rounds allow.

    Latin squares of shuffled rows, every other one mirrored, so that none always follows the same one.
    """
    shuffled = random.Random(seed)
    order: list[list[int]] = []
    while len(order) < rounds:
        first = shuffled.sample(range(variants), variants)
        square = [first[shift:] + first[:shift] for shift in shuffled.sample(range(variants), variants)]
        mirrored = len(order) // variants % 2
        order.extend(row[::-1] if mirrored else row for row in square)
    return np.array(order[:rounds], np.int64).reshape(rounds, variants)


@dataclass(frozen=True)
class RunFigures:
    """What one run of a command, or one round of calls of a function, showed: see `Trial`."""

    wall: float
    cpu: float
    system: float
    minor: float
    major: float
    peak: float = math.nan
    resident: float = math.nan
    huge: float = math.nan
    exit_resident: float = math.nan
    exit_huge: float = math.nan
    status: int | None = None
    outlived: bool = False  # by a process that it had started


TrialRows = list[list[RunFigures]]  # by round and variant


def run_in_turn(
    run: Callable[[int], RunFigures], order: npt.NDArray[np.int64], progress: Progress, unit: str
) -> TrialRows:
    """Run the variants in their order, and sort what they showed by their numbers."""
    rows = []
    with progress_bar(order.size, progress, unit) as advance:
        for numbers in order.tolist():
            row: dict[int, RunFigures] = {}
            for number in numbers:
                row[number] = run(number)
                advance()
            rows.append([row[number] for number in sorted(row)])
    return rows


def by_field(rows: TrialRows) -> dict[str, Any]:
    """Sort what was measured by the fields of a `Trial`."""
    return {name: [[getattr(one, name) for one in row] for row in rows] for name in MEASURED}
