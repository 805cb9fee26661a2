"""``tlbprobe curve``."""

from __future__ import annotations

import argparse
from typing import Any

from ...sweeps.curve import curve
from ...units import parse_size
from .options import add_command, add_parameters, names_in, range_in
from .output import add_outputs, check_outputs, deliver

CURVE_PARAMETERS = ("strict", "seed", "cpu", "precision", "max_seconds", "anatomy")

ANATOMY = "file of 'tlbprobe anatomy --out FILE' on this machine, whose levels the picture shows"


def add(commands: Any) -> None:
    """Add it to the commands."""
    about = "Measure latency over working set and page policy, with the translation cost beside it."
    parser = add_command(commands, "curve", run, about)
    about = "working sets: a range with N an octave, or a list (default: 16KiB:1GiB:4)"
    parser.add_argument("--sizes", metavar="FIRST:LAST[:N]|SIZE,...", default="16KiB:1GiB:4", help=about)
    about = "page policies (default: base, thp, every hugetlb and mTHP size on offer)"
    parser.add_argument("--pages", metavar="NAME,...", type=names_in, help=about)
    add_parameters(parser, curve, CURVE_PARAMETERS, {"anatomy": ANATOMY})
    add_outputs(parser)


def parse_sizes(text: str) -> list[int]:
    """Read ``16KiB:1GiB:4`` or ``16KiB,1MiB``."""
    if ":" in text:
        return range_in("sizes", text)
    return [parse_size(size.strip(), "sizes") for size in text.split(",")]


def run(options: argparse.Namespace) -> int:
    """Run it; its exit status."""
    check_outputs(options)
    common = {name: getattr(options, name) for name in CURVE_PARAMETERS}
    return deliver(curve(parse_sizes(options.sizes), options.pages, **common), options)
