"""``tlbprobe PROBE``: one command for each record."""

from __future__ import annotations

import argparse
from typing import Any

from ...record import Probe
from ...sweeps.sweep import sweep
from .options import about, add_command, add_parameters, values_in
from .output import add_outputs, check_outputs, deliver

SEVERAL = (
    "Several values with commas between them measure every combination; so does a range FIRST:LAST, of sizes "
    "and counts with N points an octave as FIRST:LAST:N. A point takes up to --max-seconds."
)


def add(commands: Any, record: Probe) -> argparse.ArgumentParser:
    """Add the command of a probe, with an option for each of its parameters."""
    parser = add_command(commands, record.name, lambda options: run(record, options), about(record.function))
    parser.epilog = SEVERAL
    add_parameters(parser, record.function, offered(record), record.helps, several=True)
    add_outputs(parser)
    return parser


def offered(record: Probe) -> list[str]:
    """Parameters of a probe, but for those of a Region, which only Python has."""
    return [name for name in record.parameters if name not in ("working_set", "region")]


def run(record: Probe, options: argparse.Namespace) -> int:
    """Measure one point, or every combination of several values."""
    check_outputs(options)
    arguments = {name: values_in(name, getattr(options, name)) for name in offered(record)}
    if any(isinstance(value, list) for value in arguments.values()):
        return deliver(sweep(record.function, **arguments), options)
    return deliver(record.function(**arguments), options)
