"""``tlbprobe events``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ...cores.current import current
from ...counters import groups
from ...grouping import grouped
from ..tables import print_table
from .options import add_command
from .output import DONE, print_either


def add(commands: Any) -> None:
    """Add it to the commands."""
    about = "Say what this processor can count, what each event means on it, and what cannot be had and why."
    parser = add_command(commands, "events", run, about)
    about = "CPU whose events are meant, where there are several kinds (default: the current one)"
    parser.add_argument("--cpu", type=int, metavar="N", help=about)
    parser.add_argument("--json", action="store_true", help="print every event as JSON")
    about = "events in question, as --counters takes them (default: all that there are)"
    parser.add_argument("names", metavar="NAME", nargs="*", help=about)


def run(options: argparse.Namespace) -> int:
    """Run it; its exit status."""
    found = groups.events(options.cpu, options.names)
    if not options.json:
        print(groups.whose_events(options.cpu))
    print_either(options.json, found, _print_events)
    if not options.json and not options.names and not current().name:
        print(MORE_EVENTS)
    return DONE


def _print_events(found: Sequence[groups.CounterEvent]) -> None:
    """Events that this processor has, then why some of them, and others, cannot be had."""
    print_table([_event_cells(event) for event in found if event.encoding], spare=("from",))
    if not current().name:
        print("counts: proved on a chase whose misses are known, or counted by the kernel itself")
    missing = (event for event in found if event.status in ("dead", "refused"))
    alike = grouped(missing, lambda event: (event.status, event.reason, event.command))
    for (status, reason, command), events in alike.items():
        remedy = f"\n    to allow it: {command}" if command else ""
        print(f"{status}: {', '.join(event.name for event in events)}: {reason}{remedy}")


MORE_EVENTS = (
    "Also taken: numbers (r1008, cpu/event=0x08,umask=0x10,cmask=1/), names that the kernel announces in "
    "/sys/bus/event_source/devices, perf's other cache events, and names of libpfm4 where it is installed. "
    "tlb stands for a set of them."
)


def _event_cells(event: groups.CounterEvent) -> dict[str, str]:
    return {
        "event": event.name,
        "here": event.status,
        "encoding": "" if event.encoding == event.name else event.encoding,
        "what it counts": event.meaning,
        "from": event.source,
    }
