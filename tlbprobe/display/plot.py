"""Pictures: every function draws on given Axes, or on new ones, and returns them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ..checks import check_choice
from ..hierarchy.anatomy import Anatomy, Part, format_reach
from ..machine import paging
from ..probes.fault import PageTimes
from ..probes.shootdown import ShootdownTimes
from ..programs.stat import ProgramRun
from ..programs.trial import Trial
from ..record import access_word, count_parameters, size_parameters
from ..results.measurement import Measurement, Translation
from ..results.result import Result
from ..results.words import format_ns, format_time, recorded_host
from ..sweeps.axes import axis_text
from ..sweeps.curve import Curve
from ..sweeps.fault_parts import FaultParts
from ..sweeps.sweep import Sweep
from ..units import format_count, format_seconds, format_size, page_suffix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Okabe and Ito's colours, which most kinds of colour blindness tell apart; base pages in black.
COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")  # the next one where the colours are used up
GREY = "#666666"
BAND = 0.18  # opacity of an interval
FASTEST_NS = 5.0  # nanoseconds: where a log axis of single times begins, below what a clock can see of one
CLOCKS = 20.0  # nanoseconds: single times up to here are the clock's, and no mode of anything else

Structured = npt.NDArray[Any]
LOW_COLUMNS = ("low_ns", "interval_low_ns", "interval_high_ns")  # columns of an estimate and its interval


def picture(result: Result, ax: Axes | None = None, **view: Any) -> Axes:
    """Draw a result on Axes; where no real machine was measured, the title says so, or the corner above."""
    ax = draw(result, ax, **view)
    said = f"simulated: {result.simulated}"
    if result.simulated and said not in ax.get_title(loc="left"):
        where: dict[str, Any] = {"ha": "right", "va": "bottom", "color": COLOURS[2]}
        ax.text(1, 1.01, said, fontsize="small", transform=ax.transAxes, **where)
    return ax


def whole_picture(result: Result) -> Figure:
    """Draw all that there is to see of a result; where no real machine was measured, that stands above."""
    figure = draw_figure(result)
    if result.simulated:
        where: dict[str, Any] = {"ha": "right", "va": "top", "color": COLOURS[2]}
        figure.text(0.995, 0.995, f"simulated: {result.simulated}", fontsize="medium", **where)
    return figure


@functools.singledispatch
def draw(result: object, ax: Axes | None = None) -> Axes:
    """Draw a result of any type on Axes."""
    raise TypeError(f"there is no picture of a {type(result).__name__}")


@functools.singledispatch
def draw_figure(result: object) -> Figure:
    """Draw all that there is to see of a result: of most, what `draw` shows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained", dpi=130)
    draw(result, figure.add_subplot())
    return figure


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(7, 4.5), layout="constrained")[1]


def _finish(ax: Axes, title: str) -> Axes:
    """Leave what carries data: two axes and a faint grid."""
    ax.set_title(title, loc="left", fontsize="medium")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    return ax


