"""The command ``tlbprobe``: every probe, the curve, and what to do with saved results."""

from __future__ import annotations

import argparse
import contextlib
import csv
import inspect
import json
import math
import os
import re
import shutil
import signal
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from ..counters import groups
from ..hierarchy.anatomy import Anatomy
from ..hierarchy.measure import anatomy
from ..machine import facts
from ..memory.backing import Backing
from ..memory.needs import PageNeed, page_needs
from ..memory.policies import page_policies
from ..probes.chase import chase
from ..probes.fault import PageTimes, fault
from ..probes.shootdown import ShootdownTimes
from ..programs.launching import Word
from ..programs.mappings import ProgramMapping, program_mappings, whole_program
from ..programs.stat import ProgramRun, Watched, load_run, stat, watch
from ..programs.trial import Trial
from ..programs.variants import SETTINGS, ProgramKilledError, try_command
from ..programs.whatif import check_rounds, whatif
from ..record import RECORDS, access_word, count_parameters, size_parameters
from ..results.measurement import Measurement, Translation
from ..results.refusal import Refusal
from ..results.result import (
    FileFormatError,
    Result,
    check_writable,
    load,
    package_version,
    replacing,
)
from ..results.table import REGION_STEPS, PointResult, Table, own_setup
from ..results.words import format_number, hazard_rows
from ..sweeps.axes import axis_text, counts, sizes
from ..sweeps.curve import Curve, curve
from ..sweeps.fault_parts import FaultParts, fault_parts
from ..sweeps.sweep import Sweep, complaints, sweep
from ..units import (
    Interval,
    approximate_size,
    format_average,
    format_seconds,
    format_size,
    parse_size,
    printable,
)

