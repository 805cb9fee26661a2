"""Sweeps: grids of measurements, every point with its proof or its reason.

Points run in seeded random order, so that a machine that drifts shows as noise and not as a shape, with those
that differ only in their pages next to each other; memory is mapped once for each page policy and reused.
"""

from __future__ import annotations

import csv
import inspect
import itertools
import math
import random
import re
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from . import machine, pages, points, probes
from .faults import PageTimes
from .measurement import (
    DERIVED,
    Get,
    Measurement,
    Put,
    Result,
    StrPath,
    Translation,
    below,
    from_below,
    refused_rows,
    replacing,
)
from .pages import Region, find_policy
from .shootdowns import ShootdownTimes
from .units import Count, Size, format_count, format_size, parse_count, parse_size

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes

# What a point of a sweep may be refused with; anything else is a fault of ours and goes up.
REFUSALS = (ValueError, OSError, MemoryError, RuntimeError, BufferError)
# Parameters that take a sequence themselves, so that one is not an axis.
SEQUENCES = frozenset({"counters"})
SIZE_AXES = frozenset({"size", "working_set", "stride", "step", "locality", "record_size"})
COUNT_AXES = frozenset({"records", "sessions", "accesses", "passes"})
# Steps of the set-up that all points on a region share, and the one that is none.
REGION_STEPS = ("map", "populate", "collapse", "first_pass", "second_pass")
TIMED_STEP = "measure"

LARGEST_INT64 = (1 << 63) - 1

Key = tuple[Any, ...]
Progress = bool | Callable[[int, int], object]
Kept = tuple[type[Exception], ...]  # exceptions that become refusals


def sizes(first: Size, last: Size, per_octave: int = 4) -> list[int]:
    """Working sets from `first` to `last`, evenly spaced on a log axis.

    Parameters
    ----------
    first, last : int or str
        Bytes; both are in the list.
    per_octave : int
        How many a doubling.

    Returns
    -------
    list of int
        Bytes, ascending, each a multiple of a cache line where it has the room.

    Examples
    --------
    >>> sizes("16KiB", "64KiB", per_octave=2)
    [16384, 23168, 32768, 46336, 65536]
    """
    low, high = parse_size(first, "first"), parse_size(last, "last")
    line = machine.cache_line_size()
    between = _evenly(low, high, per_octave, f"last={last!r} is smaller than first={first!r}")
    rounded = {round(size / line) * line if size >= line else round(size) for size in between}
    return sorted({low, high} | {size for size in rounded if low < size < high})


def counts(first: Count, last: Count, per_octave: int = 1) -> list[int]:
    """Counts, of records or sessions, from `first` to `last`, evenly spaced on a log axis.

    Parameters
    ----------
    first, last : int or str
        Both are in the list; K, M and G mean powers of 1000.
    per_octave : int
        How many a doubling.

    Returns
    -------
    list of int
        Ascending.

    Examples
    --------
    >>> counts("1K", "10K")
    [1000, 2000, 4000, 8000, 10000]
    """
    low, high = parse_count(first, "first"), parse_count(last, "last")
    between = _evenly(low, high, per_octave, f"last={last!r} is smaller than first={first!r}")
    rounded = {round(count) for count in between}
    return sorted({low, high} | {count for count in rounded if low < count < high})


def _evenly(low: int, high: int, per_octave: int, backwards: str) -> Iterator[float]:
    """Steps from `low` to `high` at most, by equal factors; `backwards` is what to say if there is no way."""
    if high < low:
        raise ValueError(backwards)
    whole = isinstance(per_octave, int | np.integer) and not isinstance(per_octave, bool)
    if not whole or not 1 <= per_octave <= 1000:
        raise ValueError(f"per_octave={per_octave!r} must be a whole number from 1 to 1000")
    steps = math.floor(math.log2(high / low) * per_octave + 1e-9)
    return (low * 2 ** (step / per_octave) for step in range(steps + 1))


