"""What the commands on somebody else's program have in common."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence

from ...programs.launching import Word
from ...programs.stat import ProgramRun
from ...programs.trial import Trial
from .output import complain, save_picture, show

FORWARDED = tuple(getattr(signal, f"SIG{name}") for name in ("TERM", "HUP", "QUIT", "USR1", "USR2"))
NOT_FOUND, NOT_EXECUTABLE, BY_SIGNAL = 127, 126, 128  # as a shell has it


def add_program(parser: argparse.ArgumentParser) -> None:
    """Outputs, and the command, which takes all that follows it."""
    parser.add_argument("--out", metavar="FILE", help="save the result for 'show' instead of printing it")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture: .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")
    help = "the program and its arguments; the report goes to stderr, the exit status is the program's"
    parser.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER, help=help)


def words_of(options: argparse.Namespace) -> list[str]:
    """The program and its arguments."""
    given: list[str] = options.command
    return given[1:] if given[:1] == ["--"] else given


def could_not_run(error: OSError, words: Sequence[Word]) -> int:
    """As a shell would say it, if it is the program that could not be run."""
    if not words or error.filename != words[0]:
        raise error
    return complain(error, NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)


def report(result: ProgramRun | Trial, options: argparse.Namespace) -> None:
    """Files first; the program's output is its own, so that ours goes to stderr, or to a file alone."""
    saved = False
    try:
        if options.out:
            result.save(options.out)
            saved = True
        if options.plot:
            save_picture(result, options.plot)
    finally:
        if not saved:
            with contextlib.redirect_stdout(sys.stderr):
                show(result, as_json=options.json)
