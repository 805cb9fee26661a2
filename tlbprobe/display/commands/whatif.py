"""``tlbprobe whatif``."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ...cores.current import only_here
from ...programs.variants import SETTINGS, ProgramKilledError, try_command
from ...programs.whatif import check_rounds, whatif
from .options import add_command, add_parameters, names_in
from .output import DONE, check_outputs, complain
from .program import BY_SIGNAL, FORWARDED, add_program, could_not_run, report, words_of


def add(commands: Any) -> None:
    """Add it to the commands."""
    about = "Try whether huge pages help a program: run it many times, with and without them in turn."
    parser = add_command(commands, "whatif", run, about)
    parser.usage = "tlbprobe whatif [options] -- COMMAND [ARG ...]"
    about = f"of {', '.join(SETTINGS)} (default: those that can differ here)"
    parser.add_argument("--variants", metavar="NAME,...", type=names_in, help=about)
    add_parameters(parser, whatif, ("rounds", "seed"))
    add_program(parser)


def run(options: argparse.Namespace) -> int:
    """Run it; its exit status."""
    only_here("whatif")
    check_outputs(options)
    words = words_of(options)
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
        return complain(error, BY_SIGNAL + error.signal)
    except OSError as error:
        return could_not_run(error, words)
    report(trial, options)
    return trial.status or DONE