def _size_axis(ax: Axes, sizes: Sequence[float], label: str) -> None:
    """Label a log axis in bytes: at powers of 2, 4, 16 ..., whichever are few enough to be read."""
    from matplotlib.ticker import FixedLocator, NullLocator

    ax.set_xscale("log", base=2)
    first, last = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    step = next(step for step in (1, 2, 4, 8, 16) if (last - first) // step <= 9)
    ticks = [2.0**power for power in range(first, last + 1) if power % step == 0]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(ticks, [page_suffix(int(tick)) for tick in ticks])
    ax.set_xlim(min(sizes) / 1.4, max(sizes) * 1.4)
    ax.set_xlabel(label)


def _count_axis(ax: Axes, counts: Sequence[float], label: str) -> None:
    """Label a log axis of counts: at powers of 10, and at 2 and 5 where these are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set_xscale("log", base=10)
    steps = (1.0,) if max(counts) > 1000 * min(counts) else (1.0, 2.0, 5.0)
    ax.xaxis.set_major_locator(LogLocator(base=10, subs=steps))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda count, _: format_count(round(count))))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlim(min(counts) / 1.4, max(counts) * 1.4)
    ax.set_xlabel(label)


def _log_ns(ax: Axes, values: npt.ArrayLike) -> None:
    """A log axis of nanoseconds with plain numbers: at 1, 2 and 5, or more of them on a narrow range."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    ax.set_yscale("log")
    known = np.asarray(values)[np.nan_to_num(values) > 0]
    octaves = math.log2(known.max() / known.min()) if known.size else 10
    steps = (1.0, 2.0, 5.0) if octaves > 4 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    ax.yaxis.set_major_locator(LogLocator(base=10, subs=steps) if octaves > 2 else MaxNLocator(6))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda ns, _: f"{ns:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_ylim((known.min() / 1.3, known.max() * 1.5) if known.size else (1, 10))
    ax.set_ylabel("ns per access")


def _cost_axis(ax: Axes, costs: Structured) -> None:
    """Linear below 1 ns, where the cost is noise around zero; a log axis above."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ax.set_yscale("symlog", linthresh=1.0, linscale=0.4)
    steps = [step * 10**power for power in range(5) for step in (1, 2, 5)]
    ax.yaxis.set_major_locator(FixedLocator([*(-step for step in steps), 0, *steps]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda ns, _: f"{ns:g}"))
    known = costs[np.isfinite(costs)]
    if known.size:
        ax.set_ylim(min(-0.5, known.min() * 1.5), max(2.0, known.max() * 1.5))
    ax.axhline(0, color=GREY, linewidth=0.8)
    ax.set_ylabel("ns per access")


def _estimates(table: Structured) -> Structured:
    """Every estimate, and both ends of its interval."""
    return np.concatenate([table[name] for name in LOW_COLUMNS])


def _line(
    ax: Axes, x: Structured, rows: Structured, names: tuple[str, str, str], style: dict[str, Any]
) -> None:
    """One line with the band of its interval; `names` are the columns of y and of the interval."""
    y, low, high = (rows[name] for name in names)
    ax.plot(x, y, **style)
    ax.fill_between(x, low, high, color=style["color"], alpha=BAND, linewidth=0)


def _style(number: int, of: int, label: str) -> dict[str, Any]:
    """Earlier lines are broader, so that equal ones on top of them do not hide them."""
    above = min(of - 1 - number, 6)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 3.5 + 0.8 * above,
        "linewidth": 1.1 + 0.6 * above,
        "label": label,
    }


# --- one measurement -------------------------------------------------------------------------------------


@draw.register(Measurement)
def draw_slices(measurement: Measurement, ax: Axes | None = None) -> Axes:
    """Draw the slices in time order, disturbed ones hollow, with the low estimate and the median."""
    ax = _axes(ax)
    _draw_slices(ax, measurement, "")
    return _finish_slices(ax, measurement.ns, measurement.title)


@draw.register(Translation)
def draw_translation(result: Translation, ax: Axes | None = None) -> Axes:
    """Draw the slices of both runs of a translation."""
    ax = _axes(ax)
    _draw_slices(ax, result.spread, "spread: ")
    _draw_slices(ax, result.packed, "packed: ")
    both = np.concatenate([result.spread.ns, result.packed.ns])
    return _finish_slices(ax, both, f"{result.title}: {format_ns(result.cost)}")


def _draw_slices(ax: Axes, run: Measurement, name: str) -> None:
    order = np.arange(run.ns.size)
    clean = ~run.disturbed
    (dots,) = ax.plot(order[clean], run.ns[clean], ".", markersize=3, alpha=0.6)
    colour = dots.get_color()
    ax.plot(order[~clean], run.ns[~clean], "o", markersize=3, mfc="none", mec=colour, alpha=0.5)
    ax.axhline(run.low, color=colour, label=f"{name}low {format_ns(run.low)}")
    ax.axhline(run.median, color=colour, linestyle=":", label=f"{name}median {format_ns(run.median)}")
    if run.interval:
        ax.axhspan(*run.interval, color=colour, alpha=BAND, linewidth=0)


def _finish_slices(ax: Axes, ns: Structured, title: str) -> Axes:
    _log_ns(ax, ns)
    ax.set_xlabel("slice, in time order (hollow: visibly disturbed)")
    ax.legend(frameon=False)
    return _finish(ax, title)


# --- single accesses -------------------------------------------------------------------------------------


@draw.register(PageTimes)
def draw_page_times(result: PageTimes, ax: Axes | None = None) -> Axes:
    """Draw each time over the place that was touched: where pages and tables begin shows as a pattern."""
    ax = _axes(ax)
    several = bool(result.thread.any())
    for thread in np.unique(result.thread):
        chosen = result.thread == thread
        at = result.index[chosen]
        size = 2.0 if at.size > 5000 else 3.5
        label = f"thread {thread}" if several else None
        ax.plot(at, _positive(result.ns[chosen]), ".", markersize=size, alpha=0.5, label=label)
    if several:
        ax.legend(frameon=False)
    _log_time(ax, result.ns, "y")
    ax.set_ylabel(f"time of one {result.unit}")
    ax.set_xlabel(f"place, in steps of {format_size(result.params['step'])}")
    return _finish(
        ax, f"{result.params['kind']} on {result.backing.asked!r} pages, in the order of addresses"
    )


def time_distribution(result: PageTimes, ax: Axes | None = None) -> Axes:
    """Draw how often each time came, both axes logarithmic, with the modes named."""
    ax = _axes(ax)
    several = {f"{result.params['kind']}, a {result.unit}": result.ns}
    if result.after.size:
        several["first access after populating, a touch"] = result.after
    _histograms(ax, several)
    ax.set_xlabel("time" if result.after.size else f"time of one {result.unit}")
    return _finish(ax, "How often it took how long")


@draw_figure.register(PageTimes)
def page_times_figure(result: PageTimes) -> Figure:
    """Draw the distribution of the times, and each over its place."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.8), layout="constrained", dpi=130)
    left, right = figure.subplots(1, 2)
    time_distribution(result, left)
    draw_page_times(result, right)
    figure.suptitle(result.title, x=0.01, ha="left", fontsize="medium", color=GREY)
    return figure


@draw.register(FaultParts)
def draw_fault_parts(result: FaultParts, ax: Axes | None = None) -> Axes:
    """Draw the median of a first write by page size: a whole page, and as much memory as a base page."""
    ax = _axes(ax)
    writes = [run for name, run in result.runs.items() if name.split(" ")[0] == "write"]
    known = {run.backing.page_size: run for run in writes if run.backing.page_size}
    sizes = sorted(known)
    runs = [known[size] for size in sizes]
    if runs:
        ax.plot(sizes, [run.median for run in runs], "o-", color=COLOURS[1], label="a page")
        shares = [run.median * paging.base_page_size() / run.bytes_per_time for run in runs]
        ax.plot(sizes, shares, "s-", color=COLOURS[2], label="as much as a base page")
        _size_axis(ax, sizes, "page size, read back from the kernel")
        _log_time(ax, np.array([run.median for run in runs] + shares), "y")
        ax.legend(frameon=False)
    ax.set_ylabel("first write")
    return _finish(ax, result.title)


@draw.register(ShootdownTimes)
def draw_shootdown(result: ShootdownTimes, ax: Axes | None = None) -> Axes:
    """Draw the distributions of the caller's times, and of what the other threads lost."""
    ax = _axes(ax)
    several = {"caller": result.ns}
    if result.others.size:
        several["lost by another thread"] = result.others.ravel()
    _histograms(ax, several)
    ax.set_xlabel("time of one call")
    return _finish(ax, result.title)


def _positive(ns: Structured) -> Structured:
    """Times on a log axis: what the clock cannot see lies at its lower end."""
    return np.maximum(ns, FASTEST_NS)


def _histograms(ax: Axes, several: Mapping[str, Structured]) -> None:
    """How often each time came, on two log axes, by what it is the time of."""
    every = _positive(np.concatenate(list(several.values())))
    low, high = every.min(), max(every.max(), 2 * FASTEST_NS)
    bars = max(12, min(90, 6 * int(np.log2(high / low) + 2)))
    edges = np.geomspace(low / 1.02, high * 1.02, bars + 1)
    for (label, ns), colour in zip(several.items(), COLOURS[1:], strict=False):
        counts, _ = np.histogram(_positive(ns), edges)
        ax.stairs(counts, edges, fill=True, color=colour, alpha=0.45, label=label)
        _name_peaks(ax, counts, np.sqrt(edges[:-1] * edges[1:]))
    ax.set_yscale("log")
    ax.set_ylim(0.7, ax.get_ylim()[1] * 2)
    ax.set_ylabel("times")
    _log_time(ax, every, "x")
    if len(several) > 1:
        ax.legend(frameon=False)


def _name_peaks(ax: Axes, counts: npt.NDArray[np.int64], middles: Structured) -> None:
    for peak in _peaks(np.where(middles > CLOCKS, counts, 0)):
        ax.annotate(
            format_time(middles[peak]),
            (middles[peak], counts[peak]),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize="small",
        )


def _peaks(counts: npt.NDArray[np.int64]) -> list[int]:
    """Bars that stand out, with a hundredth of all times around them, and have the room to be named."""
    found: list[int] = []
    for bar in np.argsort(-counts, kind="stable").tolist():
        around = counts[max(0, bar - 3) : bar + 4]
        stands_out = counts[bar] == around.max() > 0 and around.sum() >= counts.sum() / 100
        if stands_out and all(abs(bar - other) > len(counts) / 10 for other in found):
            found.append(bar)
    return found


def _log_time(ax: Axes, ns: Structured, which: Literal["x", "y"]) -> None:
    """A log axis of times, each with its unit: at powers of ten, and between them where these are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = _positive(ns).min() / 1.5, _positive(ns).max() * 2
    steps = (1.0,) if high > 1000 * low else (1.0, 3.0) if high > 30 * low else (1.0, 2.0, 5.0)
    axis = ax.xaxis if which == "x" else ax.yaxis
    (ax.set_xscale if which == "x" else ax.set_yscale)("log")
    axis.set_major_locator(LogLocator(base=10, subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda time, _: format_seconds(time * 1e-9)))
    axis.set_minor_formatter(NullFormatter())
    (ax.set_xlim if which == "x" else ax.set_ylim)(low, high)


# --- a sweep ---------------------------------------------------------------------------------------------


@draw.register(Sweep)
def draw_sweep(result: Sweep, ax: Axes | None = None) -> Axes:
    """Draw the low estimate over the first axis of numbers, a line for each value of the others."""
    ax = _axes(ax)
    table = result.to_numpy()
    if not result.axes:
        raise ValueError("a sweep without an axis is one point: plot that, as in result[()].plot()")
    x = next((name for name in result.axes if table[name].dtype.kind in "iuf"), next(iter(result.axes)))
    at = table[x] if table[x].dtype.kind in "iuf" else np.array([axis_text(x, value) for value in table[x]])
    # Single accesses have no low estimate.
    names = LOW_COLUMNS if np.isfinite(table["low_ns"]).any() else ("median_ns",) * 3
    others = [name for name in result.axes if name != x]
    keys = table[others].tolist() if others else [()] * len(table)
    lines = list(dict.fromkeys(keys))
    for number, key in enumerate(lines):
        chosen = [other == key for other in keys]
        label = ", ".join(axis_text(name, value) for name, value in zip(others, key, strict=True))
        _line(ax, at[chosen], table[chosen], names, _style(number, len(lines), label))
    numeric = table[x].dtype.kind in "iuf"
    if x in size_parameters() and numeric:
        _size_axis(ax, table[x].tolist(), x.replace("_", " "))
    elif x in count_parameters() and numeric:
        _count_axis(ax, table[x].tolist(), x)
    else:
        ax.set_xlabel(x.replace("_", " "))
    if any(isinstance(point, Translation) for point in result.points.values()):
        _cost_axis(ax, table["low_ns"])
    else:
        _log_ns(ax, np.concatenate([table[name] for name in names]))
    ax.set_ylabel(f"ns per {access_word(result.probe)}")
    if others:
        ax.legend(frameon=False, title=", ".join(others).replace("_", " "))
    return _finish(ax, result.title)


# --- the curve -------------------------------------------------------------------------------------------

COST_COLUMNS = ("translation_ns", "translation_low_ns", "translation_high_ns")


@draw.register(Curve)
def draw_curve(
    result: Curve, ax: Axes | None = None, x: Literal["working_set", "page_size"] = "working_set"
) -> Axes:
    """Draw one view of a curve."""
    check_choice("x", x, ("working_set", "page_size"))
    ax = _axes(ax)
    if x == "page_size":
        return _over_page_size(result, ax)
    _over_working_set(result, ax)
    return _add_costs(result, ax)


@draw_figure.register(Curve)
def curve_figure(result: Curve) -> Figure:
    """Draw both views: latency and translation cost over working set, latency over page size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6.8), layout="constrained", dpi=130)
    grid = figure.add_gridspec(2, 2, height_ratios=(1.5, 1), width_ratios=(1.3, 1))
    latency = figure.add_subplot(grid[0, 0])
    cost = figure.add_subplot(grid[1, 0], sharex=latency)
    _over_working_set(result, latency)
    _costs_over_working_set(result, cost)
    latency.set_xlabel("")
    latency.tick_params(labelbottom=False)
    _over_page_size(result, figure.add_subplot(grid[:, 1]))
    figure.suptitle(_caption(result), x=0.01, ha="left", fontsize="medium", color=GREY)
    return figure


