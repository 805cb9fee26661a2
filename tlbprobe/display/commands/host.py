"""``tlbprobe host``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from ...machine import facts
from .options import add_command
from .output import DONE


def add(commands: Any) -> None:
    """Add it to the commands."""
    parser = add_command(commands, "host", run, "Say what this machine is, and what could spoil a result.")
    parser.add_argument("--json", action="store_true", help="print every fact as JSON")


def run(options: argparse.Namespace) -> int:
    """Run it; its exit status."""
    host = facts.host()
    if options.json:
        hazards = [asdict(hazard) for hazard in host.hazards]
        print(json.dumps({**host.to_dict(), "hazards": hazards}, indent=2, allow_nan=False))
    else:
        print(host)
    return DONE
