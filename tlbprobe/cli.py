"""The command ``tlbprobe``: every probe, the curve, and what to do with saved results."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from . import probes, sweeps
from .measurement import Measurement, Translation, check_writable, format_ns, load, package_version
from .sweeps import Curve, Refusal, Sweep
from .units import approximate_size, format_seconds, format_size, parse_size

DONE, REFUSED, USAGE, INTERRUPTED = 0, 1, 2, 130
TABLE_WIDTH = 118  # where the output is no terminal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 for a result, 1 for a refusal that says why, 2 for wrong usage, 130 on Ctrl-C."""
    parser = build_parser()
    try:
        options = parser.parse_args(arguments)
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else USAGE
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            return int(options.run(options))
        except KeyboardInterrupt:
            print("tlbprobe: interrupted", file=sys.stderr)
            return INTERRUPTED
        except BrokenPipeError:  # the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return DONE
        except (ValueError, TypeError) as error:
            return _complain(error, USAGE)
        except (OSError, MemoryError, RuntimeError, BufferError, ImportError) as error:
            return _complain(error, REFUSED)


def _complain(error: BaseException, status: int) -> int:
    notes = getattr(error, "__notes__", [])
    print("; ".join(("tlbprobe: " + str(error), *notes)), file=sys.stderr)
    return status


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"tlbprobe: warning: {message}", file=sys.stderr)


