"""Results as text and as CSV, by their type."""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from typing import TextIO

from ..memory.backing import Backing
from ..probes.fault import PageTimes
from ..probes.shootdown import ShootdownTimes
from ..programs.trial import Trial
from ..record import RECORDS, access_word
from ..results.measurement import Measurement, Translation
from ..results.refusal import Refusal
from ..results.result import Result
from ..results.table import REGION_STEPS, PointResult, Table, own_setup
from ..results.words import format_number, hazard_rows
from ..sweeps.axes import axis_text
from ..sweeps.curve import Curve
from ..sweeps.fault_parts import FaultParts
from ..sweeps.sweep import Sweep, complaints
from ..units import Interval, approximate_size, format_average, format_seconds, format_size
from .tables import print_table


@functools.singledispatch
def print_result(result: object) -> None:
    """Print a result of any type."""
    print(result)


@functools.singledispatch
def write_csv(result: Result, file: TextIO) -> None:
    """Write a result of any type as a table."""
    check_table(result)


def check_table(result: Result) -> None:
    """Raise a ValueError for a result that is no table."""
    if write_csv.dispatch(type(result)) is write_csv.dispatch(object):
        raise ValueError(f"a result of kind {result.kind!r} is no table: --json prints every figure")


@write_csv.register(Table)
def write_table(result: Table, file: TextIO) -> None:
    """Its own rows."""
    result.write_csv(file)