def _caption(result: Curve) -> str:
    """Where and when."""
    first = next((point for _, point in result.largest.values()), None)
    if first is None:
        return "nothing could be measured"
    facts = {fact.get("name"): fact.get("value") for fact in result.host.get("facts", ())}
    words = [facts.get("cpu.name"), facts.get("cpu.microarchitecture")]
    if facts.get("virtualisation.guest"):
        words.append("virtual machine")
    return ", ".join(str(word) for word in (*words, first.started[:10], f"tlbprobe {first.version}") if word)


def _lines(result: Curve) -> list[tuple[Structured, dict[str, Any]]]:
    """Rows and style of each policy that was asked for at every working set; of others if there is none."""
    table = result.to_numpy()
    of_policy = {name: table[table["pages"] == name] for name in result.policies}
    most = max(len(rows) for rows in of_policy.values())
    drawn = {name: rows for name, rows in of_policy.items() if len(rows) == most}
    return [
        (rows, _style(number, len(drawn), _policy_label(name, rows)))
        for number, (name, rows) in enumerate(drawn.items())
    ]


def _policy_label(name: str, rows: Structured) -> str:
    """A policy, the pages that it had, and how much of it is missing."""
    measured = np.isfinite(rows["low_ns"])
    if not measured.any():
        return f"{name}: refused"
    found = np.unique(rows["page_size"][measured])  # NaN where the pages are mixed
    pages = f"{format_size(int(found[0]))} pages" if len(found) == 1 and found[0] > 0 else "mixed pages"
    refused = np.count_nonzero(~measured)
    return f"{name} ({pages}{f', {refused} points refused' if refused else ''})"


