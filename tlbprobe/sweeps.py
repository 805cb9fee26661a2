"""Sweeps: grids of measurements, every point with its proof or its reason.

Points run in seeded random order, so that a machine that drifts shows as noise and not as a shape; memory is
mapped once for each page policy and reused.
"""

from __future__ import annotations

import csv
import inspect
import itertools
import math
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from . import machine, pages, probes
from .measurement import (
    Get,
    Measurement,
    Put,
    Translation,
    below,
    from_below,
    html_table,
    replacing,
    save,
    saved_kind,
)
from .pages import Region, find_policy
from .units import Size, format_size, parse_size

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What a point of a sweep may be refused with; anything else is a fault of ours and goes up.
REFUSALS = (ValueError, OSError, MemoryError, RuntimeError, BufferError)
# Parameters that take a sequence themselves, so that one is not an axis.
SEQUENCES = frozenset({"counters"})
Key = tuple[Any, ...]


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
    if high < low:
        raise ValueError(f"last={last!r} is smaller than first={first!r}")
    if isinstance(per_octave, bool) or not isinstance(per_octave, int) or not 1 <= per_octave <= 1000:
        raise ValueError(f"per_octave={per_octave!r} must be a whole number from 1 to 1000")
    steps = math.floor(math.log2(high / low) * per_octave + 1e-9)
    line = machine.cache_line_size()
    between = (low * 2 ** (step / per_octave) for step in range(steps + 1))
    rounded = {round(size / line) * line if size >= line else round(size) for size in between}
    return sorted({low, high} | {size for size in rounded if low < size < high})


# --- points ----------------------------------------------------------------------------------------------


@saved_kind
@dataclass(frozen=True)
class Refusal:
    """A point that could not be measured, and why."""

    kind: ClassVar[str] = "refusal"

    error: str  # name of the exception
    reason: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Keep an exception's words."""
        notes = getattr(error, "__notes__", [])
        return cls(type(error).__name__, "; ".join((str(error), *notes)))

    def to_parts(self, put: Put) -> dict[str, Any]:
        """Plain values."""
        return {"error": self.error, "reason": self.reason}

    @classmethod
    def from_parts(cls, parts: dict[str, Any], get: Get) -> Self:
        """Read back what `to_parts` wrote."""
        return cls(**parts)


Point = Measurement | Translation | Refusal
POINTS: dict[str, type[Measurement | Translation | Refusal]] = {
    cls.kind: cls for cls in (Measurement, Translation, Refusal)
}

COLUMNS: list[tuple[str, str]] = [
    ("low_ns", "f8"),
    ("interval_low_ns", "f8"),
    ("interval_high_ns", "f8"),
    ("median_ns", "f8"),
    ("mean_ns", "f8"),
    ("page_size", "i8"),
    ("proof", "U10"),
    ("slices", "i8"),
    ("accesses_per_slice", "i8"),
    ("disturbed_share", "f8"),
    ("core_ghz", "f8"),
    ("setup_seconds", "f8"),
    ("reason", "U400"),
]


def figures(point: Point) -> tuple[Any, ...]:
    """The columns of one point: NaN where there is no figure, page size 0 where not one size backs it all."""
    nan = math.nan
    if isinstance(point, Refusal):
        return (nan, nan, nan, nan, nan, 0, "", 0, 0, nan, nan, nan, f"{point.error}: {point.reason}")
    run = point.spread if isinstance(point, Translation) else point
    low = point.cost if isinstance(point, Translation) else run.low
    median, mean = run.median, run.mean
    if isinstance(point, Translation):
        median, mean = median - point.packed.median, mean - point.packed.mean
    from_, to = point.interval or (nan, nan)
    # Mapping and populating are shared by every point of a policy: not the set-up of one.
    own = sum(taken for step, taken in run.setup.items() if step in ("cycle", "verify", "passes", "proof"))
    ghz = run.core_ghz if run.core_ghz is not None else nan
    disturbed = float(run.disturbed.mean())
    proof = run.backing
    return (low, from_, to, median, mean, proof.page_size or 0, proof.proof, run.ns.size,
            run.accesses_per_slice, disturbed, ghz, own, "")  # fmt: skip


