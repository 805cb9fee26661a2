"""``tlbprobe fault``: the probe, and where the time of a fault goes."""

from __future__ import annotations

import argparse
from typing import Any

from ...record import Probe
from ...sweeps.fault_parts import fault_parts
from . import probe
from .output import check_outputs, deliver

OF_PARTS = ("size", "seed", "cpu")  # what has a meaning where every kind of fault is measured


def add(commands: Any, record: Probe) -> None:
    """Add the command of the probe, with one option more."""
    parser = probe.add(commands, record)
    about = "say where the time of a fault goes, part by part, from a dozen kinds of this size"
    parser.add_argument("--parts", action="store_true", help=about)
    parser.set_defaults(run=lambda options: run(record, options))


def run(record: Probe, options: argparse.Namespace) -> int:
    """Measure one kind of fault, or take a fault to parts."""
    if not options.parts:
        return probe.run(record, options)
    check_outputs(options)
    for name, parameter in record.parameters.items():
        if name not in OF_PARTS and getattr(options, name) != parameter.default:
            raise ValueError(f"--{name} makes no sense with --parts, which measures every kind by itself")
    return deliver(fault_parts(options.size, seed=options.seed, cpu=options.cpu), options)