# --- points ----------------------------------------------------------------------------------------------

# Absolute paths but those that are the same on every machine: a control group's may name a user.
PRIVATE_PATH = re.compile(r"(?<![\w.])/(?!(?:proc|sys|dev)/)(?:[^\s/'\"]+/)+")


@dataclass(frozen=True, repr=False)
class Refusal(Result):
    """A point that could not be measured, and why."""

    kind: ClassVar[str] = "refusal"

    error: str  # name of the exception
    reason: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Keep an exception's words; of paths, which may name a user, only the last part."""
        words = "; ".join((str(error), *getattr(error, "__notes__", [])))
        return cls(type(error).__name__, PRIVATE_PATH.sub("", words))

    @property
    def title(self) -> str:
        """That it was refused."""
        return "refused"

    def rows(self) -> Iterator[tuple[str, str]]:
        """Why."""
        yield self.error, self.reason

    def summary(self) -> dict[str, Any]:
        """Plain values."""
        return {"error": self.error, "reason": self.reason}

    def to_parts(self, put: Put) -> dict[str, Any]:
        """Plain values."""
        return self.summary()

    @classmethod
    def from_parts(cls, parts: dict[str, Any], get: Get) -> Self:
        """Read back what `to_parts` wrote."""
        return cls(**parts)


Point = Measurement | Translation | Refusal
POINTS: dict[str, type[Point]] = {
    one.kind: one for one in (Measurement, PageTimes, ShootdownTimes, Translation, Refusal)
}

# Columns of a table, numbers first. A missing number is NaN, so that counts and sizes are floats too.
NUMBERS = (
    "low_ns",
    "interval_low_ns",
    "interval_high_ns",
    "median_ns",
    "mean_ns",
    "page_size",
    "slices",
    "accesses_per_slice",
    "disturbed_share",
    "core_ghz",
    "setup_seconds",
    "faults_minor",
    "faults_major",
    "faults_expected",
)
TEXTS = ("proof", "reason")
COUNTS = frozenset(
    {"page_size", "slices", "accesses_per_slice", "faults_minor", "faults_major", "faults_expected"}
)


def figures(point: Point) -> dict[str, Any]:
    """The columns that a point has a figure for."""
    if isinstance(point, Refusal):
        return {"reason": f"{point.error}: {point.reason}"}
    run = point.spread if isinstance(point, Translation) else point
    known: dict[str, Any] = {
        "low_ns": run.low,
        "median_ns": run.median,
        "mean_ns": run.mean,
        "page_size": run.backing.page_size,
        "slices": run.ns.size,
        "accesses_per_slice": run.accesses_per_slice,
        "disturbed_share": float(run.disturbed.mean()) if run.disturbed.size else None,
        "core_ghz": run.core_ghz,
        "setup_seconds": own_setup(run),
        "proof": run.backing.proof,
    }
    if isinstance(point, Translation):
        packed = point.packed
        known["low_ns"] = point.cost
        known["spread_low_ns"], known["packed_low_ns"] = run.low, packed.low
        known["median_ns"] -= packed.median
        known["mean_ns"] -= packed.mean
    if point.interval:
        known["interval_low_ns"], known["interval_high_ns"] = point.interval
    for name in ("minor", "major", "expected"):
        known[f"faults_{name}"] = run.faults[name]
    ratios = {name: value for name in DERIVED if (value := getattr(run, name)) is not None}
    return known | dict(_flat(run.counts)) | {name: run.counter(name) for name in run.counters} | ratios


def _flat(counted: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, int | float]]:
    """Each number that was counted, by its name; of several by theirs too."""
    for name, value in counted.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name} ")
        elif isinstance(value, int | float):
            yield before + name, value


def own_setup(run: Measurement) -> float:
    """Seconds of set-up of one point, without what all points on its region share."""
    return sum(taken for step, taken in run.setup.items() if step not in (*REGION_STEPS, TIMED_STEP))