# --- a sweep ---------------------------------------------------------------------------------------------


@saved_kind
@dataclass(frozen=True, eq=False, repr=False)
class Sweep:
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
            A column an axis, then ``low_ns`` (for a translation: the cost), ``interval_low_ns``,
            ``interval_high_ns``, ``median_ns``, ``mean_ns``, ``page_size`` (bytes; 0: not one), ``proof``,
            ``slices``, ``accesses_per_slice``, ``disturbed_share``, ``core_ghz``, ``setup_seconds``,
            ``reason`` (why a point was refused; its figures are NaN).
        """
        kinds = [(name, np.asarray(values).dtype.str) for name, values in self.axes.items()]
        rows = [(*values.values(), *figures(point)) for values, point in self]
        return np.array(rows, dtype=[*kinds, *COLUMNS])

    def to_pandas(self) -> pd.DataFrame:
        """Return `to_numpy` as a data frame; page sizes that are not one become missing."""
        import pandas as pd

        frame = pd.DataFrame({name: list(column) for name, column in _columns(self.to_numpy())})
        frame["page_size"] = frame["page_size"].astype("Int64").mask(frame["page_size"] == 0)
        return frame

    def to_xarray(self) -> xr.Dataset:
        """Return the numbers of `to_numpy` as a labelled grid; absent points are NaN."""
        import xarray as xr

        shape = tuple(len(values) for values in self.axes.values())
        table = self.to_numpy()
        grids: dict[str, Any] = {}
        for name, kind in COLUMNS:
            if kind.startswith("U"):
                continue
            grid = np.full(shape, np.nan)
            for row in table:
                where = tuple(values.index(row[axis].item()) for axis, values in self.axes.items())
                grid[where] = row[name] if (name, row[name]) != ("page_size", 0) else np.nan
            grids[name] = (tuple(self.axes), grid)
        return xr.Dataset(grids, coords=dict(self.axes))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write `to_numpy` to a file; missing figures are empty."""
        with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            write_csv(file, self.to_numpy())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file that `load` reads."""
        save(self, path)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the low estimate over the first axis, a line for each value of the others."""
        from . import plot

        return plot.sweep(self, ax)

    def __repr__(self) -> str:
        return "\n".join((f"<{self.title}", *(f"  {name}: {text}" for name, text in self._rows()))) + ">"

    @property
    def title(self) -> str:
        """What was swept, in a few words."""
        return f"sweep of {self.probe}: {len(self)} points"

    def _rows(self) -> Iterator[tuple[str, str]]:
        for name, values in self.axes.items():
            shown = [format_size(v) if name in SIZE_AXES and isinstance(v, int) else str(v) for v in values]
            yield name, ", ".join(shown if len(shown) <= 6 else [*shown[:3], "...", *shown[-2:]])
        if self.refused:
            reasons = sorted({refusal.reason for refusal in self.refused.values()})
            yield (
                "refused",
                f"{len(self.refused)} points: {reasons[0]}" + (" ..." if len(reasons) > 1 else ""),
            )

    def _repr_html_(self) -> str:
        return html_table(self.title, self._rows())

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


SIZE_AXES = frozenset({"size", "working_set", "stride", "record_size"})


def _runs(parts: dict[str, Any]) -> list[dict[str, Any]]:
    """The measurements in the parts of a point."""
    return [run for run in (parts, parts.get("spread"), parts.get("packed")) if run and "host" in run]


def _share_hosts(parts: dict[str, Any], hosts: list[Any]) -> None:
    for run in _runs(parts):
        if run["host"] not in hosts:
            hosts.append(run["host"])
        run["host"] = hosts.index(run["host"])


