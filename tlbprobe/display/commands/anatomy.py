"""``tlbprobe anatomy``."""

from __future__ import annotations

import argparse
from typing import Any

from ...hierarchy.measure import anatomy
from .options import add_command, add_parameters, names_in
from .output import check_outputs, deliver

ANATOMY_PARAMETERS = ("memory", "strict", "seed", "cpu", "max_seconds")


def add(commands: Any) -> None:
    """Add it to the commands."""
    about = (
        "Infer levels, entries, ways and costs of the TLB from timing, and set them beside what CPUID claims."
    )
    parser = add_command(commands, "anatomy", run, about)
    about = "page policies (default: base, and the huge ones on offer)"
    parser.add_argument("--pages", metavar="NAME,...", type=names_in, help=about)
    add_parameters(parser, anatomy, ANATOMY_PARAMETERS)
    parser.add_argument("--out", metavar="FILE", help="save the result: a data file for 'show' and 'plot'")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture: .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")
    parser.set_defaults(csv=False)


def run(options: argparse.Namespace) -> int:
    """Run it; its exit status."""
    check_outputs(options)
    common = {name: getattr(options, name) for name in ANATOMY_PARAMETERS}
    return deliver(anatomy(options.pages, **common), options)
