"""Measurements: raw slices, estimates, proof, and what was true of the machine."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from ..declared import Bytes, Keys, Number, Seconds, Spec, Whole
from ..machine.hazards import Hazard
from ..memory.backing import Backing
from ..record import RECORDS, Probe, access_word, size_parameters
from ..units import Flags, Floats, Interval, approximate_size, format_count, format_seconds, format_size
from . import analysis
from .result import Result, package_version
from .words import counted_text, format_interval, format_ns, hazard_rows, hazards_of, refused_rows

# --- one measurement -------------------------------------------------------------------------------------


NamedCounts = dict[str, Number | dict[str, Number]]
FAULTS = Keys(minor=Whole | None, major=Whole | None, expected=Whole | None)
NODES = {"bytes": Bytes, "nodes": Whole}


@dataclass(frozen=True, eq=False, repr=False)
class Measurement(Result):
    """One measured point: raw slices, robust estimates, proof, and what was true of the machine.

    Attributes
    ----------
    probe : str
        Name of the probe.
    ns : ndarray of float64, shape (slices,)
        Nanoseconds per access of each slice, in time order.
    accesses_per_slice : int
        Accesses that each slice averages over.
    disturbed : ndarray of bool, shape (slices,)
        Slices with a page fault, an involuntary switch, wall time beyond CPU time, or a slow core-clock
        witness beside them. A lower bound: most disturbance leaves no trace.
    core_ghz : float or None
        Core clock while measuring, from the witness; ``None`` where it did not hold still.
    setup : dict of str to float
        Seconds of each step; ``measure`` is the timed part and all around it.
    faults : dict
        Page faults in the timed part: ``minor``, ``major``, and ``expected`` (``None``: not known).
    params : dict
        What was asked, completed: bytes, nodes, stride, seed, CPU ...
    backing : Backing
        The proved pages of the measured bytes.
    host : dict
        Facts of the machine.
    started, version : str
        Start in UTC (ISO 8601), version of tlbprobe.
    counters : dict of str to ndarray of float64, shape (slices,)
        Performance counters per access, in the order of `ns`; NaN in slices in which others had their turn.
    refused : dict of str to str
        Why each other counter that was asked for is missing.
    counts : dict of str to int, float or dict
        What the probe counted beside the time, by name: hits, pages touched ... Empty where there is nothing.
    warnings : tuple of str
        What a reader must know.
    low_quantile : float
        Level of `low`.
    """

    kind: ClassVar[str] = "measurement"
    low_quantile: ClassVar[float] = analysis.LOW_QUANTILE

    probe: str
    ns: Annotated[Floats, Spec("ns", ("slices",), least=0, some=True)]
    accesses_per_slice: Whole
    disturbed: Annotated[Flags, Spec(axes=("slices",))]
    core_ghz: Annotated[float, Spec("GHz", least=0)] | None
    setup: dict[str, Seconds]
    faults: Annotated[dict[str, int | None], FAULTS]
    params: Annotated[dict[str, Any], Keys((), **NODES)]
    backing: Backing
    host: dict[str, Any]
    started: str
    version: str = field(default_factory=package_version)
    counters: dict[str, Annotated[Floats, Spec(axes=("slices",), gaps=True)]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    counts: Annotated[dict[str, Any], NamedCounts] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @functools.cached_property
    def low(self) -> float:
        """Low quantile of the slices, ns per access: the estimate least moved by disturbance."""
        return analysis.low(self.ns)

    @property
    def estimate(self) -> float:
        """What stands for all the times: `low`, or their median where each is of a single access."""
        return self.low

    @functools.cached_property
    def interval(self) -> Interval:
        """95 % confidence interval of `low`, ns; ``None`` where there are too few slices for one."""
        return analysis.interval(self.ns)

    @property
    def median(self) -> float:
        """Median of the slices, ns per access."""
        return float(np.median(self.ns))

    @property
    def mean(self) -> float:
        """Mean of the slices, ns per access."""
        return float(np.mean(self.ns))

    def counter(self, name: str) -> float | None:
        """Median of a counter per access, over the slices that have it; ``None`` if it was not counted."""
        values = self.counters.get(name)
        return None if values is None or np.isnan(values).all() else float(np.nanmedian(values))

    def _share(self, *pairs: tuple[str, str]) -> float | None:
        """Ratio of the first two counters that were counted both."""
        for over, under in pairs:
            one, other = self.counter(over), self.counter(under)
            if one is not None and other:
                return one / other
        return None

    @property
    def walk_share(self) -> float | None:
        """Page walks for loads, in cycles, over all cycles: the most that they can have cost.

        Of cycles with a walk in progress (``walk_active``), else of walks summed over cycles
        (``walk_pending``), which may exceed 1; ``None`` where they were not counted.
        """
        return self._share(("walk_active", "cycles"), ("walk_pending", "cycles"))

    @property
    def ipc(self) -> float | None:
        """Instructions per cycle; ``None`` where they were not counted."""
        return self._share(("instructions", "cycles"))

    @property
    def miss_rate(self) -> float | None:
        """Page walks for each load; ``None`` where they were not counted.

        Of ``walks`` and ``loads``, else of ``dTLB-load-misses`` and ``dTLB-loads``, which mean another level
        of the TLB on another processor: `events` says which.
        """
        return self._share(("walks", "loads"), ("dTLB-load-misses", "dTLB-loads"))

    @property
    def cycles(self) -> float | None:
        """Core cycles per access by `low`; ``None`` where the core clock is not known."""
        return None if self.core_ghz is None else self.low * self.core_ghz

    def summary(self) -> dict[str, Any]:
        """Every figure as a plain value, without the raw slices."""
        return {
            "probe": self.probe,
            "low_ns": self.low,
            "low_quantile": self.low_quantile,
            "interval_ns": self.interval and list(self.interval),
            "median_ns": self.median,
            "mean_ns": self.mean,
            "cycles": self.cycles,
            "core_ghz": self.core_ghz,
            "slices": self.ns.size,
            "accesses_per_slice": self.accesses_per_slice,
            "disturbed_share": float(self.disturbed.mean()),
            **self._facts(),
        }

    def _facts(self) -> dict[str, Any]:
        """What every measurement knows beside its times, as plain values."""
        return {
            "page_size": self.backing.page_size,
            "backing": self.backing.to_dict(),
            "setup_seconds": self.setup,
            "faults": self.faults,
            "counts": self.counts,
            "counters": {name: self.counter(name) for name in self.counters},
            **self.derived(),
            "params": self.params,
            "refused": self.refused,
            "warnings": list(self.warnings),
            "hazards": [asdict(hazard) for hazard in self.hazards],
            "started": self.started,
            "version": self.version,
        }

    @functools.cached_property
    def hazards(self) -> tuple[Hazard, ...]:
        """What could have spoiled this result, by the facts of the machine; worst first."""
        return hazards_of(self.host, self.probe)

    @property
    def subject(self) -> str:
        """What was measured, in a few words."""
        record = RECORDS.get(self.probe)
        size, counted = self.params.get("bytes"), record.first if record else ""
        if counted in self.params and size:
            of = f" of {format_count(self.params[counted])} {counted} in {approximate_size(size)}"
        else:
            of = f" {record.over if record else Probe.over} {format_size(size)}" if size else ""
        return f"{self.probe}{of} on {self.backing.asked!r} pages"

    @property
    def parameters(self) -> Iterator[tuple[str, str]]:
        """What was asked that tells this measurement from others of its probe: names and texts."""
        yield "pages", self.backing.asked
        record = RECORDS.get(self.probe)
        own = record.own_parameters if record else self.params
        for name, value in self.params.items():
            if name in own and value is not None:
                yield name, format_size(value) if name in size_parameters() else str(value)

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a reader wants to know: names and texts."""
        cycles = f", {self.cycles:.1f} cycles at {self.core_ghz:.2f} GHz" if self.cycles else ""
        word = access_word(self.probe)
        yield "low", f"{format_ns(self.low)} per {word} ({format_interval(self.interval)}){cycles}"
        yield "median, mean", f"{format_ns(self.median)}, {format_ns(self.mean)}"
        yield "backing", str(self.backing)
        asked = (f"{name.replace('_', ' ')} {text}" for name, text in self.parameters if name != "pages")
        yield "parameters", ", ".join((*asked, f"seed {self.params.get('seed', 'unknown')}"))
        for name, count in self.counts.items():
            yield name.replace("_", " "), counted_text(count)
        yield from self._counter_rows()
        disturbed = f"{self.disturbed.mean():.0%} visibly disturbed"
        plural = f"{word}{'es' if word.endswith('s') else 's'}"
        yield "slices", f"{self.ns.size} of {self.accesses_per_slice} {plural}, {disturbed}"
        if not self.simulated:  # a model's memory takes no time
            yield "set-up", ", ".join(f"{name} {format_seconds(taken)}" for name, taken in self.setup.items())
        for text in refused_rows(self.refused):
            yield "refused", text
        for warning in self.warnings:
            yield "warning", warning
        yield from hazard_rows(self.hazards)

    def derived(self) -> dict[str, float | None]:
        """Ratios of counters, by name."""
        return {name: getattr(self, name) for name in DERIVED}

    def _counter_rows(self) -> Iterator[tuple[str, str]]:
        """Each counter, and how many slices had it if not all."""
        for name, values in self.counters.items():
            counted = int((~np.isnan(values)).sum())
            some = "" if counted == values.size else f", counted in {counted} of {values.size} slices"
            median = self.counter(name)
            yield name, "missing" if median is None else f"{median:.4g} per access{some}"
        for name, share in self.derived().items():
            if share is not None:
                yield name.replace("_", " "), f"{share:.3g}"