@contextmanager
def extra_named(name: str) -> Iterator[None]:
    """Say how to get a package that is not always installed."""
    try:
        yield
    except ImportError as error:
        error.add_note(f"{name} comes with the extra 'frames': pip install 'tlbprobe[frames]'")
        raise


def tabulate(columns: Mapping[str, Sequence[Any]]) -> npt.NDArray[Any]:
    """Make a structured array; ``None`` among numbers becomes NaN."""
    arrays = {name: _column(values) for name, values in columns.items()}
    table = np.empty(len(next(iter(arrays.values()))), [(name, one.dtype) for name, one in arrays.items()])
    for name, one in arrays.items():
        table[name] = one
    return table


def _column(values: Sequence[Any]) -> npt.NDArray[Any]:
    if any(isinstance(value, float) for value in values):
        return np.array([math.nan if value is None else value for value in values], float)
    if all(isinstance(value, int) for value in values) and max(values, default=0) > LARGEST_INT64:
        return np.array(values, np.uint64)  # seeds, which as floats would be others
    return np.array(values)


def point_columns(points: Sequence[Point | None]) -> dict[str, list[Any]]:
    """The columns of `figures`, with what was counted; absent points have none."""
    found = [{} if point is None else figures(point) for point in points]
    counted = dict.fromkeys(name for one in found for name in one if name not in (*NUMBERS, *TEXTS))
    numbers = {name: [one.get(name) for one in found] for name in (*NUMBERS, *counted)}
    as_floats = {
        name: [math.nan if value is None else float(value) for value in column]
        for name, column in numbers.items()
    }
    return {**as_floats, **{name: [one.get(name, "") for one in found] for name in TEXTS}}


class Table(Result):
    """A result that is a table, one row a point."""

    @abstractmethod
    def to_numpy(self) -> npt.NDArray[Any]:
        """Return one row a point, a structured array."""

    def to_pandas(self) -> pd.DataFrame:
        """Return `to_numpy` as a data frame; counts and page sizes are whole numbers, or missing."""
        with extra_named("pandas"):
            import pandas as pd

        table = self.to_numpy()
        frame = pd.DataFrame({name: table[name].tolist() for name in table.dtype.names or ()})
        return frame.astype({name: "Int64" for name in frame.columns if name in COUNTS})

    def to_csv(self, path: StrPath) -> None:
        """Write `to_numpy` to a file; missing figures are empty."""
        with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            self.write_csv(file)

    def write_csv(self, file: Any) -> None:
        """Write `to_numpy` to an open text file."""
        table = self.to_numpy()
        names = table.dtype.names or ()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for row in table.tolist():
            writer.writerow(_csv_cell(name, value) for name, value in zip(names, row, strict=True))


def _csv_cell(name: str, value: Any) -> Any:
    if value is None or value != value:
        return ""
    return int(value) if name in COUNTS else value


