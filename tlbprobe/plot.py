"""Pictures: every function draws on given Axes, or on new ones, and returns them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .measurement import Measurement
from .units import format_size, page_suffix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .sweeps import Curve, Sweep

# Okabe and Ito's colours, which most kinds of colour blindness tell apart; base pages in black.
COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#666666"
BAND = 0.18  # opacity of an interval


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(7, 4.5), layout="constrained")[1]


def _plain(ax: Axes) -> None:
    """Leave what carries data: two axes and a faint grid."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)


def _size_axis(ax: Axes, sizes: Sequence[float], label: str, step: int = 4) -> None:
    """Label a log axis in bytes, at powers of `step`."""
    from matplotlib.ticker import FixedLocator, NullLocator

    ax.set_xscale("log", base=2)
    first, last = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    ticks = [2.0**power for power in range(first, last + 1) if power % round(math.log2(step)) == 0]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(ticks, [page_suffix(int(tick)) for tick in ticks])
    ax.set_xlabel(label)


def _log_ns(ax: Axes, values: Iterable[float], label: str) -> None:
    """A log axis of nanoseconds with plain numbers at 1, 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda ns, _: f"{ns:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    known = [value for value in values if value > 0]
    if known:
        ax.set_ylim(min(known) / 1.3, max(known) * 1.5)
    ax.set_ylabel(label)


# --- one measurement -------------------------------------------------------------------------------------


def slices(measurement: Measurement, ax: Axes | None = None) -> Axes:
    """Draw the slices in time order, disturbed ones hollow, with the low estimate and the median."""
    ax = _axes(ax)
    name = measurement.params.get("placement", measurement.probe)
    order = np.arange(measurement.ns.size)
    clean = ~measurement.disturbed
    (dots,) = ax.plot(order[clean], measurement.ns[clean], ".", markersize=3, alpha=0.6)
    colour = dots.get_color()
    ax.plot(order[~clean], measurement.ns[~clean], "o", markersize=3, mfc="none", mec=colour, alpha=0.5)
    ax.axhline(measurement.low, color=colour, label=f"{name}: low {measurement.low:.4g} ns")
    ax.axhline(
        measurement.median, color=colour, linestyle=":", label=f"{name}: median {measurement.median:.4g} ns"
    )
    if measurement.interval:
        ax.axhspan(*measurement.interval, color=colour, alpha=BAND, linewidth=0)
    ax.set_yscale("log")
    ax.set_xlabel("slice, in time order (hollow: visibly disturbed)")
    ax.set_ylabel("ns per access")
    ax.set_title(measurement.title, loc="left")
    ax.legend(frameon=False)
    _plain(ax)
    return ax


# --- a sweep ---------------------------------------------------------------------------------------------


def sweep(result: Sweep, ax: Axes | None = None) -> Axes:
    """Draw the low estimate over the first axis of numbers, a line for each value of the others."""
    from .sweeps import SIZE_AXES

    ax = _axes(ax)
    table = result.to_numpy()
    x = next((name for name in result.axes if table[name].dtype.kind in "iuf"), next(iter(result.axes)))
    others = [name for name in result.axes if name != x]
    keys = list(dict.fromkeys(tuple(row[name].item() for name in others) for row in table))
    for number, key in enumerate(keys):
        rows = table[[tuple(row[name].item() for name in others) == key for row in table]]
        label = ", ".join(
            format_size(value) if name in SIZE_AXES else str(value)
            for name, value in zip(others, key, strict=True)
        )
        _line(ax, rows[x], rows["low_ns"], rows["interval_low_ns"], rows["interval_high_ns"], number, label)
    if x in SIZE_AXES:
        _size_axis(ax, table[x].tolist(), x.replace("_", " "))
    else:
        ax.set_xlabel(x.replace("_", " "))
    if result.probe == "translation":
        _cost_axis(ax)
    else:
        _log_ns(ax, table["low_ns"].tolist(), "ns per access, low estimate")
    if others:
        ax.legend(frameon=False)
    ax.set_title(result.title, loc="left")
    _plain(ax)
    return ax


def _line(ax: Axes, x: Any, y: Any, low: Any, high: Any, number: int, label: str) -> None:
    colour = COLOURS[number % len(COLOURS)]
    marker = MARKERS[number % len(MARKERS)]
    ax.plot(x, y, color=colour, marker=marker, markersize=3.2, linewidth=1.4, label=label)
    ax.fill_between(x, low, high, color=colour, alpha=BAND, linewidth=0)


def _cost_axis(ax: Axes, label: str = "ns per access added by translation") -> None:
    """Linear below 1 ns, where the cost is noise around zero; a log axis above."""
    from matplotlib.ticker import FixedLocator, FuncFormatter

    ax.set_yscale("symlog", linthresh=1.0, linscale=0.4)
    ax.yaxis.set_major_locator(FixedLocator([0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda ns, _: f"{ns:g}"))
    ax.set_ylabel(label)


# --- the curve -------------------------------------------------------------------------------------------


def curve(
    result: Curve, ax: Axes | None = None, x: Literal["working_set", "page_size"] = "working_set"
) -> Axes:
    """Draw one view of a curve."""
    if x not in ("working_set", "page_size"):
        raise ValueError(f"x={x!r} must be 'working_set' or 'page_size'")
    ax = _axes(ax)
    if x == "page_size":
        return _over_page_size(result, ax)
    _over_working_set(result, ax)
    cost = ax.inset_axes((0.0, -0.62, 1.0, 0.42))
    _translation(result, cost)
    return ax


def curve_figure(result: Curve) -> Figure:
    """Draw both views: latency and translation cost over working set, latency over page size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 6.6), layout="constrained", dpi=130)
    grid = figure.add_gridspec(2, 2, height_ratios=(1.5, 1), width_ratios=(1.45, 1))
    latency = figure.add_subplot(grid[0, 0])
    cost = figure.add_subplot(grid[1, 0], sharex=latency)
    _over_working_set(result, latency)
    _translation(result, cost)
    latency.set_xlabel("")
    latency.tick_params(labelbottom=False)
    _over_page_size(result, figure.add_subplot(grid[:, 1]))
    figure.suptitle(_caption(result), x=0.01, ha="left", fontsize="medium", color=GREY)
    return figure