def _over_working_set(result: Curve, ax: Axes) -> Axes:
    for rows, style in _lines(result):
        _line(ax, rows["size"], rows, LOW_COLUMNS, style)
    table = result.to_numpy()
    _size_axis(ax, table["size"].tolist(), "working set")
    _log_ns(ax, _estimates(table))
    ax.legend(**_legend(ax))
    return _finish(ax, "Latency of a dependent load, one node a cache line")


def _legend(ax: Axes) -> dict[str, Any]:
    """In the corner that curves leave free."""
    many = len(ax.get_legend_handles_labels()[1]) > 5
    return {"frameon": False, "loc": "upper left", "fontsize": "small" if many else "medium"}


def _add_costs(result: Curve, ax: Axes) -> Axes:
    """Dashed on the axes of the latency, in the same nanoseconds; what is below them is close to nothing."""
    handles, labels = ax.get_legend_handles_labels()
    for rows, style in _lines(result):
        ax.plot(
            rows["size"], rows["translation_ns"], color=style["color"], linestyle=(0, (4, 2)), linewidth=1
        )
    handles += ax.plot([], [], color=GREY, linestyle=(0, (4, 2)), linewidth=1)
    ax.legend(handles, [*labels, "dashed: translation alone"], **_legend(ax))
    return ax


