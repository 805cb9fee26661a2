"""``tlbprobe plot``."""

from __future__ import annotations

import argparse
from typing import Any

from ...results.result import load
from .options import add_command
from .output import DONE, check_picture, save_picture


def add(commands: Any) -> None:
    """Add it to the commands."""
    parser = add_command(commands, "plot", run, "Draw a saved result.")
    parser.add_argument("file", metavar="FILE", help="what --out or .save() wrote")
    parser.add_argument("picture", metavar="PICTURE", help="where it is drawn to: .png, .svg or .pdf")


def run(options: argparse.Namespace) -> int:
    """Run it; its exit status."""
    check_picture(options.picture)
    save_picture(load(options.file), options.picture)
    return DONE
