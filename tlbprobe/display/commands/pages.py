"""``tlbprobe pages``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...cores.current import current
from ...grouping import grouped
from ...memory.needs import PageNeed, page_needs
from ...memory.policies import page_policies
from ...programs.mappings import ProgramMapping, program_mappings, whole_program
from ...record import COMMAND_HELPS
from ...units import approximate_size, format_size, printable
from ..tables import print_table
from .options import add_command
from .output import DONE, print_either

MAPPINGS_SHOWN = 20


def add(commands: Any) -> None:
    """Add it to the commands."""
    about = "Say what a size needs of each kind of page, or which mappings of a program are huge and why not."
    parser = add_command(commands, "pages", run, about)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("size", nargs="?", metavar="SIZE", help=COMMAND_HELPS["size"])
    which.add_argument("--pid", type=int, metavar="N", help="number of a running program")
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")


def run(options: argparse.Namespace) -> int:
    """Run it; its exit status."""
    if options.pid is not None:
        mappings = program_mappings(options.pid)
        print_either(options.json, mappings, print_mappings)
    elif options.size is not None:
        print_either(options.json, page_needs(options.size), _print_needs)
    else:
        print_either(options.json, page_policies(), lambda policies: print(*policies, sep="\n"))
    return DONE


def _print_needs(needs: Sequence[PageNeed]) -> None:
    if current().name:
        print(f"pages are {current()}; memory is this machine's")
    print_table([_need_cells(need) for need in needs], spare=("wasted",))
    print("obtainable: in free memory, base pages in available memory; left: what is available afterwards")
    for need in needs:
        if len(need.by_node) > 1:
            nodes = (f"node {node}: {pool} + {free}" for node, (pool, free) in need.by_node.items())
            print(f"{need.policy.name}, reserved + in free blocks: {', '.join(nodes)}")
    for name, need in _commanded(needs).items():
        for when, command in (("now", need.now), ("at boot", need.at_boot)):
            if command:
                print(f"{name} {when}: {command}")


def _commanded(needs: Sequence[PageNeed]) -> dict[str, PageNeed]:
    """What there are commands for, by name; of sizes that are offered alike the first."""
    hugetlb = {need.policy.name: need for need in needs if need.policy.kind == "hugetlb"}
    others = (need for need in needs if need.now and need.policy.kind != "hugetlb")
    alike = grouped(others, lambda need: need.policy.kind)
    names = {f"{first.policy.name} (others likewise)" if more else first.policy.name: first
             for first, *more in alike.values()}  # fmt: skip
    return {**names, **hugetlb}


def _need_cells(need: PageNeed) -> dict[str, str]:
    left = need.left_bytes
    return {
        "pages": need.policy.name,
        "size": format_size(need.page_size),
        "needed": str(need.pages),
        "reserved": "" if need.reserved is None else str(need.reserved),
        "obtainable": "unknown" if need.obtainable is None else str(need.obtainable),
        "enough": {True: "by command" if need.now else "yes", False: "no", None: "unknown"}[need.enough],
        "wasted": approximate_size(need.unused_bytes),
        "left": "unknown" if left is None else "-" * (left < 0) + approximate_size(abs(left)),
    }


def print_mappings(mappings: Sequence[ProgramMapping]) -> None:
    """The largest ones; the rest is in the sum, and in --json."""
    print(whole_program(mappings))
    print_table([_mapping_cells(one) for one in mappings[:MAPPINGS_SHOWN]], spare=("at", "size"))
    if len(mappings) > MAPPINGS_SHOWN:
        print(f"and {len(mappings) - MAPPINGS_SHOWN} smaller ones: --json prints them")


def _mapping_cells(one: ProgramMapping) -> dict[str, str]:
    return {
        "at": f"{one.start:x}",
        "size": approximate_size(one.size),
        "resident": approximate_size(one.resident),
        "huge": f"{one.huge / one.resident:.0%}",
        "why not": one.reason or "huge",
        "what": printable(Path(one.name).name if one.name.startswith("/") else one.name or "anonymous"),
    }