def _costs_over_working_set(result: Curve, ax: Axes) -> Axes:
    for rows, style in _lines(result):
        _line(ax, rows["size"], rows, COST_COLUMNS, style)
    table = result.to_numpy()
    _size_axis(ax, table["size"].tolist(), "working set")
    _cost_axis(ax, table["translation_ns"])
    drawn = [words for words, draw in REACHES.items() if draw(result, ax)]
    if result.simulated:
        drawn = [words.replace("CPUID claims it", "it is given") for words in drawn]
    if drawn:
        ax.set_xlabel(f"working set ({'; '.join(drawn)})")
    return _finish(ax, "What translation adds: one node a base page, less the same lines side by side")


def _measured_reach(result: Curve, ax: Axes) -> bool:
    """A band where each TLB level ends by the anatomy, once a size of translations; whether there is any.

    Huge pages of which the TLB holds small parts end where base pages do.
    """
    first, last = ax.get_xlim()
    seen: set[int] = set()
    drawn = False
    for rows, style in _lines(result):
        part = _data_part(result, rows["pages"][0])
        unit = (part and part.unit) or 0
        if unit in seen:
            continue
        seen.add(unit)
        for number, level in enumerate(part.levels if part else (), 1):
            low, high = (entries * unit for entries in level.entries.range or (0, 0))
            if first < low and high < last:
                ax.axvspan(low, max(high, low * 1.01), color=style["color"], alpha=BAND, linewidth=0)
                _mark(ax, low, f"L{number}, {page_suffix(unit)}", style["color"], line=low == high)
                drawn = True
    return drawn


def _data_part(result: Curve, policy: str) -> Part | None:
    """What the anatomy found on the data side of a policy."""
    parts = result.anatomy.parts if result.anatomy else ()
    return next((part for part in parts if (part.name, part.pages) == ("data", policy) and part.levels), None)