# --- a sweep ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(Table):
    """A grid of measurements.

    Attributes
    ----------
    probe : str
        Name of the probe.
    axes : dict of str to list
        Values of each axis, in order.
    points : dict of tuple to Measurement, Translation or Refusal
        By the values of the axes; a combination that was not asked for is not there.
    """

    kind: ClassVar[str] = "sweep"

    probe: str
    axes: dict[str, list[Any]]
    points: dict[Key, Point]

    def __getitem__(self, key: Any) -> Point:
        return self.points[key if isinstance(key, tuple) else (key,)]

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Point]]:
        """Points in the order of the axes, each with its values by axis."""
        for key in itertools.product(*self.axes.values()):
            if key in self.points:
                yield dict(zip(self.axes, key, strict=True)), self.points[key]

    @property
    def refused(self) -> dict[Key, Refusal]:
        """Points that could not be measured."""
        return {key: point for key, point in self.points.items() if isinstance(point, Refusal)}

    def to_numpy(self) -> npt.NDArray[Any]:
        """Return one row a point, a structured array.

        Returns
        -------
        ndarray, shape (points,)
            A column an axis, then float64 ``low_ns`` (for a translation: the cost), ``interval_low_ns``,
            ``interval_high_ns``, ``median_ns``, ``mean_ns``, ``page_size`` (bytes, if it is one),
            ``slices``, ``accesses_per_slice``, ``disturbed_share``, ``core_ghz``, ``setup_seconds`` (without
            the mapping, which points share), page faults of the timed part, what the probe counted, medians
            of the performance counters per access and their ratios (of a translation: those of the spread
            nodes), then ``proof`` and ``reason`` (why a point was refused). What is missing is NaN.
        """
        rows = list(self)
        axes = {name: [values[name] for values, _ in rows] for name in self.axes}
        return tabulate({**axes, **point_columns([point for _, point in rows])})

    def to_xarray(self) -> xr.Dataset:
        """Return the numbers of `to_numpy` as a labelled grid; absent points are NaN."""
        with extra_named("xarray"):
            import xarray as xr

        shape = tuple(len(values) for values in self.axes.values())
        every = [self.points.get(key) for key in itertools.product(*self.axes.values())]
        columns = point_columns(every)
        numbers = (name for name in columns if name not in TEXTS)
        grids = {name: (tuple(self.axes), np.reshape(columns[name], shape)) for name in numbers}
        return xr.Dataset(grids, coords=dict(self.axes))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the low estimate over the first axis of numbers, a line for each value of the others."""
        from . import plot

        return plot.sweep(self, ax)

    @property
    def title(self) -> str:
        """What was swept, in a few words."""
        return f"sweep of {self.probe}: {len(self)} points"

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a reader wants to know: names and texts."""
        for name, values in self.axes.items():
            shown = [axis_text(name, value) for value in values]
            yield name, ", ".join(shown if len(shown) <= 6 else [*shown[:3], "...", *shown[-2:]])
        for (what, text), count in complaints(self).items():
            yield what, f"{count} of {len(self)} points: {text}"

    def summary(self) -> dict[str, Any]:
        """Every figure as a plain value, without the raw slices."""
        points = [{**values, **point.summary()} for values, point in self]
        return {"probe": self.probe, "axes": self.axes, "points": points}

    def to_parts(self, put: Put) -> dict[str, Any]:
        """Plain values; each array goes to `put`. Facts of the host are written once for all points."""
        hosts: list[Any] = []
        points = []
        for number, (key, point) in enumerate(self.points.items()):
            parts = point.to_parts(below(str(number), put))
            _share_hosts(parts, hosts)
            points.append({"key": list(key), "kind": point.kind, "data": parts})
        return {"probe": self.probe, "axes": self.axes, "points": points, "hosts": hosts}

    @classmethod
    def from_parts(cls, parts: dict[str, Any], get: Get) -> Self:
        """Read back what `to_parts` wrote."""
        points: dict[Key, Point] = {}
        for number, entry in enumerate(parts["points"]):
            data = entry["data"]
            for run in _runs(data):
                run["host"] = parts["hosts"][run["host"]]
            points[tuple(entry["key"])] = POINTS[entry["kind"]].from_parts(data, from_below(str(number), get))
        return cls(parts["probe"], parts["axes"], points)


def complaints(*sweeps: Sweep) -> Counter[tuple[str, str]]:
    """Why points were refused, and what was warned of: at how many points.

    Refusals of a policy that differ in their figures alone count together, under the reason of the first.
    """
    said: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, Any], str] = {}
    for values, point in itertools.chain.from_iterable(sweeps):
        if isinstance(point, Refusal):
            reason = first.setdefault((point.error, values.get("pages")), point.reason)
            said["refused", reason] += 1
        else:
            said.update(("warning", text) for text in point.warnings)
            run = point.spread if isinstance(point, Translation) else point
            said.update(("refused counters", text) for text in refused_rows(run.refused))
    return said