DONE, REFUSED, USAGE, INTERRUPTED = 0, 1, 2, 130
TABLE_WIDTH = 118  # where the output is no terminal
PICTURES = (".png", ".svg", ".pdf")
MAPPINGS_SHOWN = 20
LONG_CHOICES = 40  # characters of choices that no line of help has the room for


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 for a result, 1 for a refusal that says why, 2 for wrong usage, 130 on Ctrl-C."""
    with warnings.catch_warnings():
        warnings.simplefilter("once", RuntimeWarning)
        warnings.showwarning = _show_warning
        try:
            options = build_parser().parse_args(arguments)
            status = int(options.run(options))
            if sys.stdout is not None:  # somebody may have closed it
                sys.stdout.flush()
            return status
        except SystemExit as leave:  # argparse has said why
            return leave.code if isinstance(leave.code, int) else USAGE
        except KeyboardInterrupt:
            return _complain("interrupted", INTERRUPTED)
        except BrokenPipeError:  # the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return DONE
        except FileFormatError as error:
            return _complain(error, REFUSED)
        except (ValueError, TypeError) as error:
            return _complain(error, USAGE)
        except (OSError, MemoryError, RuntimeError, BufferError, ImportError) as error:
            return _complain(error, REFUSED)


def _complain(error: BaseException | str, status: int) -> int:
    notes = getattr(error, "__notes__", [])
    print("; ".join((f"tlbprobe: {str(error) or type(error).__name__}", *notes)), file=sys.stderr)
    return status


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"tlbprobe: warning: {message}", file=sys.stderr)


# --- the parser ------------------------------------------------------------------------------------------

# Where a command says it in other words than Python does.
HELPS = {
    "size": "bytes: 65536, 64K, 64KiB, 1.5G; K, M, G, T are powers of 1024",
    "records": "how many: 400000, 400K, 400M; K, M, G are powers of 1000",
    "sessions": "how many: 200000, 200K, 1M; K, M, G are powers of 1000",
    "pages": "page policy: base, default, thp, thp-64K (any such size), collapse, hugetlb, hugetlb-1G (any "
    "such size); a wrong one lists those of this kernel (default: base)",
    "strict": "refuse pages other than asked, instead of a warning",
    "anatomy": "file of 'tlbprobe anatomy --out FILE' on this machine, whose levels the picture shows",
    "counters": "performance counters: names as 'tlbprobe events' lists them, numbers "
    "such as r1008 or cpu/event=0x08,umask=0x10/, or tlb for a set; the result says why one is missing",
}
NO_YES = {False: "no", True: "yes"}


def build_parser() -> argparse.ArgumentParser:
    """Build the parser; probes get their options from their signatures and docstrings."""
    parser = argparse.ArgumentParser(
        prog="tlbprobe",
        description="Measures what address translation costs, on memory of a proved page size.",
        epilog=f"SIZE is in {HELPS['size']}. 'tlbprobe COMMAND --help' says more.",
    )
    parser.add_argument("--version", action="version", version=f"tlbprobe {package_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_curve(commands)
    for name, record in RECORDS.items():
        _add_probe(commands, name, record.function)
    _add_anatomy(commands)
    _add_stat(commands)
    _add_whatif(commands)
    _add_host(commands)
    _add_pages(commands)
    _add_events(commands)
    _add_show(commands)
    _add_plot(commands)
    return parser


def _command(commands: Any, name: str, run: Callable[[Any], int], about: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    parser.set_defaults(run=run)
    return parser


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", help="save the result: a data file for 'show' and 'plot'")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture: .png, .svg or .pdf")
    _add_formats(parser)


def _add_formats(parser: argparse.ArgumentParser) -> None:
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print every figure as JSON")
    formats.add_argument("--csv", action="store_true", help="print every point as CSV")


def _add_probe(commands: Any, name: str, probe: Callable[..., Any]) -> None:
    about = (inspect.getdoc(probe) or "").partition("\n")[0]
    parser = _command(commands, name, lambda options: _run_probe(probe, options), about)
    parser.epilog = (
        "Several values with commas between them measure every combination; so does a range FIRST:LAST, of "
        "sizes and counts with N points an octave as FIRST:LAST:N. A point takes up to --max-seconds."
    )
    _add_parameters(parser, probe, _named_on_the_command_line(probe), several=True)
    if name == "fault":
        about = "say where the time of a fault goes, part by part, from a dozen kinds of this size"
        parser.add_argument("--parts", action="store_true", help=about)
    _add_outputs(parser)


def _named_on_the_command_line(probe: Callable[..., Any]) -> list[str]:
    """Parameters of a probe, but for those of a Region, which only Python has."""
    return [name for name in inspect.signature(probe).parameters if name not in ("working_set", "region")]


def _add_parameters(
    parser: argparse.ArgumentParser,
    function: Callable[..., Any],
    names: Sequence[str],
    *,
    several: bool = False,
) -> None:
    """An option for each of some parameters of a function, by its name, type, default and docstring."""
    parameters = inspect.signature(function).parameters
    kinds = typing.get_type_hints(function)
    helps = {**_parameter_helps(chase), **_parameter_helps(function), **HELPS}
    for name in names:
        default = parameters[name].default
        shown = "" if default in (None, ()) else f" (default: {_default(default)})"
        if default is inspect.Parameter.empty:
            parser.add_argument(name, metavar=name.upper(), help=helps[name])
        else:
            option = "--" + name.replace("_", "-")
            reading = _reading(kinds[name], several)
            if name in count_parameters():
                reading["metavar"] = "COUNT"
            parser.add_argument(option, default=default, help=helps[name] + shown, **reading)


def _default(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return NO_YES[value] if isinstance(value, bool) else str(value)


def _reading(kind: Any, several: bool) -> dict[str, Any]:
    """How argparse reads a parameter of a type, or several values of it."""
    parts = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    first = parts[0]
    if first is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(first) is Sequence:
        return {"type": _names, "metavar": "NAME,..."}
    if typing.get_origin(first) is Literal:
        choices = typing.get_args(first)
        shown = "{" + ",".join(choices) + "}"
        return {"type": _several(_one_of(choices)), "metavar": shown if len(shown) < LONG_CHOICES else "NAME"}
    if str in parts:  # sizes and counts are int or str
        return {"metavar": "SIZE" if int in parts else "NAME"}
    return {"type": _several(first) if several else first, "metavar": "N" if first is int else "X"}


def _several(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Read one value, or a list of those that have commas between them."""

    def read_all(text: str) -> Any:
        if read is int and re.fullmatch(r"\d+:\d+", text):
            first, last = map(int, text.split(":"))
            return list(range(first, last + 1))
        return [read(one.strip()) for one in text.split(",")] if "," in text else read(text)

    read_all.__name__ = read.__name__  # for the words of argparse
    return read_all


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def choice(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(choices)}")
        return text

    return choice


