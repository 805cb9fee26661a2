"""Tables: one row a point, as NumPy, pandas and CSV."""

from __future__ import annotations

import csv
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .measurement import DERIVED, Measurement, Translation
from .refusal import Refusal
from .result import Result, StrPath, replacing

if TYPE_CHECKING:
    import pandas as pd


# Steps of the set-up that all points on a region share, and the one that is none.
REGION_STEPS = ("map", "populate", "collapse", "first_pass", "second_pass")
TIMED_STEP = "measure"

LARGEST_INT64 = (1 << 63) - 1


PointResult = Measurement | Translation | Refusal

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


def figures(point: PointResult) -> dict[str, Any]:
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
        "proof": f"simulated: {run.simulated}" if run.simulated else run.backing.proof,
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


def point_columns(points: Sequence[PointResult | None]) -> dict[str, list[Any]]:
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
