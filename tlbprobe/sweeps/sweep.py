"""Sweeps: grids of measurements, every point with its proof or its reason.

Points run in seeded random order, so that a machine that drifts shows as noise and not as a shape, with those
that differ only in their pages next to each other; memory is mapped once for each page policy and reused.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from ..declared import FieldError, Get, Keys, Put, Spec, below, change_each, form_of, from_below
from ..probes.fault import PageTimes
from ..probes.shootdown import ShootdownTimes
from ..results.measurement import Measurement, Translation
from ..results.progress import Progress
from ..results.refusal import Refusal
from ..results.table import TEXTS, PointResult, Table, extra_named, point_columns, tabulate
from ..results.words import refused_rows
from .axes import PointKey, axis_text, split_axes
from .run import Asked, run_points

if TYPE_CHECKING:
    import xarray as xr


POINTS: dict[str, type[PointResult]] = {
    one.kind: one for one in (Measurement, PageTimes, ShootdownTimes, Translation, Refusal)
}


AxisValue = Annotated[bool | int | float | str, Spec()] | None
IN_FILE = Keys(probe=str, axes=dict[str, Any], points=list[dict[str, Any]], hosts=list[dict[str, Any]])
POINT_IN_FILE = Keys(key=tuple[AxisValue, ...], kind=str, data=dict[str, Any])


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
    axes: Annotated[dict[str, list[Any]], dict[str, list[AxisValue]]]
    points: dict[PointKey, PointResult]

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in self.points:
            if len(key) != len(self.axes) or not all(map(operator.contains, self.axes.values(), key)):
                raise FieldError(f"holds one at {key}, which is not on the axes", "points")

    def __getitem__(self, key: Any) -> PointResult:
        return self.points[key if isinstance(key, tuple) else (key,)]

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[tuple[dict[str, Any], PointResult]]:
        """Points in the order of the axes, each with its values by axis."""
        for key in itertools.product(*self.axes.values()):
            if key in self.points:
                yield dict(zip(self.axes, key, strict=True)), self.points[key]

    @property
    def refused(self) -> dict[PointKey, Refusal]:
        """Points that could not be measured."""
        return {key: point for key, point in self.points.items() if isinstance(point, Refusal)}

    @property
    def host(self) -> dict[str, Any]:
        """Facts of the machine that measured the first point; empty if there is none."""
        measured = (point for point in self.points.values() if not isinstance(point, Refusal))
        return next((point.host for point in measured), {})

    @property
    def nothing(self) -> str:
        """That no point could be measured, if that is so."""
        return "no point could be measured" if len(self.refused) == len(self) else ""

    @property
    def misused(self) -> bool:
        """Whether every point was asked for wrongly."""
        errors = {point.error for point in self.refused.values()}
        return bool(self.nothing) and errors <= {"ValueError", "TypeError"}

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

    @property
    def subject(self) -> str:
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

        def shared(host: Any) -> int:
            if host not in hosts:
                hosts.append(host)
            return hosts.index(host)

        points = []
        for number, (key, point) in enumerate(self.points.items()):
            parts = _with_host(point.to_parts(below(str(number), put)), shared)
            points.append({"key": list(key), "kind": point.kind, "data": parts})
        return {"probe": self.probe, "axes": self.axes, "points": points, "hosts": hosts}

    @classmethod
    def from_parts(cls, parts: Any, get: Get) -> Self:
        """Read back what `to_parts` wrote."""
        saved = form_of(IN_FILE).take(parts)
        hosts = {str(number): host for number, host in enumerate(saved["hosts"])}

        def read(number: int, entry: Any) -> tuple[PointKey, PointResult]:
            entry = form_of(POINT_IN_FILE).take(entry)
            if entry["kind"] not in POINTS:
                raise FieldError("is of none of the kinds of points", "kind")
            parts = _with_host(entry["data"], lambda host: hosts.get(str(host)))
            return entry["key"], POINTS[entry["kind"]].from_parts(parts, from_below(str(number), get))

        points = change_each(enumerate(saved["points"]), read, "points")
        return cls(saved["probe"], saved["axes"], dict(points.values()))


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


def _with_host(parts: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The parts of a point, with another host of each measurement in it."""
    runs = {
        name: _with_host(one, change)
        for name, one in parts.items()
        if name in ("spread", "packed") and type(one) is dict
    }
    return {**parts, **runs, **({"host": change(parts["host"])} if "host" in parts else {})}


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
    grid, fixed = split_axes(probe, axes)
    keys = list(itertools.product(*grid.values()))
    asked = [Asked(probe, key, {**fixed, **dict(zip(grid, key, strict=True))}) for key in keys]
    points = run_points(asked, on_error, progress, order_seed)
    return Sweep(probe.__name__, grid, {ask.key: points[ask] for ask in asked})