# Commas between the slashes of cpu/event=0x08,umask=0x10/ belong to the name.
BETWEEN_NAMES = re.compile(r",(?=[^/]*(?:/[^/]*/[^/]*)*$)")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in BETWEEN_NAMES.split(text))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name: write names with commas between them")
    return names


def _parameter_helps(function: Callable[..., Any]) -> dict[str, str]:
    """First sentence of each parameter in a numpydoc docstring, but for those that refer to another one."""
    section = (inspect.getdoc(function) or "").partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^(\S[^:\n]*) ?:?[^\n]*\n((?: {4}[^\n]*\n?)+)", section + "\n", re.MULTILINE)
    helps: dict[str, str] = {}
    for names, text in entries:
        sentence = re.split(r"\.(?:\s|$)", " ".join(text.split()))[0].replace("`", "").replace("%", "%%")
        if not sentence.startswith("As for "):
            plain = sentence if sentence[:2].isupper() else sentence[0].lower() + sentence[1:]
            helps |= dict.fromkeys(re.split(r",\s*", names.strip()), plain)
    return helps


# --- running probes --------------------------------------------------------------------------------------


def _run_probe(probe: Callable[..., Any], options: argparse.Namespace) -> int:
    _check_outputs(options)
    if getattr(options, "parts", False):
        _check_parts(options)
        return _deliver(fault_parts(options.size, seed=options.seed, cpu=options.cpu), options)
    arguments = {name: _values(name, getattr(options, name)) for name in _named_on_the_command_line(probe)}
    if any(isinstance(value, list) for value in arguments.values()):
        return _deliver(sweep(probe, **arguments), options)
    return _deliver(probe(**arguments), options)


def _check_parts(options: argparse.Namespace) -> None:
    """Raise a ValueError for what has no meaning where every kind of fault is measured."""
    for name, parameter in inspect.signature(fault).parameters.items():
        if name not in ("size", "seed", "cpu") and getattr(options, name) != parameter.default:
            raise ValueError(f"--{name} makes no sense with --parts, which measures every kind by itself")


def _values(name: str, given: Any) -> Any:
    """A value, or a list of them where the text has commas or is a range."""
    if not isinstance(given, str) or name not in (*size_parameters(), *count_parameters(), "pages"):
        return given
    if ":" in given and name != "pages":
        return _range(name, given)
    if "," not in given:
        return given
    values = [one.strip() for one in given.split(",")]
    if not all(values):
        raise ValueError(f"{name}={given!r} has an empty value: write values with commas between them")
    return values


def _range(name: str, text: str) -> list[int]:
    """Read ``16KiB:1GiB:4`` or ``1K:1M``."""
    first, last, *per_octave = text.split(":")
    if len(per_octave) > 1 or (per_octave and not per_octave[0].isdecimal()):
        raise ValueError(f"{name}={text!r} must be FIRST:LAST or FIRST:LAST:N with N points an octave")
    spaced: Callable[..., list[int]] = counts if name in count_parameters() else sizes
    try:
        return spaced(first, last, *map(int, per_octave))
    except ValueError as error:
        raise ValueError(f"{name}={text!r}: {error}") from error


def _check_outputs(options: argparse.Namespace) -> None:
    """Before anything is measured: where the results go can be written, and the format can be drawn."""
    for name in ("out", "plot"):
        if getattr(options, name) == "":
            raise ValueError(f"--{name} names no file: it is empty")
    if options.plot:
        _check_picture(options.plot)
    if options.out:
        check_writable(options.out)
    if options.out and options.plot and os.path.realpath(options.out) == os.path.realpath(options.plot):
        raise ValueError(f"--out and --plot both name {options.out!r}: the picture would replace the data")


def _check_picture(path: str) -> None:
    if Path(path).suffix.lower() not in PICTURES:
        raise ValueError(f"{path!r} does not say its format: name a file in {', '.join(PICTURES)}")
    check_writable(path)


def _deliver(result: Result, options: argparse.Namespace) -> int:
    """Files first, so that a broken terminal loses nothing; a full disk does not keep it from stdout."""
    failed = _write_files(result, options)
    try:
        show(result, as_json=options.json, as_csv=options.csv)
    except BrokenPipeError:
        if failed is None:
            raise
    if failed is not None:
        raise failed
    if _has_point(result):
        return DONE
    what = "no level is identifiable" if isinstance(result, Anatomy) else "no point could be measured"
    return _complain(f"{what}: the output says why", _status_without_points(result))