def _claimed_reach(result: Curve, ax: Axes) -> bool:
    """Where each TLB level ends by what CPUID claims, dotted, once for each page size that was proved.

    Only where nothing was measured: a guest's huge pages may be far from what the TLB holds.
    """
    host = recorded_host(result.host)
    first, last = ax.get_xlim()
    seen: set[float] = set()
    drawn = False
    for rows, style in _lines(result):
        if _data_part(result, rows["pages"][0]):
            continue
        for page in set(rows["page_size"][rows["page_size"] > 0].tolist()) - seen:
            seen.add(page)
            for level, reach in ({} if host is None else host.tlb_reach(int(page))).items():
                if first < reach < last:
                    _mark(ax, reach, f"L{level}, {page_suffix(int(page))}", style["color"])
                    drawn = True
    return drawn


REACHES = {
    "bands: TLB reach as measured": _measured_reach,
    "dotted: TLB reach by page size, as CPUID claims it": _claimed_reach,
}


def _mark(ax: Axes, x: float, text: str, color: str, *, line: bool = True) -> None:
    if line:
        ax.axvline(x, color=color, linestyle=":", linewidth=1.1)
    ax.annotate(
        text,
        (x, 0.02),
        xycoords=("data", "axes fraction"),
        xytext=(3, 0),
        textcoords="offset points",
        fontsize="x-small",
        color=color,
    )


def _over_page_size(result: Curve, ax: Axes) -> Axes:
    """One line a working set, whose size stands at its right end."""
    from matplotlib import colormaps

    table = result.to_numpy()
    known = table[
        np.isfinite(table["low_ns"]) & (table["page_size"] > 0) & np.isin(table["size"], result.view)
    ]
    source = "as it is given" if result.simulated else "read back from the kernel"
    _page_size_axis(ax, known, source)
    _log_ns(ax, _estimates(known))
    shades = colormaps["viridis_r"](np.linspace(0.2, 1.0, max(2, len(result.view))))
    ends = []
    for size, shade in zip(result.view, shades, strict=False):
        rows = known[known["size"] == size]
        rows = rows[np.argsort(rows["page_size"], kind="stable")]
        if len(rows):
            _line_over_pages(ax, rows, shade)
            ends.append((rows, shade))
    _label_ends(ax, ends)
    return _finish(ax, "Latency by page size, one line a working set")


def _line_over_pages(ax: Axes, rows: Structured, shade: Any) -> None:
    """Through the first policy of each page size; others of that size are rings."""
    line, first = np.unique(rows["page_size"], return_index=True)
    others = np.delete(np.arange(len(rows)), first)
    ax.plot(line, rows["low_ns"][first], color=shade, linewidth=1.4)
    for chosen, face, width in ((first, shade, 4), (others, "none", 8)):
        at = rows[chosen]
        below, above = at["low_ns"] - at["interval_low_ns"], at["interval_high_ns"] - at["low_ns"]
        errors = np.nan_to_num(np.maximum(0, [below, above]))
        style = {"color": shade, "fmt": "o", "markersize": width, "mfc": face, "capsize": 2, "linewidth": 1.2}
        ax.errorbar(at["page_size"], at["low_ns"], errors, **style)


def _label_ends(ax: Axes, ends: Sequence[tuple[Structured, Any]]) -> None:
    """The working set of each line right of its end, moved apart where lines end close together."""
    low, high = np.log(ax.get_ylim())
    gap = (high - low) * 0.042
    place = -math.inf
    for rows, shade in sorted(ends, key=lambda end: round(math.log(end[0]["low_ns"][-1]) / gap * 4)):
        place = max(math.log(rows["low_ns"][-1]), place + gap)
        at = (rows["page_size"][-1], math.exp(place))
        ax.annotate(
            format_size(int(rows["size"][0])),
            at,
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            color=shade,
            annotation_clip=False,
        )


def _page_size_axis(ax: Axes, known: Structured, source: str) -> None:
    """A tick for each page size, with the policies that had it; labels only where there is room for them."""
    pages = sorted(set(known["page_size"].tolist()))
    rings = len(set(known["pages"].tolist())) > len(pages)
    note = " (rings: the further policies of a size)" if rings else ""
    ax.set_xlabel(f"page size, {source}{note}")
    if not pages:
        ax.set_xticks([])
        return
    ax.set_xscale("log", base=2)
    ax.set_xticks(pages, _page_labels(known, pages))
    ax.xaxis.minorticks_off()
    span = max(pages) / min(pages)
    ax.set_xlim(min(pages) / (1.5 * span**0.03), max(pages) * 1.5 * span**0.2)