def axis_text(name: str, value: Any) -> str:
    """A value of an axis, for people."""
    if not isinstance(value, int) or isinstance(value, bool):
        return str(value)
    return (
        format_size(value) if name in SIZE_AXES else format_count(value) if name in COUNT_AXES else str(value)
    )


def _runs(parts: dict[str, Any]) -> list[dict[str, Any]]:
    """The measurements in the parts of a point."""
    return [run for run in (parts, parts.get("spread"), parts.get("packed")) if run and "host" in run]


def _share_hosts(parts: dict[str, Any], hosts: list[Any]) -> None:
    for run in _runs(parts):
        if run["host"] not in hosts:
            hosts.append(run["host"])
        run["host"] = hosts.index(run["host"])


def sweep(
    probe: Callable[..., Any],
    *,
    on_error: Literal["keep", "raise"] = "keep",
    progress: Progress = True,
    order_seed: int = 0,
    **axes: Any,
) -> Sweep:
    """Measure a probe at every combination of some of its parameters.

    Parameters
    ----------
    probe : callable
        `chase`, `translation` or another probe.
    on_error : {"keep", "raise"}
        Whether a refused point is kept with its reason, or ends the sweep.
    progress : bool or callable
        Whether to show a bar on stderr, where that is a terminal or a notebook; or a function of the points
        done and all points.
    order_seed : int
        Of the random order of the points.
    **axes
        Parameters of the probe, `size` or `records` among them; a list, tuple, range or array is an axis,
        anything else is the same at every point.

    Returns
    -------
    Sweep
        Named axes in the order given.

    Raises
    ------
    ValueError, TypeError
        If an axis is no parameter of the probe, is empty or repeats a value.

    Examples
    --------
    >>> s = sweep(chase, size=["16KiB", "32KiB"], pages=["base"], max_seconds=0.05, progress=False)
    >>> s.axes
    {'size': [16384, 32768], 'pages': ['base']}
    """
    grid, fixed = _split_axes(probe, axes)
    keys = list(itertools.product(*grid.values()))
    asked = [Asked(probe, key, {**fixed, **dict(zip(grid, key, strict=True))}) for key in keys]
    points = run_points(asked, on_error, progress, order_seed)
    return Sweep(probe.__name__, grid, {ask.key: points[ask] for ask in asked})