def _write_files(result: Result, options: argparse.Namespace) -> OSError | None:
    """Every file that was asked for; the first error, which does not keep the others from being written."""
    failed = None
    writers: tuple[tuple[str | None, Callable[[str], object]], ...] = (
        (options.out, result.save),
        (options.plot if _has_picture(result) else None, lambda path: draw(result, path)),
    )
    for path, write in writers:
        try:
            if path:
                write(path)
        except OSError as error:
            error.add_note(f"{path} was not written")
            failed = failed or error
    return failed


def _has_picture(result: Result) -> bool:
    """Whether there is anything to see: the curve of an anatomy shows why no level is to be found in it."""
    return _has_point(result) or (isinstance(result, Anatomy) and any(one.side.nodes for one in result.parts))


def _has_point(result: Result) -> bool:
    """Whether anything could be measured."""
    if isinstance(result, Curve):
        return bool(result.largest)
    if isinstance(result, Anatomy):
        return any(part.levels for part in result.parts)
    return not isinstance(result, Sweep) or len(result.refused) < len(result)


def _status_without_points(result: Result) -> int:
    """Wrong usage, if that is what is wrong with every point."""
    refused = result.refused.values() if isinstance(result, Sweep) else ()
    wrong = refused and all(point.error in ("ValueError", "TypeError") for point in refused)
    return USAGE if wrong else REFUSED


def draw(result: Any, path: str) -> None:
    """Draw a result to a file; no display is needed."""
    os.environ.pop("MPLBACKEND", None)  # of no use here, and an error where it names none
    figure = result.figure()
    with replacing(path) as temporary:
        figure.savefig(temporary)


def show(result: Any, *, as_json: bool = False, as_csv: bool = False) -> None:
    """Print a result on stdout."""
    if as_json:
        print(json.dumps(_without_nan(result.summary()), indent=2, allow_nan=False))
    elif as_csv and isinstance(result, FaultParts):
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("part", "ns", "per", "how"))
        writer.writerows((part.name, part.ns, part.per, part.how) for part in result.parts)
    elif as_csv and isinstance(result, Anatomy):
        raise ValueError("an anatomy is no table: --json prints every figure")
    elif as_csv:
        table = result if isinstance(result, Table) else _single(result)
        table.write_csv(sys.stdout)
    elif isinstance(result, Curve):
        _print_curve(result)
    elif isinstance(result, Sweep):
        _print_sweep(result)
    elif isinstance(result, Trial):
        _print_trial(result)
    else:
        print(result)


def _without_nan(value: Any) -> Any:
    """Plain values for JSON, which knows no NaN: what somebody asked for may hold one."""
    if isinstance(value, Mapping):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _single(point: Measurement | Translation) -> Sweep:
    """A table of one row."""
    probe = point.probe if isinstance(point, Measurement) else point.kind
    first = next(name for name in ("records", "sessions", "bytes") if name in point.params)
    size, pages = point.params[first], point.backing.asked
    return Sweep(probe, {first.replace("bytes", "size"): [size], "pages": [pages]}, {(size, pages): point})


# --- tables ----------------------------------------------------------------------------------------------


def _print_curve(curve: Curve) -> None:
    """Rows at the powers of two; the others are in the file, the picture and --csv."""
    sizes = curve.chase.axes["size"]
    shown = {size for size in sizes if size & (size - 1) == 0} or set(sizes)
    rows = []
    for values, point in curve.chase:
        cost = curve.translation.points.get((values["size"], values["pages"]))
        if values["size"] in shown:
            cells = {"working set": format_size(values["size"]), "pages": values["pages"]}
            rows.append({**cells, **_point_cells(point), **_cost_cells(cost)})
    print("nanoseconds per access")
    _print_table(rows, spare=("set-up", "translation 95 %"))
    for name, (_, point) in curve.largest.items():
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