def _page_labels(known: Structured, pages: Sequence[float]) -> list[str]:
    room = max(1.0, math.log2(pages[-1] / pages[0]) / 8)  # octaves between two labels
    names = {page: list(dict.fromkeys(known["pages"][known["page_size"] == page].tolist())) for page in pages}
    labelled: list[float] = []
    for page in sorted(pages, key=lambda page: all(name.startswith("thp-") for name in names[page])):
        if all(abs(math.log2(page / other)) >= room for other in labelled):
            labelled.append(page)
    return [
        "\n".join((page_suffix(int(page)), *(name for name in names[page] if not name.startswith("thp-"))))
        if page in labelled
        else ""
        for page in pages
    ]


# --- the anatomy of a TLB --------------------------------------------------------------------------------


@draw.register(Anatomy)
def draw_anatomy(result: Anatomy, ax: Axes | None = None) -> Axes:
    """Draw what translation adds over the pages in use, and where each level ends."""
    ax = _axes(ax)
    drawn = [part for part in result.parts if part.side.nodes]
    for number, part in enumerate(drawn):
        nodes, cost = np.array(part.side.nodes), np.subtract(part.side.spread, part.side.packed)
        style = _style(number, len(drawn), part.title)
        ax.plot(nodes, cost, **{**style, "markersize": 3})
    if not drawn:
        ax.text(0.5, 0.5, "nothing could be measured", ha="center", transform=ax.transAxes, color=GREY)
        return _finish(ax, result.title)
    every = np.concatenate([np.subtract(part.side.spread, part.side.packed) for part in drawn])
    _count_axis(ax, [n for part in drawn for n in part.side.nodes], "pages in use, one load or jump a page")
    _cost_axis(ax, every)
    ax.set_ylabel("ns that translation adds to a load, or jump")
    _level_marks(ax, [part for part in drawn if part.name == "data"] or drawn)
    ax.legend(frameon=False, loc="upper left")
    return _finish(ax, result.title)