# --- the parser ------------------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    """Build the parser; probes get their options from their signatures and docstrings."""
    parser = argparse.ArgumentParser(
        prog="tlbprobe",
        description="Measures what address translation costs, on memory of a proved page size.",
        epilog="Sizes: 65536, 64K, 64KiB, 1.5G; K, M, G, T are powers of 1024. 'COMMAND --help' says more.",
    )
    parser.add_argument("--version", action="version", version=f"tlbprobe {package_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_curve(commands)
    commanded: dict[str, Callable[..., Any]] = {**probes.PROBES, "translation": probes.translation}
    for name, probe in commanded.items():
        _add_probe(commands, name, probe)
    _add_show(commands)
    _add_plot(commands)
    return parser


def _command(commands: Any, name: str, run: Callable[[Any], int], about: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    parser.set_defaults(run=run)
    return parser


def _add_outputs(parser: argparse.ArgumentParser, csv: bool) -> None:
    parser.add_argument("--out", metavar="FILE", help="save the result: a data file for 'show' and 'plot'")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture: .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of a table")
    if csv:
        parser.add_argument("--csv", action="store_true", help="print every point as CSV instead of a table")


def _parameter_helps(function: Callable[..., Any]) -> dict[str, str]:
    """First sentence of each parameter in a numpydoc docstring."""
    section = inspect.getdoc(function) or ""
    section = section.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    helps: dict[str, str] = {}
    for names, text in re.findall(
        r"^(\S[^:\n]*) ?:?[^\n]*\n((?: {4}[^\n]*\n?)+)", section + "\n", re.MULTILINE
    ):
        sentence = re.split(r"(?<=\.)\s", " ".join(text.split()))[0].replace("`", "").replace("%", "%%")
        helps.update(dict.fromkeys((name.strip() for name in names.split(",")), sentence))
    return helps


def _add_probe(commands: Any, name: str, probe: Callable[..., Any]) -> None:
    about = (inspect.getdoc(probe) or "").partition("\n")[0]
    parser = _command(commands, name, lambda options: _run_probe(probe, options), about)
    helps = {**_parameter_helps(probes.chase), **_parameter_helps(probe)}
    kinds = typing.get_type_hints(probe)
    for parameter in inspect.signature(probe).parameters.values():
        if parameter.name != "working_set":  # that is for regions, which a command has none of
            _add_option(parser, parameter, kinds[parameter.name], helps.get(parameter.name, ""))
    _add_outputs(parser, csv=False)


def _add_option(parser: argparse.ArgumentParser, parameter: inspect.Parameter, kind: Any, text: str) -> None:
    """One option by the parameter's name, type and default."""
    if parameter.default is inspect.Parameter.empty:
        parser.add_argument(parameter.name, metavar=parameter.name.upper(), help=text)
        return
    option = "--" + parameter.name.replace("_", "-")
    kind = _without_none(kind)
    shown = "" if parameter.default in (None, ()) else " (default: %(default)s)"
    if kind is bool:
        action = argparse.BooleanOptionalAction
        parser.add_argument(option, action=action, default=parameter.default, help=text + shown)
    elif typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        parser.add_argument(option, choices=choices, default=parameter.default, help=text + shown)
    elif parameter.name == "counters":
        split = _names
        parser.add_argument(option, type=split, default=(), metavar="NAME,...", help=text)
    else:
        parse = kind if kind in (int, float) else str
        parser.add_argument(
            option, type=parse, default=parameter.default, metavar=kind_name(kind), help=text + shown
        )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _without_none(kind: Any) -> Any:
    """The type of an optional parameter; sizes, which are int or str, become str."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kinds = [part for part in typing.get_args(kind) if part is not type(None)]
        return str if str in kinds else kinds[0]
    return kind


def kind_name(kind: Any) -> str:
    """What stands for a value in the help."""
    return {int: "N", float: "X"}.get(kind, "VALUE")


# --- running probes --------------------------------------------------------------------------------------


def _check_outputs(options: argparse.Namespace) -> None:
    """Before anything is measured: where the results go can be written, and the format can be drawn."""
    for path in (options.out, options.plot):
        if path:
            try:
                check_writable(path)
            except OSError as error:
                error.add_note(f"nothing was measured, since {path!r} could not be written")
                raise
    if options.plot:
        _check_format(options.plot)


def _check_format(path: str) -> None:
    suffix = Path(path).suffix.lstrip(".").lower()
    if suffix not in ("png", "svg", "pdf"):
        raise ValueError(f"{path!r} does not say its format: a name that ends in .png, .svg or .pdf does")


def _run_probe(probe: Callable[..., Any], options: argparse.Namespace) -> int:
    _check_outputs(options)
    names = [name for name in inspect.signature(probe).parameters if name != "working_set"]
    result = probe(**{name: getattr(options, name) for name in names})
    return _deliver(result, options)


def _deliver(result: Any, options: argparse.Namespace) -> int:
    """Files first, so that a broken terminal loses nothing; then what was asked for on stdout."""
    if options.out:
        result.save(options.out)
    if options.plot:
        draw(result, options.plot)
    show(result, as_json=options.json, as_csv=getattr(options, "csv", False))
    return DONE if _has_figures(result) else REFUSED


def _has_figures(result: Any) -> bool:
    points = result.chase.points if isinstance(result, Curve) else getattr(result, "points", None)
    return points is None or any(not isinstance(point, Refusal) for point in points.values())


def draw(result: Any, path: str) -> None:
    """Draw a result to a file; no display is needed."""
    _check_format(path)
    from matplotlib.figure import Figure

    if isinstance(result, Curve):
        figure = result.figure()
    else:
        figure = Figure(figsize=(8, 5), layout="constrained", dpi=130)
        result.plot(figure.add_subplot())
    from .measurement import replacing

    with replacing(path) as temporary:
        figure.savefig(temporary)


def show(result: Any, *, as_json: bool = False, as_csv: bool = False) -> None:
    """Print a result on stdout."""
    if as_json:
        print(json.dumps(_plain(result), indent=2, allow_nan=False))
    elif as_csv:
        if not isinstance(result, Curve | Sweep):
            raise ValueError("--csv is for results with several points; --json prints a single one")
        sweeps.write_csv(sys.stdout, result.to_numpy())
    elif isinstance(result, Curve):
        _print_curve(result)
    elif isinstance(result, Sweep):
        _print_sweep(result)
    else:
        print(str(result).strip("<>"))


def _plain(result: Any) -> Any:
    """Every figure as plain values; what is missing is null."""
    if isinstance(result, Measurement | Translation):
        return result.summary()
    if isinstance(result, Refusal):
        return {"error": result.error, "reason": result.reason}
    if isinstance(result, Curve):
        parts = {"chase": _plain(result.chase), "translation": _plain(result.translation)}
        return {**parts, "view": result.view, "not_offered": result.notes}
    points = [{**values, **_plain(point)} for values, point in result]
    return {"probe": result.probe, "axes": result.axes, "points": points}


# --- tables ----------------------------------------------------------------------------------------------


def _print_table(columns: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in ("pages", "proved") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH, highlight=False, markup=False)
    console.print(table)


CURVE_COLUMNS = ("working set", "pages", "proved", "low", "95 %", "median", "translation", "95 %", "set-up")


def _print_curve(curve: Curve) -> None:
    _print_table(CURVE_COLUMNS, _curve_rows(curve))
    for name, setup in curve.setup.items():
        steps = {step: taken for step, taken in setup.items() if step != "mapped_bytes"}
        mapped = approximate_size(setup["mapped_bytes"])
        print(
            f"{name}: {mapped} mapped once, "
            + ", ".join(f"{s} {format_seconds(t)}" for s, t in steps.items())
        )
    reasons: dict[str, int] = {}
    for refusal in (*curve.chase.refused.values(), *curve.translation.refused.values()):
        reasons[refusal.reason] = reasons.get(refusal.reason, 0) + 1
    for reason, count in reasons.items():
        print(f"{count} points refused: {reason}")
    for warning in dict.fromkeys(text for _, point in curve.chase for text in getattr(point, "warnings", ())):
        print(f"warning: {warning}")
    for note in curve.notes:
        print(f"not offered here: {note}")


def _curve_rows(curve: Curve) -> Iterator[Sequence[str]]:
    """Rows at the powers of two; the others are in the file, the picture and --csv."""
    shown = {size for size in curve.chase.axes["size"] if size & (size - 1) == 0} or curve.chase.axes["size"]
    for values, point in curve.chase:
        size, name = values["size"], values["pages"]
        if size not in shown:
            continue
        cost = curve.translation.points.get((size, name))
        yield (format_size(size), name, *_point_cells(point), *_cost_cells(cost), _setup_cell(point))


def _point_cells(point: Any) -> tuple[str, str, str, str]:
    if not isinstance(point, Measurement):
        return "refused", "", "", ""
    backing = point.backing
    proved = format_size(backing.page_size) if backing.page_size else "mixed"
    proved += "" if backing.proof == "proved" else f", {backing.proof}"
    return proved, format_ns(point.low), _interval_cell(point.interval), format_ns(point.median)


def _cost_cells(cost: Any) -> tuple[str, str]:
    if not isinstance(cost, Translation):
        return "", ""
    return format_ns(cost.cost), _interval_cell(cost.interval)


def _interval_cell(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return "none"
    digits = 2 if max(map(abs, interval)) < 100 else 1
    return f"{interval[0]:.{digits}f} - {interval[1]:.{digits}f}"


def _setup_cell(point: Any) -> str:
    return format_seconds(sweeps.figures(point)[-2]) if isinstance(point, Measurement) else ""


def _print_sweep(sweep: Sweep) -> None:
    columns = (*(name.replace("_", " ") for name in sweep.axes), "proved", "low", "95 %", "median", "set-up")
    _print_table(columns, _sweep_rows(sweep))
    for reason in sorted({refusal.reason for refusal in sweep.refused.values()}):
        print(f"refused: {reason}")


def _sweep_rows(sweep: Sweep) -> Iterator[Sequence[str]]:
    for values, point in sweep:
        names = [format_size(v) if name in sweeps.SIZE_AXES else str(v) for name, v in values.items()]
        if isinstance(point, Translation):
            cells = (
                *_point_cells(point.spread)[:1],
                format_ns(point.cost),
                _interval_cell(point.interval),
                "",
            )
        else:
            cells = _point_cells(point)
        yield (*names, *cells, _setup_cell(point))


# --- other commands --------------------------------------------------------------------------------------


def _add_curve(commands: Any) -> None:
    about = "Measure latency over working set and page policy, with the translation cost beside it."
    parser = _command(commands, "curve", _run_curve, about)
    about = "working sets: a range with N an octave, or a list (default: %(default)s)"
    parser.add_argument("--sizes", metavar="FIRST:LAST[:N] | SIZE,...", default="16KiB:1GiB:4", help=about)
    about = "page policies (default: base, thp, every hugetlb and mTHP size on offer)"
    parser.add_argument("--policies", metavar="NAME,...", type=_names, help=about)
    helps = {**_parameter_helps(probes.chase), **_parameter_helps(sweeps.curve)}
    kinds = typing.get_type_hints(sweeps.curve)
    for name in ("strict", "seed", "cpu", "precision", "max_seconds"):
        _add_option(
            parser, inspect.signature(sweeps.curve).parameters[name], kinds[name], helps.get(name, "")
        )
    _add_outputs(parser, csv=True)


def parse_sizes(text: str) -> list[int]:
    """Read ``16KiB:1GiB:4`` or ``16KiB,1MiB``."""
    if ":" not in text:
        return [parse_size(size.strip(), "sizes") for size in text.split(",")]
    first, last, *per_octave = text.split(":")
    if len(per_octave) > 1 or (per_octave and not per_octave[0].isdecimal()):
        raise ValueError(f"sizes={text!r} must be FIRST:LAST or FIRST:LAST:N with N points an octave")
    return sweeps.sizes(first, last, int(per_octave[0]) if per_octave else 4)


def _run_curve(options: argparse.Namespace) -> int:
    _check_outputs(options)
    names = ("strict", "seed", "cpu", "precision", "max_seconds")
    common = {name: getattr(options, name) for name in names}
    return _deliver(sweeps.curve(parse_sizes(options.sizes), options.policies or None, **common), options)


def _add_show(commands: Any) -> None:
    parser = _command(commands, "show", _run_show, "Print a saved result.")
    parser.add_argument("file", metavar="FILE", help="what --out or .save() wrote")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--csv", action="store_true", help="every point as CSV")


def _run_show(options: argparse.Namespace) -> int:
    show(load(options.file), as_json=options.json, as_csv=options.csv)
    return DONE


def _add_plot(commands: Any) -> None:
    parser = _command(commands, "plot", _run_plot, "Draw a saved result.")
    parser.add_argument("file", metavar="FILE", help="what --out or .save() wrote")
    parser.add_argument("--out", metavar="PICTURE", required=True, help="the picture: .png, .svg or .pdf")


def _run_plot(options: argparse.Namespace) -> int:
    check_writable(options.out)
    draw(load(options.file), options.out)
    return DONE