def _print_sweep(sweep: Sweep) -> None:
    rows = []
    for values, point in sweep:
        cells = {name.replace("_", " "): axis_text(name, value) for name, value in values.items()}
        figures = _point_cells(point)
        if sweep.probe == "translation":
            figures = {"spread" if name == "low" else name: text for name, text in figures.items()}
            figures |= _cost_cells(point)
        rows.append({**cells, **figures, **_count_cells(point)})
    print(f"{sweep.probe}: nanoseconds per {access_word(sweep.probe)}{_same_everywhere(sweep)}")
    _print_table(rows, spare=("set-up",))
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
        "set-up": format_seconds(own_setup(run)),
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


COUNTED_NOTE = (
    "*: consistent with the page faults that were counted, which is all that can be seen without root"
)


def _proved_cell(backing: Backing) -> str:
    if backing.page_size is None:
        return "unknown" if backing.proof == "unknown" else "mixed"
    return format_size(backing.page_size) + ("" if backing.proof == "proved" else " *")


def _cost_cells(cost: PointResult | None) -> dict[str, str]:
    if not isinstance(cost, Translation):
        return {}
    return {"translation": format_number(cost.cost), "translation 95 %": _interval_cell(cost.interval)}


def _interval_cell(interval: Interval) -> str:
    return "none" if interval is None else f"{format_number(interval[0])} .. {format_number(interval[1])}"


LEFT = (
    "variant",
    "pages",
    "proved",
    "why not",
    "what",
    "event",
    "here",
    "encoding",
    "what it counts",
    "from",
)  # words
HEADINGS = {"translation 95 %": "95 %", "wall 95 %": "95 %", "CPU 95 %": "95 %"}
GAP = "  "
ORDER = (
    "proved",
    "low",
    "spread",
    "95 %",
    "median",
    "translation",
    "translation 95 %",
    "pages per request",
    "hot pages",
    "set-up",
)


def _print_table(rows: Sequence[dict[str, str]], spare: Sequence[str]) -> None:
    """Print rows of cells by column; spare columns are left out where the terminal is too narrow."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    terminal = shutil.get_terminal_size((TABLE_WIDTH, 0)).columns
    columns = _fitting(rows, spare, terminal)
    width = max(terminal, _width(rows, columns))  # a narrow terminal may wrap a line; no figure is ever cut
    console = Console(width=width, highlight=False, markup=False)
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for name in columns:
        heading = HEADINGS.get(name, name)
        table.add_column(heading, justify="left" if name in LEFT else "right", no_wrap=True)
    for row in _sparse(rows):
        table.add_row(*(row.get(name, "") for name in columns))
    with console.capture() as text:  # rich would leave the process where a pipe is broken
        console.print(table)
    print(text.get(), end="")
    if any(row.get("proved", "").endswith("*") for row in rows):
        print(COUNTED_NOTE)


def _fitting(rows: Sequence[dict[str, str]], spare: Sequence[str], width: int) -> list[str]:
    """Columns in order, without as many of the spare ones as it takes to fit the width."""
    found = dict.fromkeys(name for row in rows for name in row)
    columns = [*(name for name in found if name not in ORDER), *(name for name in ORDER if name in found)]
    for name in spare:
        if _width(rows, columns) > width and name in columns:
            columns.remove(name)
    return columns


def _width(rows: Sequence[dict[str, str]], columns: Sequence[str]) -> int:
    """Characters of a line with these columns."""
    wide = (max(len(HEADINGS.get(name, name)), *(len(row.get(name, "")) for row in rows)) for name in columns)
    return sum(width + len(GAP) for width in wide) - len(GAP)


def _sparse(rows: Sequence[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Rows without the first cell where it is that of the row before."""
    previous = ""
    for row in rows:
        name, value = next(iter(row.items()))
        yield {**row, name: ""} if value == previous else row
        previous = value


