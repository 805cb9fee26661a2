"""``tlbprobe stat``."""

from __future__ import annotations

import argparse
from typing import Any

from ...cores.current import only_here
from ...programs.stat import ProgramRun, Watched, load_run, stat, watch
from .options import add_command, add_parameters
from .output import DONE, check_outputs
from .program import BY_SIGNAL, FORWARDED, add_program, could_not_run, report, words_of


def add(commands: Any) -> None:
    """Add it to the commands."""
    about = "Run a program and watch it, or watch one that runs: memory and its pages, and what binds it."
    parser = add_command(commands, "stat", run, about)
    parser.usage = "tlbprobe stat [options] -- COMMAND [ARG ...]\n       tlbprobe stat [options] --pid N"
    add_parameters(parser, stat, ("pid", "counters", "interval", "seconds", "touched"))
    parser.add_argument("--against", metavar="FILE", help="an earlier run to compare with, saved by --out")
    add_program(parser)


def run(options: argparse.Namespace) -> int:
    """Run it; its exit status."""
    only_here("stat")
    check_outputs(options)
    against = load_run(options.against) if options.against is not None else None
    asked = (options.pid, options.counters, options.interval, options.seconds, options.touched, against)
    words = words_of(options)
    if not words and options.pid is None:
        raise ValueError("no COMMAND to run, and no --pid")
    try:
        run = watch(words, Watched(*asked), forward=FORWARDED, ctrl_c_passes=True)
    except OSError as error:
        return could_not_run(error, words)
    report(run, options)
    return _status_of(run)


def _status_of(run: ProgramRun) -> int:
    return BY_SIGNAL + run.signal if run.signal else run.status or DONE