@write_csv.register(FaultParts)
def write_parts(result: FaultParts, file: TextIO) -> None:
    """A row a part."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("part", "ns", "per", "how"))
    writer.writerows((part.name, part.ns, part.per, part.how) for part in result.parts)


@write_csv.register(Measurement)
@write_csv.register(Translation)
def write_point(result: Measurement | Translation, file: TextIO) -> None:
    """One row, as of a sweep over one value."""
    probe = result.probe if isinstance(result, Measurement) else result.kind
    record = RECORDS.get(probe)
    name = record.first if record and record.first in result.params else "size"
    how_much, pages = result.params.get(name, result.params.get("bytes")), result.backing.asked
    Sweep(probe, {name: [how_much], "pages": [pages]}, {(how_much, pages): result}).write_csv(file)


@print_result.register(Curve)
def print_curve(curve: Curve) -> None:
    """Rows at the powers of two; the others are in the file, the picture and --csv."""
    sizes = curve.chase.axes["size"]
    shown = {size for size in sizes if size & (size - 1) == 0} or set(sizes)
    rows = []
    for values, point in curve.chase:
        cost = curve.translation.points.get((values["size"], values["pages"]))
        if values["size"] in shown:
            cells = {"working set": format_size(values["size"]), "pages": values["pages"]}
            rows.append({**cells, **_point_cells(point), **_cost_cells(cost)})
    print(f"{_where(curve)}nanoseconds per access")
    print_table(rows, spare=("set-up", "translation 95 %"))
    for name, (_, point) in curve.largest.items() if not curve.simulated else ():
        mapped = approximate_size(point.params["mapped_bytes"])
        steps = [f"{step} {format_seconds(s)}" for step, s in point.setup.items() if step in REGION_STEPS]
        print(f"{name}: {mapped} mapped once: {', '.join(steps)}")
    for name, sentence in curve.effective.items():
        print(f"{name}: {sentence}")
    if curve.anatomy is not None:
        print(f"levels: {curve.anatomy.sentences()[0]}")
    _print_complaints(curve.chase, curve.translation)
    for name, text in hazard_rows(curve.hazards):
        print(f"{name}: {text}")
    for note in curve.notes:
        print(f"not offered here: {note}")


@print_result.register(Sweep)
def print_sweep(sweep: Sweep) -> None:
    """A row a point, then what was wrong with some."""
    rows = []
    for values, point in sweep:
        cells = {name.replace("_", " "): axis_text(name, value) for name, value in values.items()}
        figures = _point_cells(point)
        if isinstance(point, Translation):
            figures = {"spread" if name == "low" else name: text for name, text in figures.items()}
            figures |= _cost_cells(point)
        rows.append({**cells, **figures, **_count_cells(point)})
    print(
        f"{_where(sweep)}{sweep.probe}: nanoseconds per {access_word(sweep.probe)}{_same_everywhere(sweep)}"
    )
    print_table(rows, spare=("set-up",))
    _print_complaints(sweep)


def _same_everywhere(sweep: Sweep) -> str:
    """What was the same at every point."""
    measured = [point for point in sweep.points.values() if not isinstance(point, Refusal)]
    if not measured:
        return ""
    varied = {*sweep.axes, "size" if "size" in sweep.axes else ""}
    texts = [dict(point.parameters) for point in measured]
    same = {
        name: text
        for name, text in texts[0].items()
        if name not in varied and all(one.get(name) == text for one in texts)
    }
    return "".join(f"; {name.replace('_', ' ')} {text}" for name, text in same.items())


def _print_complaints(*swept: Sweep) -> None:
    points = sum(map(len, swept))
    for (what, text), count in complaints(*swept).items():
        print(f"{what} at {count} of {points} points: {text}")


def _point_cells(point: PointResult) -> dict[str, str]:
    """Cells of the chase, or of the spread nodes."""
    if isinstance(point, Refusal):
        return {"proved": "refused"}
    run = point.spread if isinstance(point, Translation) else point
    if isinstance(run, PageTimes | ShootdownTimes):
        return _single_times_cells(run)
    return {
        "proved": _proved_cell(run.backing),
        "low": format_number(run.low),
        "95 %": _interval_cell(run.interval),
        "median": format_number(run.median),
        **({} if run.simulated else {"set-up": format_seconds(own_setup(run))}),
    }


def _count_cells(point: PointResult) -> dict[str, str]:
    """What the probe counted that belongs beside the time."""
    if not isinstance(point, Measurement) or not point.backing.page_size:
        return {}
    page = format_size(point.backing.page_size)
    counted = {name: point.counts.get(name) for name in ("pages_per_request", "hot_pages")}
    return {
        name.replace("_", " "): f"{found[page]:,.4g}" if found[page] < 1000 else f"{found[page]:,}"
        for name, found in counted.items()
        if isinstance(found, Mapping) and page in found
    }


def _single_times_cells(run: PageTimes | ShootdownTimes) -> dict[str, str]:
    """Cells of times that are of one access each."""
    cells = {"median": format_number(run.median), "mean": format_number(run.mean), "times": str(run.ns.size)}
    if isinstance(run, ShootdownTimes):
        lost = run.others_median
        return {**cells, "others lost": "" if lost is None else format_number(lost)}
    expected = run.faults["expected"]
    return {
        "proved": _proved_cell(run.backing),
        **cells,
        "faults": f"{run.faults['minor']}"
        + (f" + {run.faults['major']} major" if run.faults["major"] else ""),
        "expected": "" if expected is None else str(expected),
    }


def _where(result: Result) -> str:
    """That no real machine was measured, if that is so: the first thing that is said."""
    return f"simulated: {result.simulated}; " if result.simulated else ""


def _proved_cell(backing: Backing) -> str:
    if backing.page_size is None:
        return "unknown" if backing.proof == "unknown" else "mixed"
    return format_size(backing.page_size) + (" *" if backing.proof == "consistent" else "")


def _cost_cells(cost: PointResult | None) -> dict[str, str]:
    if not isinstance(cost, Translation):
        return {}
    return {"translation": format_number(cost.cost), "translation 95 %": _interval_cell(cost.interval)}


def _interval_cell(interval: Interval) -> str:
    return "none" if interval is None else f"{format_number(interval[0])} .. {format_number(interval[1])}"


@print_result.register(Trial)
def print_trial(trial: Trial) -> None:
    """The verdict, a row a variant, then what a reader must know."""
    print(f"{trial.title}: {trial.verdict}")
    print_table(
        [_variant_cells(trial, name) for name in trial.variants], spare=("peak", "kernel", "CPU 95 %")
    )
    for name, text in trial.remarks():
        print(f"{name}: {text}")


def _variant_cells(trial: Trial, name: str) -> dict[str, str]:
    """Medians of a variant, and its times over those of the reference."""
    seconds = {"wall": "wall", "CPU": "cpu", "kernel": "system"}
    cells = {heading: format_seconds(trial.median(field, name) or 0.0) for heading, field in seconds.items()}
    peak = trial.median("peak", name)
    pages = {"pages": str(trial.backing[name])} if name in trial.backing else {}
    ratios: dict[str, str] = {}
    if name in trial.pairs:
        for heading, (ratio, interval) in (("wall", trial.pairs[name].wall), ("CPU", trial.pairs[name].cpu)):
            ratios[f"{heading} times"] = f"{ratio:.3f}"
            ratios[f"{heading} 95 %"] = "none" if interval is None else "{:.3f} .. {:.3f}".format(*interval)
    return {
        "variant": name,
        **cells,
        "faults": format_average(trial.median("minor", name)),
        "peak": "unknown" if peak is None else approximate_size(peak),
        **(pages or {"on huge pages": trial.huge_words(name)}),
        **ratios,
    }