def _print_trial(trial: Trial) -> None:
    print(f"{trial.title}: {trial.verdict}")
    _print_table(
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


# --- other commands --------------------------------------------------------------------------------------

CURVE_PARAMETERS = ("strict", "seed", "cpu", "precision", "max_seconds", "anatomy")


def _add_curve(commands: Any) -> None:
    about = "Measure latency over working set and page policy, with the translation cost beside it."
    parser = _command(commands, "curve", _run_curve, about)
    about = "working sets: a range with N an octave, or a list (default: 16KiB:1GiB:4)"
    parser.add_argument("--sizes", metavar="FIRST:LAST[:N]|SIZE,...", default="16KiB:1GiB:4", help=about)
    about = "page policies (default: base, thp, every hugetlb and mTHP size on offer)"
    parser.add_argument("--policies", metavar="NAME,...", type=_names, help=about)
    _add_parameters(parser, curve, CURVE_PARAMETERS)
    _add_outputs(parser)


def parse_sizes(text: str) -> list[int]:
    """Read ``16KiB:1GiB:4`` or ``16KiB,1MiB``."""
    if ":" in text:
        return _range("sizes", text)
    return [parse_size(size.strip(), "sizes") for size in text.split(",")]


def _run_curve(options: argparse.Namespace) -> int:
    _check_outputs(options)
    common = {name: getattr(options, name) for name in CURVE_PARAMETERS}
    return _deliver(curve(parse_sizes(options.sizes), options.policies, **common), options)


ANATOMY_PARAMETERS = ("memory", "strict", "seed", "cpu", "max_seconds")


def _add_anatomy(commands: Any) -> None:
    about = (
        "Infer levels, entries, ways and costs of the TLB from timing, and set them beside what CPUID claims."
    )
    parser = _command(commands, "anatomy", _run_anatomy, about)
    about = "page policies (default: base, and the huge ones on offer)"
    parser.add_argument("--pages", metavar="NAME,...", type=_names, help=about)
    _add_parameters(parser, anatomy, ANATOMY_PARAMETERS)
    parser.add_argument("--out", metavar="FILE", help="save the result: a data file for 'show' and 'plot'")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture: .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")
    parser.set_defaults(csv=False)


def _run_anatomy(options: argparse.Namespace) -> int:
    _check_outputs(options)
    common = {name: getattr(options, name) for name in ANATOMY_PARAMETERS}
    return _deliver(anatomy(options.pages, **common), options)


def _add_show(commands: Any) -> None:
    parser = _command(commands, "show", _run_show, "Print a saved result.")
    parser.add_argument("file", metavar="FILE", help="what --out or .save() wrote")
    _add_formats(parser)


def _run_show(options: argparse.Namespace) -> int:
    show(load(options.file), as_json=options.json, as_csv=options.csv)
    return DONE


def _add_plot(commands: Any) -> None:
    parser = _command(commands, "plot", _run_plot, "Draw a saved result.")
    parser.add_argument("file", metavar="FILE", help="what --out or .save() wrote")
    parser.add_argument("--out", metavar="PICTURE", required=True, help="the picture: .png, .svg or .pdf")


def _run_plot(options: argparse.Namespace) -> int:
    _check_picture(options.out)
    draw(load(options.file), options.out)
    return DONE


FORWARDED = tuple(getattr(signal, f"SIG{name}") for name in ("TERM", "HUP", "QUIT", "USR1", "USR2"))
NOT_FOUND, NOT_EXECUTABLE, BY_SIGNAL = 127, 126, 128  # as a shell has it


def _add_stat(commands: Any) -> None:
    about = "Run a program and watch it, or watch one that runs: memory and its pages, and what binds it."
    parser = _command(commands, "stat", _run_stat, about)
    parser.usage = "tlbprobe stat [options] -- COMMAND [ARG ...]\n       tlbprobe stat [options] --pid N"
    _add_parameters(parser, stat, ("pid", "counters", "interval", "seconds", "touched"))
    parser.add_argument("--against", metavar="FILE", help="an earlier run to compare with, saved by --out")
    _add_program(parser)


def _add_whatif(commands: Any) -> None:
    about = "Try whether huge pages help a program: run it many times, with and without them in turn."
    parser = _command(commands, "whatif", _run_whatif, about)
    parser.usage = "tlbprobe whatif [options] -- COMMAND [ARG ...]"
    about = f"of {', '.join(SETTINGS)} (default: those that can differ here)"
    parser.add_argument("--variants", metavar="NAME,...", type=_names, help=about)
    _add_parameters(parser, whatif, ("rounds", "seed"))
    _add_program(parser)


def _add_program(parser: argparse.ArgumentParser) -> None:
    """Outputs, and the command, which takes all that follows it."""
    parser.add_argument("--out", metavar="FILE", help="save the result for 'show' instead of printing it")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture: .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")
    help = "the program and its arguments; the report goes to stderr, the exit status is the program's"
    parser.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER, help=help)