def _columns(table: npt.NDArray[Any]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    for name in table.dtype.names or ():
        yield name, table[name]


def write_csv(file: Any, table: npt.NDArray[Any]) -> None:
    """Write a table of figures; missing ones are empty, never zero."""
    writer = csv.writer(file, lineterminator="\n")
    names = table.dtype.names or ()
    writer.writerow(names)
    for row in table:
        values = [value.item() for value in row]
        writer.writerow(
            "" if value != value or (name == "page_size" and value == 0) else value
            for name, value in zip(names, values, strict=True)
        )


def sweep(
    probe: Callable[..., Any],
    *,
    on_error: Literal["keep", "raise"] = "keep",
    progress: bool | Callable[[int, int], None] = True,
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
    if on_error not in ("keep", "raise"):
        raise ValueError(f"on_error={on_error!r} must be 'keep' or 'raise'")
    grid, fixed = _split_axes(probe, axes)
    keys = list(itertools.product(*grid.values()))
    asked = [Asked(probe, key, {**fixed, **dict(zip(grid, key, strict=True))}) for key in keys]
    points = run_points(asked, on_error == "raise", progress, order_seed)
    return Sweep(probe.__name__, grid, {ask.key: points[ask] for ask in asked})


def _split_axes(
    probe: Callable[..., Any], axes: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    known = inspect.signature(probe).parameters
    grid: dict[str, list[Any]] = {}
    fixed: dict[str, Any] = {}
    for name, value in axes.items():
        if name not in known:
            raise TypeError(f"{probe.__name__} has no parameter {name!r}: it has {', '.join(known)}")
        if isinstance(value, list | tuple | range | np.ndarray) and name not in SEQUENCES:
            grid[name] = _axis(name, value)
        else:
            fixed[name] = parse_size(value, name) if name == "size" and isinstance(value, str) else value
    return grid, fixed


def _axis(name: str, values: Iterable[Any]) -> list[Any]:
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    if name in SIZE_AXES:
        plain = [parse_size(value, name) for value in plain]
    if not plain:
        raise ValueError(f"{name}=[] has no value: an axis needs at least one")
    if len(set(plain)) < len(plain):
        raise ValueError(f"{name}={plain} repeats a value")
    return plain


# --- running points --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Asked:
    """One point to be measured."""

    probe: Callable[..., Any]
    key: Key
    arguments: dict[str, Any]

    @property
    def mapping(self) -> tuple[str, bool] | None:
        """Points of the same policy share a region; ``None``: this one maps its own memory."""
        if (
            isinstance(self.arguments.get("size"), Region)
            or "working_set" not in inspect.signature(self.probe).parameters
        ):
            return None
        return self.arguments.get("pages") or "base", self.arguments.get("strict", True)

    @property
    def needed(self) -> int:
        """Bytes of a region."""
        return probes.bytes_needed(self.probe.__name__, parse_size(self.arguments["size"]))

    def measure(self, region: Region | None) -> Point:
        """Measure it, on a shared region if there is one."""
        if region is None:
            point: Point = self.probe(**self.arguments)
            return point
        arguments = {
            name: value for name, value in self.arguments.items() if name not in ("size", "pages", "strict")
        }
        shared: Point = self.probe(region, working_set=self.arguments["size"], **arguments)
        return shared


def run_points(
    asked: Sequence[Asked], stop_on_error: bool, progress: bool | Callable[[int, int], None], seed: int
) -> dict[Asked, Point]:
    """Measure points in random order, with every policy mapped once: all at once if they fit together."""
    points: dict[Asked, Point] = {}
    groups: dict[tuple[str, bool] | None, list[Asked]] = {}
    for ask in asked:
        groups.setdefault(ask.mapping, []).append(ask)
    batches = [list(groups)] if _fit_together(groups) else [[mapping] for mapping in groups]
    shuffled = random.Random(seed)
    with _bar(len(asked), progress) as advance:
        for batch in batches:
            with ExitStack() as stack:
                shared = {
                    mapping: _share(mapping, groups[mapping], stack, stop_on_error) for mapping in batch
                }
                todo = [ask for mapping in batch for ask in groups[mapping]]
                shuffled.shuffle(todo)
                for ask in todo:
                    points[ask] = _measure(ask, shared[ask.mapping], stop_on_error)
                    advance()
    return points


@dataclass(frozen=True)
class Shared:
    """Memory that points share: a region, and why it is not larger."""

    region: Region | None = None
    refusal: Refusal | None = None

    def refuses(self, ask: Asked) -> bool:
        """Whether the point needs more than could be mapped."""
        return self.refusal is not None and (self.region is None or ask.needed > self.region.mapped_bytes)


def _measure(ask: Asked, shared: Shared, stop_on_error: bool) -> Point:
    if shared.refusal is not None and shared.refuses(ask):
        return shared.refusal
    try:
        return ask.measure(shared.region)
    except REFUSALS as error:
        if stop_on_error:
            raise
        return Refusal.of(error)


def _share(
    mapping: tuple[str, bool] | None, asked: Sequence[Asked], stack: ExitStack, stop_on_error: bool
) -> Shared:
    """Map as much as the largest point that fits needs; the larger ones are refused by the first reason."""
    if mapping is None:
        return Shared()
    refusal: Refusal | None = None
    for needed in sorted({ask.needed for ask in asked}, reverse=True):
        try:
            return Shared(stack.enter_context(Region(needed, mapping[0], strict=mapping[1])), refusal)
        except REFUSALS as error:
            if stop_on_error:
                raise
            refusal = refusal or Refusal.of(error)
            if not isinstance(error, MemoryError):
                break
    return Shared(None, refusal)


def _fit_together(groups: Mapping[tuple[str, bool] | None, Sequence[Asked]]) -> bool:
    """Whether the largest region of every policy can be mapped at the same time."""
    ordinary = 0
    try:
        for mapping, asked in groups.items():
            if mapping is None:
                continue
            policy = find_policy(mapping[0])
            if policy.kind != "hugetlb":  # those come from a pool of their own
                ordinary += pages.mapped_size(max(ask.needed for ask in asked), policy)
        if ordinary:
            pages.check_budget(ordinary, find_policy("base"), "all policies together")
    except (ValueError, TypeError, MemoryError):
        return False
    return True


class _bar(ExitStack):  # noqa: N801 - used like a function
    """Progress: a bar where somebody can see it, or the caller's function."""

    def __init__(self, total: int, progress: bool | Callable[[int, int], None]) -> None:
        super().__init__()
        self.total, self.done, self.progress = total, 0, progress
        self.bar: Any = None
        if progress is True:
            from tqdm.auto import tqdm

            visible = sys.stderr.isatty() or "ipykernel" in sys.modules
            self.bar = self.enter_context(tqdm(total=total, disable=not visible, unit="point", leave=False))

    def __enter__(self) -> Callable[[], None]:  # type: ignore[override]
        super().__enter__()
        return self.advance

    def advance(self) -> None:
        """One more point is done."""
        self.done += 1
        if self.bar is not None:
            self.bar.update()
        elif callable(self.progress):
            self.progress(self.done, self.total)


# --- the curve -------------------------------------------------------------------------------------------

VIEW_STEP = 4  # working sets of the second view are this factor apart ...
VIEW_LINES = 5  # ... and at most so many


def default_policies() -> list[str]:
    """Policies that a curve measures by default: base, thp, every hugetlb and mTHP size on offer."""
    known = pages.page_policies()
    huge = [policy.name for policy in known if policy.offered and policy.kind in ("hugetlb", "mthp")]
    thp = [policy.name for policy in known if policy.kind == "thp"]
    return ["base", *thp, *huge]


def view_sizes(working_sets: Sequence[int]) -> list[int]:
    """Working sets of the second view, latency over page size: a few from the largest down."""
    chosen: list[int] = []
    for size in sorted(working_sets, reverse=True):
        if len(chosen) < VIEW_LINES and (not chosen or size * VIEW_STEP <= chosen[-1]):
            chosen.append(size)
    return chosen[::-1]


@saved_kind
@dataclass(frozen=True, eq=False, repr=False)
class Curve:
    """Latency over working set and page policy, with the translation cost beside it.

    Attributes
    ----------
    chase : Sweep
        A dependent load on every cache line of the working set; axes ``size`` (bytes), ``pages``.
    translation : Sweep
        What translation adds at one node a base page; the same axes.
    view : list of int
        Working sets in bytes at which every page size was measured.
    """

    kind: ClassVar[str] = "curve"

    chase: Sweep
    translation: Sweep
    view: list[int]
    notes: list[str] = field(
        default_factory=list
    )  # policies that the machine does not offer, and how it would

    @property
    def policies(self) -> list[str]:
        """Page policies, in the order of asking."""
        return list(self.chase.axes["pages"])

    @property
    def host(self) -> dict[str, Any]:
        """Facts of the machine."""
        measured = (point for point in self.chase.points.values() if isinstance(point, Measurement))
        return next((point.host for point in measured), {})

    def to_numpy(self) -> npt.NDArray[Any]:
        """Return one row a point: the columns of `Sweep.to_numpy`, and the cost with its interval."""
        table = self.chase.to_numpy()
        costs = {key: figures(point) for key, point in self.translation.points.items()}
        nan = math.nan
        added = [costs.get((size, name), (nan,) * 3)[:3] for size, name in zip(table["size"].tolist(), table["pages"].tolist(), strict=True)]  # fmt: skip # noqa: E501
        kinds = [("translation_ns", "f8"), ("translation_low_ns", "f8"), ("translation_high_ns", "f8")]
        rows = [(*row, *cost) for row, cost in zip(table.tolist(), added, strict=True)]
        return np.array(rows, dtype=[*table.dtype.descr, *kinds])

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write `to_numpy` to a file; missing figures are empty."""
        with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            write_csv(file, self.to_numpy())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file that `load` reads."""
        save(self, path)

    def plot(self, ax: Axes | None = None, *, x: Literal["working_set", "page_size"] = "working_set") -> Axes:
        """Draw one view on the given Axes: latency over working set, or over page size."""
        from . import plot

        return plot.curve(self, ax, x)

    def figure(self) -> Figure:
        """Draw both views side by side."""
        from . import plot

        return plot.curve_figure(self)

    @property
    def setup(self) -> dict[str, dict[str, float]]:
        """Seconds of mapping, populating and the first passes by page policy: once for all its points."""
        found: dict[str, dict[str, float]] = {}
        for (_, name), point in self.chase.points.items():
            if isinstance(point, Measurement) and name not in found:
                found[name] = {step: taken for step, taken in point.setup.items() if step in REGION_STEPS}
                found[name]["mapped_bytes"] = point.params["mapped_bytes"]
        return found

    @property
    def title(self) -> str:
        """What was measured, in a few words."""
        span = self.chase.axes["size"]
        return f"curve from {format_size(span[0])} to {format_size(span[-1])} on {', '.join(self.policies)}"

    def _rows(self) -> Iterator[tuple[str, str]]:
        for name in self.policies:
            largest = [
                (s, p) for (s, n), p in self.chase.points.items() if n == name and isinstance(p, Measurement)
            ]
            if largest:
                size, point = max(largest, key=lambda pair: pair[0])
                cost = self.translation.points.get((size, name))
                added = f", translation {cost.cost:.1f} ns" if isinstance(cost, Translation) else ""
                yield name, f"{point.low:.1f} ns at {format_size(size)}{added}; {point.backing}"
        for note in self.notes:
            yield "not offered", note

    def __repr__(self) -> str:
        return "\n".join((f"<{self.title}", *(f"  {name}: {text}" for name, text in self._rows()))) + ">"

    def _repr_html_(self) -> str:
        return html_table(self.title, self._rows())

    def to_parts(self, put: Put) -> dict[str, Any]:
        """Plain values; each array goes to `put`."""
        sweeps = {"chase": self.chase, "translation": self.translation}
        parts = {name: one.to_parts(below(name, put)) for name, one in sweeps.items()}
        return {**parts, "view": self.view, "notes": self.notes}

    @classmethod
    def from_parts(cls, parts: dict[str, Any], get: Get) -> Self:
        """Read back what `to_parts` wrote."""
        sweeps = {
            name: Sweep.from_parts(parts[name], from_below(name, get)) for name in ("chase", "translation")
        }
        return cls(**sweeps, view=parts["view"], notes=parts["notes"])


REGION_STEPS = ("map", "populate", "collapse", "first_pass", "second_pass")


def curve(
    sizes: Iterable[Size] | None = None,
    pages: Iterable[str] | None = None,
    *,
    strict: bool = True,
    seed: int = 0,
    cpu: int | None = None,
    precision: float = 0.01,
    max_seconds: float = 0.3,
    on_error: Literal["keep", "raise"] = "keep",
    progress: bool | Callable[[int, int], None] = True,
) -> Curve:
    """Measure latency over working set and page policy, with the translation cost beside it.

    Every working set is measured on every policy twice: as a `chase` on each of its cache lines, and as a
    `translation` at one node a base page. Multi-size transparent huge pages are measured at the working
    sets of the second view only.

    Parameters
    ----------
    sizes : iterable of int or str, optional
        Working sets in bytes; 16 KiB to 1 GiB, four an octave, by default.
    pages : iterable of str, optional
        Page policies; base, thp and every hugetlb and mTHP size that this machine offers by default.
    strict, seed, cpu, precision
        As for `chase`.
    max_seconds : float
        Time for the timed part of each point, at most.
    on_error, progress
        As for `sweep`.

    Returns
    -------
    Curve
        ``.plot()``, ``.plot(x="page_size")``, ``.to_numpy()``, ``.save()``.

    Notes
    -----
    Isolates: nothing by itself; it shows caches and translation together, and translation alone. The result
    is of the guest's pages; a hypervisor may back them by smaller ones.
    """
    working_sets = sorted(
        {parse_size(size, "sizes") for size in (default_sizes() if sizes is None else sizes)}
    )
    names = default_policies() if pages is None else [find_policy(name).name for name in pages]
    if not working_sets or not names:
        raise ValueError("sizes and pages need at least one value each")
    if len(set(names)) < len(names):
        raise ValueError(f"pages={names} repeats a policy")
    view = view_sizes(working_sets)
    common = {"strict": strict, "seed": seed, "cpu": cpu, "precision": precision, "max_seconds": max_seconds}
    base = machine.base_page_size()
    asked: dict[str, list[Asked]] = {"chase": [], "translation": []}
    for name in names:
        few = pages is None and find_policy(name).kind == "mthp"
        for size in view if few else working_sets:
            arguments = {"size": size, "pages": name, **common}
            asked["chase"].append(Asked(probes.chase, (size, name), arguments))
            if size >= 2 * base:
                asked["translation"].append(Asked(probes.translation, (size, name), arguments))
    points = run_points([*asked["chase"], *asked["translation"]], on_error == "raise", progress, seed)
    axes: dict[str, list[Any]] = {"size": working_sets, "pages": names}
    made = {
        probe: Sweep(probe, axes, {ask.key: points[ask] for ask in asks}) for probe, asks in asked.items()
    }
    return Curve(**made, view=view, notes=not_offered())


def default_sizes() -> list[int]:
    """16 KiB to 1 GiB, four an octave."""
    return sizes("16KiB", "1GiB", 4)


def not_offered() -> list[str]:
    """Page policies that this machine does not offer, each with the command that would offer it."""
    return [str(policy) for policy in pages.page_policies() if not policy.offered]