def _caption(result: Curve) -> str:
    first = next((point for point in result.chase.points.values() if isinstance(point, Measurement)), None)
    if first is None:
        return "nothing could be measured"
    words = [_fact(result, "cpu.name"), _fact(result, "cpu.microarchitecture")]
    if _fact(result, "virtualisation.hypervisor") or _fact(result, "virtual"):
        words.append("virtual machine")
    words += [first.started[:10], f"tlbprobe {first.version}"]
    return ", ".join(word for word in words if word)


def _fact(result: Curve, name: str) -> str:
    for fact in result.host.get("facts", []):
        if fact.get("name") == name and fact.get("value") is not None:
            return str(fact["value"])
    return ""


def _policy_rows(result: Curve, name: str) -> Any:
    table = result.to_numpy()
    return table[(table["pages"] == name) & np.isfinite(table["low_ns"])]


def _policy_label(rows: Any, name: str) -> str:
    proved = {int(size) for size in rows["page_size"]}
    size = proved.pop() if len(proved) == 1 else 0
    return f"{name} ({format_size(size)} pages)" if size else f"{name} (mixed pages)"


def _drawn_over_working_set(result: Curve) -> list[str]:
    """Policies with enough points for a line of their own."""
    return [name for name in result.policies if len(_policy_rows(result, name)) > len(result.view)] or [
        name for name in result.policies if len(_policy_rows(result, name))
    ]


def _over_working_set(result: Curve, ax: Axes) -> Axes:
    table = result.to_numpy()
    for number, name in enumerate(_drawn_over_working_set(result)):
        rows = _policy_rows(result, name)
        _line(
            ax,
            rows["size"],
            rows["low_ns"],
            rows["interval_low_ns"],
            rows["interval_high_ns"],
            number,
            _policy_label(rows, name),
        )
    _size_axis(ax, table["size"].tolist(), "working set")
    _log_ns(ax, table["low_ns"].tolist(), "ns per access")
    ax.set_title("Latency of a dependent load, one node a cache line", loc="left", fontsize="medium")
    if ax.lines:
        ax.legend(frameon=False, loc="upper left")
    _plain(ax)
    return ax


def _translation(result: Curve, ax: Axes) -> Axes:
    table = result.to_numpy()
    for number, name in enumerate(_drawn_over_working_set(result)):
        rows = _policy_rows(result, name)
        rows = rows[np.isfinite(rows["translation_ns"])]
        low, high = rows["translation_low_ns"], rows["translation_high_ns"]
        _line(ax, rows["size"], rows["translation_ns"], low, high, number, name)
    _size_axis(ax, table["size"].tolist(), "working set")
    _cost_axis(ax, "ns per access")
    costs = table["translation_ns"][np.isfinite(table["translation_ns"])]
    if costs.size:
        ax.set_ylim(min(-0.5, costs.min() * 1.3), max(2.0, costs.max() * 1.5))
    ax.axhline(0, color=GREY, linewidth=0.8)
    ax.set_title(
        "Of which translation: one node a base page, less the same lines side by side",
        loc="left",
        fontsize="medium",
    )
    _plain(ax)
    return ax


def _over_page_size(result: Curve, ax: Axes) -> Axes:
    """One line a working set, the dearest last; its size stands at the right end."""
    from matplotlib import colormaps

    table = result.to_numpy()
    known = table[
        np.isfinite(table["low_ns"]) & (table["page_size"] > 0) & np.isin(table["size"], result.view)
    ]
    shades = colormaps["viridis_r"](np.linspace(0.15, 1.0, max(1, len(result.view))))
    for size, shade in zip(result.view, shades, strict=True):
        rows = np.sort(known[known["size"] == size], order="page_size")
        if not len(rows):
            continue
        below, above = rows["low_ns"] - rows["interval_low_ns"], rows["interval_high_ns"] - rows["low_ns"]
        errors = np.nan_to_num(np.maximum(0, [below, above]))
        ax.errorbar(
            rows["page_size"],
            rows["low_ns"],
            errors,
            color=shade,
            marker="o",
            markersize=4,
            linewidth=1.4,
            capsize=2,
        )
        ax.annotate(
            format_size(size),
            (rows["page_size"][-1], rows["low_ns"][-1]),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=shade,
        )
    if len(known):
        pages = sorted(set(known["page_size"].tolist()))
        ax.set_xscale("log", base=2)
        ax.set_xticks(pages, [page_suffix(page) for page in pages])
        ax.xaxis.minorticks_off()
        ax.set_xlim(min(pages) / 1.5, max(pages) * (max(pages) / min(pages)) ** 0.22 * 1.5)
        _log_ns(ax, known["low_ns"].tolist(), "ns per access")
    ax.set_xlabel("page size, as proved")
    ax.set_title("The same by page size, one line a working set", loc="left", fontsize="medium")
    _plain(ax)
    return ax