def _words(options: argparse.Namespace) -> list[str]:
    given: list[str] = options.command
    return given[1:] if given[:1] == ["--"] else given


def _run_stat(options: argparse.Namespace) -> int:
    _check_outputs(options)
    against = load_run(options.against) if options.against is not None else None
    asked = (options.pid, options.counters, options.interval, options.seconds, options.touched, against)
    words = _words(options)
    if not words and options.pid is None:
        raise ValueError("no COMMAND to run, and no --pid")
    try:
        run = watch(words, Watched(*asked), forward=FORWARDED, ctrl_c_passes=True)
    except OSError as error:
        return _could_not_run(error, words)
    _report(run, options)
    return _status_of(run)


def _run_whatif(options: argparse.Namespace) -> int:
    _check_outputs(options)
    words = _words(options)
    if not words:
        raise ValueError("no COMMAND to run")
    try:
        trial = try_command(
            words,
            options.variants,
            check_rounds(options.rounds),
            options.seed,
            None,
            True,
            forward=FORWARDED,
            tell=lambda text: print(f"tlbprobe: {text}", file=sys.stderr, flush=True),
        )
    except ProgramKilledError as error:
        return _complain(error, BY_SIGNAL + error.signal)
    except OSError as error:
        return _could_not_run(error, words)
    _report(trial, options)
    return trial.status or DONE


def _could_not_run(error: OSError, words: Sequence[Word]) -> int:
    """As a shell would say it, if it is the program that could not be run."""
    if not words or error.filename != words[0]:
        raise error
    return _complain(error, NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)


def _status_of(run: ProgramRun) -> int:
    return BY_SIGNAL + run.signal if run.signal else run.status or DONE


def _report(result: ProgramRun | Trial, options: argparse.Namespace) -> None:
    """Files first; the program's output is its own, so that ours goes to stderr, or to a file alone."""
    saved = False
    try:
        if options.out:
            result.save(options.out)
            saved = True
        if options.plot:
            draw(result, options.plot)
    finally:
        if not saved:
            with contextlib.redirect_stdout(sys.stderr):
                show(result, as_json=options.json)


def _add_host(commands: Any) -> None:
    parser = _command(commands, "host", _run_host, "Say what this machine is, and what could spoil a result.")
    parser.add_argument("--json", action="store_true", help="print every fact as JSON")


def _run_host(options: argparse.Namespace) -> int:
    host = facts.host()
    if options.json:
        hazards = [asdict(hazard) for hazard in host.hazards]
        print(json.dumps({**host.to_dict(), "hazards": hazards}, indent=2, allow_nan=False))
    else:
        print(host)
    return DONE


def _add_events(commands: Any) -> None:
    about = "Say what this processor can count, what each event means on it, and what cannot be had and why."
    parser = _command(commands, "events", _run_events, about)
    about = "CPU whose events are meant, where there are several kinds (default: the current one)"
    parser.add_argument("--cpu", type=int, metavar="N", help=about)
    parser.add_argument("--json", action="store_true", help="print every event as JSON")
    about = "events in question, as --counters takes them (default: all that there are)"
    parser.add_argument("names", metavar="NAME", nargs="*", help=about)


def _run_events(options: argparse.Namespace) -> int:
    found = groups.events(options.cpu, options.names)
    if not options.json:
        print(groups.whose_events(options.cpu))
    _print_either(options.json, found, _print_events)
    if not options.json and not options.names:
        print(MORE_EVENTS)
    return DONE


def _print_events(found: Sequence[groups.CounterEvent]) -> None:
    """Events that this processor has, then why some of them, and others, cannot be had."""
    _print_table([_event_cells(event) for event in found if event.encoding], spare=("from",))
    print("counts: proved on a chase whose misses are known, or counted by the kernel itself")
    for (status, reason, command), names in _grouped_reasons(found).items():
        remedy = f"\n    to allow it: {command}" if command else ""
        print(f"{status}: {', '.join(names)}: {reason}{remedy}")


MORE_EVENTS = (
    "Also taken: numbers (r1008, cpu/event=0x08,umask=0x10,cmask=1/), names that the kernel announces in "
    "/sys/bus/event_source/devices, perf's other cache events, and names of libpfm4 where it is installed. "
    "tlb stands for a set of them."
)