def _split_axes(
    probe: Callable[..., Any], axes: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    if not hasattr(probe, "__name__"):
        raise TypeError(f"{probe!r} is no probe, such as tp.chase: give its parameters to the sweep")
    known = inspect.signature(probe).parameters
    grid: dict[str, list[Any]] = {}
    fixed: dict[str, Any] = {}
    for name, value in axes.items():
        if name not in known:
            raise TypeError(f"{probe.__name__} has no parameter {name!r}: it has {', '.join(known)}")
        if is_axis(value) and name not in SEQUENCES:
            grid[name] = _axis(name, value)
        else:
            fixed[name] = _fixed(name, value)
    for name, parameter in known.items():
        required = parameter.default is inspect.Parameter.empty
        if required and (axes.get(name) is None or None in grid.get(name, ())):
            raise TypeError(f"a sweep of {probe.__name__} needs {name}=, one value or a list of them")
    check_common(fixed)
    for name in grid:
        for value in grid[name]:
            check_common({**fixed, name: value})
    return grid, fixed


def check_common(fixed: Mapping[str, Any]) -> None:
    """What is wrong at every point is wrong usage: an error before anything is mapped."""
    known = inspect.signature(probes.chase).parameters
    names = [one.name for one in fields(points.Common)]
    points.Common(**{name: fixed.get(name, known[name].default) for name in names})


def is_axis(value: Any) -> bool:
    """Whether a value is several values: an iterable that is no text."""
    single = isinstance(value, str | bytes | Mapping) or (isinstance(value, np.ndarray) and not value.ndim)
    return isinstance(value, Iterable) and not single


def _fixed(name: str, value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic | np.ndarray) else value
    if plain is None or isinstance(plain, Region):
        return plain
    return (
        parse_size(plain, name)
        if name in SIZE_AXES
        else parse_count(plain, name, name)
        if name in COUNT_AXES
        else plain
    )


def _axis(name: str, values: Iterable[Any]) -> list[Any]:
    plain = [_fixed(name, value) for value in values]
    if any(isinstance(value, Region) for value in plain):
        raise ValueError(f"{name}= lists Regions, which no axis can hold: give one, and sweep working_set")
    if any(is_axis(value) for value in plain):
        raise TypeError(f"{name}={plain} holds a list: give a list of single values")
    if not plain:
        raise ValueError(f"{name}=[] has no value: an axis needs at least one")
    if len(set(plain)) < len(plain):
        raise ValueError(f"{name}={plain} repeats a value")
    return plain


# --- running points --------------------------------------------------------------------------------------


class Memory(NamedTuple):
    """What points that share a region have in common."""

    pages: str
    strict: bool


@dataclass(frozen=True, eq=False)
class Asked:
    """One point to be measured."""

    probe: Callable[..., Any]
    key: Key
    arguments: dict[str, Any]

    @property
    def memory(self) -> Memory | None:
        """The region it shares; ``None``: it brings or maps its own memory."""
        own = isinstance(self.arguments.get("size"), Region) or "working_set" in self.arguments
        if own or "working_set" not in inspect.signature(self.probe).parameters:
            return None
        name = self.arguments.get("pages")
        pages = "base" if name is None else name
        stride = self.arguments.get("stride")
        if probes.leaves_pages_out(self.probe.__name__, pages, stride):
            return None
        if self.arguments.get("placement") == "packed":  # as many lines, of a span that may not fit
            return None
        return Memory(pages, self.arguments.get("strict", True))

    @property
    def needed(self) -> int:
        """Bytes of a region."""
        return probes.bytes_needed(self.probe.__name__, self.arguments["size"], self.arguments.get("stride"))

    def measure(self, region: Region | None) -> Point:
        """Measure it, on a shared region if there is one."""
        arguments = dict(self.arguments)
        if region is not None:
            arguments = {name: arguments[name] for name in arguments if name not in ("pages", "strict")}
            arguments |= {"size": region, "working_set": self.arguments["size"]}
        point = self.probe(**arguments)
        if not isinstance(point, Measurement | Translation):
            raise TypeError(
                f"a sweep takes a probe, such as tp.chase or tp.translation: {self.probe.__name__} returned "
                f"a {type(point).__name__}"
            )
        return point


@dataclass(frozen=True)
class Shared:
    """Memory that points share: a region, and why it is not larger."""

    region: Region | None = None
    refusals: Mapping[int, Refusal] = field(default_factory=dict)  # by the bytes that were needed

    def measure(self, ask: Asked, kept: Kept) -> Point:
        """Measure a point on it, or say why not."""
        if self.refusals and ask.needed in self.refusals:
            return self.refusals[ask.needed]
        try:
            return ask.measure(self.region)
        except kept as error:
            return Refusal.of(error)


def run_points(
    asked: Sequence[Asked],
    on_error: Literal["keep", "raise"],
    progress: Progress,
    seed: int,
    at_last: Callable[[Region], object] = lambda region: None,
) -> dict[Asked, Point]:
    """Measure points in random order, with every policy mapped once, at the same time as others that fit.

    What is called `at_last` gets each region when its points are done.
    """
    if on_error not in ("keep", "raise"):
        raise ValueError(f"on_error={on_error!r} must be 'keep' or 'raise'")
    kept = REFUSALS if on_error == "keep" else ()
    groups: dict[Memory | None, list[Asked]] = {}
    for ask in asked:
        groups.setdefault(ask.memory, []).append(ask)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"order_seed={seed!r} must be a whole number")
    if not callable(progress) and not isinstance(progress, bool):
        raise TypeError(f"progress={progress!r} must be True, False or a function of done and all points")
    shuffled = random.Random(seed)
    points: dict[Asked, Point] = {}
    with progress_bar(len(asked), progress) as advance:
        for batch in _batches(groups):
            with ExitStack() as stack:
                shared = {memory: _share(memory, groups[memory], stack, kept) for memory in batch}
                for ask in in_blocks([ask for memory in batch for ask in groups[memory]], shuffled):
                    points[ask] = shared[ask.memory].measure(ask, kept)
                    advance()
                for region in (one.region for one in shared.values() if one.region):
                    at_last(region)
    return points