@dataclass(frozen=True, eq=False, repr=False)
class SingleTimes(Measurement):
    """A measurement whose `ns` are of single accesses: nothing that follows from slices is there."""

    ns: Annotated[Floats, Spec("ns", ("times",), some=True)]  # below 0 where the clock cannot see them

    low = None  # type: ignore[assignment]
    interval = None
    cycles = None

    @property
    def estimate(self) -> float:
        """What stands for all the times: their median."""
        return self.median


DERIVED = ("walk_share", "ipc", "miss_rate")  # properties of it that need several counters


# --- two that took turns ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Translation(Result):
    """What translation adds to a dependent access: spread nodes against packed ones.

    Attributes
    ----------
    spread, packed : Measurement
        One node a base page, and the same number of lines side by side; slices were timed in turn.
    """

    kind: ClassVar[str] = "translation"

    spread: Measurement
    packed: Measurement

    def __post_init__(self) -> None:
        super().__post_init__()
        Keys(**NODES).check("spread.params", self.params)

    @functools.cached_property
    def _difference(self) -> tuple[float, Interval]:
        return analysis.difference(self.spread.ns, self.packed.ns)

    @property
    def cost(self) -> float:
        """Nanoseconds that translation adds to one access; within noise it may be negative."""
        return self._difference[0]

    @property
    def interval(self) -> Interval:
        """95 % confidence interval of `cost`, ns; ``None`` where there are too few slices for one."""
        return self._difference[1]

    @property
    def host(self) -> dict[str, Any]:
        """Facts of the machine."""
        return self.spread.host

    @property
    def backing(self) -> Backing:
        """The proved pages of both."""
        return self.spread.backing

    @property
    def params(self) -> dict[str, Any]:
        """What was asked, of the spread nodes."""
        return self.spread.params

    @property
    def setup(self) -> dict[str, float]:
        """Seconds of each step; ``measure`` is the timed part and all around it."""
        return self.spread.setup

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know, of both."""
        return tuple(dict.fromkeys(self.spread.warnings + self.packed.warnings))

    def summary(self) -> dict[str, Any]:
        """Every figure as a plain value, without the raw slices."""
        return {
            "probe": "translation",
            "cost_ns": self.cost,
            "interval_ns": self.interval and list(self.interval),
            "spread": self.spread.summary(),
            "packed": self.packed.summary(),
            "hazards": [asdict(hazard) for hazard in self.hazards],
        }

    @property
    def hazards(self) -> tuple[Hazard, ...]:
        """What could have spoiled this result, by the facts of the machine; worst first."""
        return hazards_of(self.spread.host, self.kind)

    @property
    def subject(self) -> str:
        """What was measured, in a few words."""
        pages = f"{self.params['nodes']} pages"
        return (
            f"translation over {format_size(self.params['bytes'])} ({pages}) on {self.backing.asked!r} pages"
        )

    @property
    def parameters(self) -> Iterator[tuple[str, str]]:
        """What was asked that tells this one from others."""
        return ((name, text) for name, text in self.spread.parameters if name in ("pages", "stride"))

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a reader wants to know: names and texts."""
        yield "cost", f"{format_ns(self.cost)} per access ({format_interval(self.interval)})"
        for name, run in (("spread", self.spread), ("packed", self.packed)):
            yield (
                name,
                f"{format_ns(run.low)} ({format_interval(run.interval)}), median {format_ns(run.median)}",
            )
        yield "backing", str(self.backing)
        for name in self.spread.counters:
            one, other = self.spread.counter(name), self.packed.counter(name)
            if one is not None and other is not None:
                yield name, f"{one:.4g} per access of spread nodes, {other:.4g} of packed ones"
        for text in refused_rows(self.spread.refused):
            yield "refused", text
        for warning in self.warnings:
            yield "warning", warning
        yield from hazard_rows(self.hazards)