def _event_cells(event: groups.CounterEvent) -> dict[str, str]:
    return {
        "event": event.name,
        "here": event.status,
        "encoding": "" if event.encoding == event.name else event.encoding,
        "what it counts": event.meaning,
        "from": event.source,
    }


def _grouped_reasons(found: Sequence[groups.CounterEvent]) -> dict[tuple[str, str, str], list[str]]:
    """Names by what became of them and why; those that count, and those that could not be tried, left out."""
    names: dict[tuple[str, str, str], list[str]] = {}
    for event in found:
        if event.status in ("dead", "refused"):
            names.setdefault((event.status, event.reason, event.command), []).append(event.name)
    return names


def _add_pages(commands: Any) -> None:
    about = "Say what a size needs of each kind of page, or which mappings of a program are huge and why not."
    parser = _command(commands, "pages", _run_pages, about)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("size", nargs="?", metavar="SIZE", help=HELPS["size"])
    which.add_argument("--pid", type=int, metavar="N", help="number of a running program")
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")


def _run_pages(options: argparse.Namespace) -> int:
    if options.pid is not None:
        mappings = program_mappings(options.pid)
        _print_either(options.json, mappings, _print_mappings)
    elif options.size is not None:
        _print_either(options.json, page_needs(options.size), _print_needs)
    else:
        _print_either(options.json, page_policies(), lambda policies: print(*policies, sep="\n"))
    return DONE


def _print_either(as_json: bool, found: Sequence[Any], otherwise: Callable[[Any], object]) -> None:
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2, allow_nan=False))
    else:
        otherwise(found)


def _print_needs(needs: Sequence[PageNeed]) -> None:
    _print_table([_need_cells(need) for need in needs], spare=("wasted",))
    print("obtainable: in free memory, base pages in available memory; left: what is available afterwards")
    for need in needs:
        if len(need.by_node) > 1:
            nodes = (f"node {node}: {pool} + {free}" for node, (pool, free) in need.by_node.items())
            print(f"{need.policy.name}, reserved + in free blocks: {', '.join(nodes)}")
    for name, need in _commanded(needs).items():
        for when, command in (("now", need.now), ("at boot", need.at_boot)):
            if command:
                print(f"{name} {when}: {command}")


def _commanded(needs: Sequence[PageNeed]) -> dict[str, PageNeed]:
    """What there are commands for, by name; of sizes that are offered alike the first."""
    hugetlb = {need.policy.name: need for need in needs if need.policy.kind == "hugetlb"}
    alike: dict[str, list[PageNeed]] = {}
    for need in needs:
        if need.now and need.policy.kind != "hugetlb":
            alike.setdefault(need.policy.kind, []).append(need)
    names = {f"{first.policy.name} (others likewise)" if others else first.policy.name: first
             for first, *others in alike.values()}  # fmt: skip
    return {**names, **hugetlb}


def _need_cells(need: PageNeed) -> dict[str, str]:
    left = need.left_bytes
    return {
        "pages": need.policy.name,
        "size": format_size(need.page_size),
        "needed": str(need.pages),
        "reserved": "" if need.reserved is None else str(need.reserved),
        "obtainable": "unknown" if need.obtainable is None else str(need.obtainable),
        "enough": {True: "by command" if need.now else "yes", False: "no", None: "unknown"}[need.enough],
        "wasted": approximate_size(need.unused_bytes),
        "left": "unknown" if left is None else "-" * (left < 0) + approximate_size(abs(left)),
    }


def _print_mappings(mappings: Sequence[ProgramMapping]) -> None:
    """The largest ones; the rest is in the sum, and in --json."""
    print(whole_program(mappings))
    _print_table([_mapping_cells(one) for one in mappings[:MAPPINGS_SHOWN]], spare=("at", "size"))
    if len(mappings) > MAPPINGS_SHOWN:
        print(f"and {len(mappings) - MAPPINGS_SHOWN} smaller ones: --json prints them")


def _mapping_cells(one: ProgramMapping) -> dict[str, str]:
    return {
        "at": f"{one.start:x}",
        "size": approximate_size(one.size),
        "resident": approximate_size(one.resident),
        "huge": f"{one.huge / one.resident:.0%}",
        "why not": one.reason or "huge",
        "what": printable(Path(one.name).name if one.name.startswith("/") else one.name or "anonymous"),
    }