def in_blocks(asked: Sequence[Asked], shuffled: random.Random) -> list[Asked]:
    """Random order of blocks: points that differ only in their memory are compared, so they follow closely.

    Disturbance that lasts for seconds then meets all of them, instead of making one look the better.
    """
    blocks: dict[str, list[Asked]] = {}
    for ask in shuffled.sample(asked, len(asked)):
        compared = {name: value for name, value in ask.arguments.items() if name not in ("pages", "strict")}
        blocks.setdefault(f"{ask.probe.__name__} {compared}", []).append(ask)
    return list(itertools.chain.from_iterable(blocks.values()))


def _share(memory: Memory | None, asked: Sequence[Asked], stack: ExitStack, kept: Kept) -> Shared:
    """Map as much as the largest point that fits needs; the larger ones are refused, each with its reason."""
    refusals: dict[int, Refusal] = {}
    if memory is None:
        return Shared()
    for needed in sorted({ask.needed for ask in asked}, reverse=True):
        try:
            region = stack.enter_context(Region(needed, memory.pages, strict=memory.strict))
            return Shared(region, refusals)
        except kept as error:
            refusals[needed] = Refusal.of(error)
    return Shared(None, refusals)


def _batches(groups: Mapping[Memory | None, Sequence[Asked]]) -> list[list[Memory | None]]:
    """Policies that are mapped at the same time: as many as fit, in order; the others afterwards."""
    batches: list[list[Memory | None]] = [[]]
    for memory in groups:
        if not _fit_together([*batches[-1], memory], groups):
            batches.append([])
        batches[-1].append(memory)
    return [batch for batch in batches if batch]


def _fit_together(batch: Iterable[Memory | None], groups: Mapping[Memory | None, Sequence[Asked]]) -> bool:
    """Whether the largest region of every policy can be mapped at the same time."""
    try:
        policies = [(memory, find_policy(memory.pages)) for memory in batch if memory]
        wanted = [
            (pages.mapped_size(max(ask.needed for ask in groups[memory]), policy), policy)
            for memory, policy in policies
        ]
        return pages.fit_together(wanted)
    except ValueError:  # no such policy, or no such size: its points will say so
        return False


def _in_notebook() -> bool:
    """Whether this runs in a kernel of Jupyter: that the package is loaded says nothing."""
    ipython = sys.modules.get("IPython")
    return hasattr(ipython.get_ipython(), "kernel") if ipython else False


@contextmanager
def progress_bar(total: int, progress: Progress, unit: str = "point") -> Iterator[Callable[[], object]]:
    """What to call when one more is done: a bar where somebody can see it, or the caller's function."""
    done = itertools.count(1)
    if callable(progress):
        yield lambda: progress(next(done), total)
    elif progress and ((sys.stderr and sys.stderr.isatty()) or _in_notebook()):
        from tqdm.auto import tqdm

        with tqdm(total=total, unit=unit, leave=False) as bar:
            yield bar.update
    else:
        yield lambda: None
