"""``tlbprobe plot``."""

from __future__ import annotations

import argparse
from typing import Any

from ...results.result import load
from .options import add_command
from .output import DONE, REFUSED, check_picture, complain, save_picture, trusting


def add(commands: Any) -> None:
    """Add it to the commands."""
    parser = add_command(commands, "plot", run, "Draw a saved result.")
    parser.add_argument("file", metavar="FILE", help="what --out or .save() wrote")
    parser.add_argument("picture", metavar="PICTURE", help="where it is drawn to: .png, .svg or .pdf")


def run(options: argparse.Namespace) -> int:
    """Run it; its exit status."""
    check_picture(options.picture)
    result = load(options.file)
    with trusting(options.file):
        if not result.drawable:
            return complain(f"{options.file!r} holds nothing that a picture could show", REFUSED)
        save_picture(result, options.picture)
    return DONE