def _level_marks(ax: Axes, parts: Sequence[Part]) -> None:
    """A band for the entries of each level, with its reach in bytes; a dashed line where walks get dearer.

    Of the first part, and of another one where its translations are of another size.
    """
    of_size = {part.unit: part for part in reversed(parts)}
    found: dict[tuple[int, tuple[int, int]], list[str]] = {}
    for unit, part in sorted(of_size.items(), key=lambda item: item[0] or 0):
        for number, level in enumerate(part.levels, 1):
            if entries := level.entries.range:
                reach = [format_reach(entries, unit)] if unit else []
                found[number, entries] = found.get((number, entries), []) + reach
    for (number, (low, high)), reaches in found.items():
        ax.axvspan(low, max(high, low * 1.01), color=COLOURS[1], alpha=BAND, linewidth=0)
        count = f"{low}" if low == high else f"{low}\N{EN DASH}{high}"
        _mark(ax, low, "\n".join([f"L{number}: {count}", *reaches]), COLOURS[1])
    part = parts[0]
    for one in [one for one in part.side.dearer if one.confirmed][-1:]:
        ax.axvline(one.nodes[1], color=COLOURS[2], linestyle="--", linewidth=1)
        ax.annotate(
            "page table\nleaves a cache",
            (one.nodes[1], 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(-3, 0),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize="x-small",
            color=COLOURS[2],
        )


def conflicts(part: Part, ax: Axes | None = None) -> Axes:
    """Draw the map of set conflicts: distance over number of pages, coloured by what a lap takes longer."""
    ax = _axes(ax)
    ax.set_facecolor("#dddddd")  # of what was not measured
    mesh = ax.imshow(np.maximum(part.conflicts, 0), aspect="auto", origin="lower", cmap="magma_r", vmin=0)
    ax.set_xticks(range(len(part.counts)), [str(count) for count in part.counts], fontsize="small")
    ax.set_yticks(range(len(part.strides)), [f"2^{stride.bit_length() - 1}" for stride in part.strides])
    ax.set_xlabel("pages that far apart, visited in turn with others")
    ax.set_ylabel("pages from one to the next")
    ax.figure.colorbar(mesh, ax=ax, label="ns that a lap takes longer than over neighbours")
    ax.set_title("Where pages collide in one set", loc="left", fontsize="medium")
    return ax


@draw_figure.register(Anatomy)
def anatomy_figure(result: Anatomy) -> Figure:
    """Draw the curve with its levels, and the map of conflicts beside it where there is one."""
    from matplotlib.figure import Figure

    mapped = next((part for part in result.parts if part.conflicts.size), None)
    figure = Figure(figsize=(13 if mapped else 8, 5), layout="constrained", dpi=130)
    if mapped is None:
        draw_anatomy(result, figure.add_subplot())
        return figure
    curve_axes, map_axes = figure.subplots(1, 2, width_ratios=(1.25, 1))
    draw_anatomy(result, curve_axes)
    conflicts(mapped, map_axes)
    return figure


# --- programs --------------------------------------------------------------------------------------------

FEW_SAMPLES = 30  # so few are marked one by one


@draw.register(ProgramRun)
def draw_run(run: ProgramRun, ax: Axes | None = None) -> Axes:
    """Draw a program's memory over time, with the part of it on huge pages, and what it touched."""
    ax = _axes(ax)
    if not run.seconds.size:
        return _empty(ax, run.title, "it was over before a sample was due")
    most = float(np.nanmax([*run.resident, *run.touched]))
    unit, word = next((2.0**power, word) for power, word in MEMORY_UNITS if most >= 2.0**power or not power)
    style: dict[str, Any] = {"marker": "o" if run.seconds.size < FEW_SAMPLES else None, "markersize": 3}
    ax.plot(run.seconds, run.resident / unit, color=COLOURS[0], label="in memory", **style)
    ax.plot(run.seconds, run.huge / unit, color=COLOURS[1], label="on huge pages", **style)
    ax.fill_between(run.seconds, run.huge / unit, color=COLOURS[1], alpha=BAND, linewidth=0)
    if np.isfinite(run.touched).any():
        ax.plot(
            run.seconds, run.touched / unit, "x", color=COLOURS[2], label="touched in 20 ms", markersize=5
        )
    ax.set_xlim(0, 1.02 * max(run.wall, float(run.seconds[-1])))
    ax.set_ylim(0, 1.25 * most / unit)
    ax.set_xlabel("seconds")
    ax.set_ylabel(word)
    ax.legend(frameon=False, ncols=3, loc="upper left", fontsize="small")
    return _finish(ax, f"{run.title}: {run.verdict.claim}")


def _empty(ax: Axes, title: str, why: str) -> Axes:
    """Say why there is nothing to be drawn."""
    ax.text(0.5, 0.5, why, ha="center", color=GREY, transform=ax.transAxes)
    ax.set_axis_off()
    return _finish(ax, title)


MEMORY_UNITS = ((30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "bytes"))
TRIED: tuple[tuple[Literal["wall", "cpu"], str, float, str], ...] = (
    ("wall", "wall time", 0.13, COLOURS[1]),
    ("cpu", "CPU time", -0.13, COLOURS[2]),
)


@draw.register(Trial)
def draw_trial(result: Trial, ax: Axes | None = None) -> Axes:
    """Draw the time of every variant over that of the reference, round by round, with the interval."""
    ax = _axes(ax)
    names = list(result.pairs)[::-1]
    if not names:
        return _empty(ax, result.title, f"only {result.reference!r} was tried")
    shown = [1.0]
    for row, name in enumerate(names):
        for times, word, shift, colour in TRIED:
            ratios = result.round_ratios(name, times)
            ratio, interval = result.ratio(name, times)
            known = ratios[np.isfinite(ratios)]
            shown += [*(np.quantile(known, (0.1, 0.9)) if known.size else ()), *(interval or ())]
            ax.plot(ratios, np.full(ratios.size, row + shift), "o", color=colour, alpha=0.4, markersize=4)
            ax.plot(ratio, row + shift, "D", color=colour, label="_" * (row > 0) + word)
            ax.plot(interval or [], [row + shift] * len(interval or ()), color=colour, linewidth=2.5)
    ax.axvline(1, color=GREY, linewidth=0.9)
    margin = 0.1 * (max(shown) - min(shown)) + 0.02  # what lies further away is left out
    ax.set_xlim(min(shown) - margin, max(shown) + margin)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(-0.6, len(names) - 0.2)
    ax.set_xlabel(f"time over that of {result.reference!r} (dots: rounds; bars: 95 %)")
    ax.legend(frameon=False, loc="upper right", ncols=2, fontsize="small")
    return _finish(ax, f"{result.title}: {result.verdict.claim}")
