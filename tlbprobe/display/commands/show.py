"""``tlbprobe show``."""

from __future__ import annotations

import argparse
from typing import Any

from ...results.result import load
from ..text import check_table
from .options import add_command
from .output import DONE, add_formats, show, trusting


def add(commands: Any) -> None:
    """Add it to the commands."""
    parser = add_command(commands, "show", run, "Print a saved result.")
    parser.add_argument("file", metavar="FILE", help="what --out or .save() wrote")
    add_formats(parser)


def run(options: argparse.Namespace) -> int:
    """Run it; its exit status."""
    result = load(options.file)
    if options.csv:
        check_table(result)
    with trusting(options.file):
        show(result, as_json=options.json, as_csv=options.csv)
    return DONE
