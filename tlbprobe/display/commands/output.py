"""What commands print, save and draw, and the status that they end with."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...results.result import FileFormatError, Result, check_writable, replacing
from ..text import print_result, write_csv

DONE, REFUSED, USAGE, INTERRUPTED = 0, 1, 2, 130
PICTURES = (".png", ".svg", ".pdf")


def complain(error: BaseException | str, status: int) -> int:
    """Say on stderr what went wrong, with its notes; the status."""
    notes = getattr(error, "__notes__", [])
    print("; ".join((f"tlbprobe: {str(error) or type(error).__name__}", *notes)), file=sys.stderr)
    return status


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Options for where a result goes."""
    parser.add_argument("--out", metavar="FILE", help="save the result: a data file for 'show' and 'plot'")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture: .png, .svg or .pdf")
    add_formats(parser)


def add_formats(parser: argparse.ArgumentParser) -> None:
    """Options for what is printed instead of text."""
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print every figure as JSON")
    formats.add_argument("--csv", action="store_true", help="print every point as CSV")


def check_outputs(options: argparse.Namespace) -> None:
    """Before anything is measured: where the results go can be written, and the format can be drawn."""
    for name in ("out", "plot"):
        if getattr(options, name) == "":
            raise ValueError(f"--{name} names no file: it is empty")
    if options.plot:
        check_picture(options.plot)
    if options.out:
        check_writable(options.out)
    if options.out and options.plot and os.path.realpath(options.out) == os.path.realpath(options.plot):
        raise ValueError(f"--out and --plot both name {options.out!r}: the picture would replace the data")


@contextlib.contextmanager
def trusting(path: str) -> Iterator[None]:
    """What goes wrong with a loaded result by itself is damage to its file."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path!r} is damaged: {error}") from error


def check_picture(path: str) -> None:
    """Raise an error for a file that no picture can be drawn to."""
    if Path(path).suffix.lower() not in PICTURES:
        raise ValueError(f"{path!r} is in no format that can be drawn: name a file in {', '.join(PICTURES)}")
    check_writable(path)


def deliver(result: Result, options: argparse.Namespace) -> int:
    """Files first, so that a broken terminal loses nothing; a full disk does not keep it from stdout."""
    failed = _write_files(result, options)
    try:
        show(result, as_json=options.json, as_csv=options.csv)
    except BrokenPipeError:
        if failed is None:
            raise
    if failed is not None:
        raise failed
    if not result.nothing:
        return DONE
    return complain(f"{result.nothing}: the output says why", USAGE if result.misused else REFUSED)


def _write_files(result: Result, options: argparse.Namespace) -> OSError | None:
    """Every file that was asked for; the first error, which does not keep the others from being written."""
    failed = None
    writers: tuple[tuple[str | None, Callable[[str], object]], ...] = (
        (options.out, result.save),
        (options.plot if result.drawable else None, lambda path: save_picture(result, path)),
    )
    for path, write in writers:
        try:
            if path:
                write(path)
        except OSError as error:
            error.add_note(f"{path} was not written")
            failed = failed or error
    return failed


def save_picture(result: Any, path: str) -> None:
    """Draw a result to a file; no display is needed."""
    os.environ.pop("MPLBACKEND", None)  # of no use here, and an error where it names none
    figure = result.figure()
    with replacing(path) as temporary:
        figure.savefig(temporary)


def show(result: Any, *, as_json: bool = False, as_csv: bool = False) -> None:
    """Print a result on stdout."""
    if as_json:
        where = {"simulated": result.simulated} if result.simulated else {}
        print(json.dumps(_without_nan({**where, **result.summary()}), indent=2, allow_nan=False))
    elif as_csv:
        write_csv(result, sys.stdout)
    else:
        print_result(result)


def _without_nan(value: Any) -> Any:
    """Plain values for JSON, which knows no NaN: what somebody asked for may hold one."""
    if isinstance(value, Mapping):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_either(as_json: bool, found: Sequence[Any], otherwise: Callable[[Any], object]) -> None:
    """Print records as JSON, or otherwise."""
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2, allow_nan=False))
    else:
        otherwise(found)
