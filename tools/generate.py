"""Write what follows from the records, between markers: names for type checkers, tables of the docs.

python tools/generate.py [--check]: with --check nothing is written, and what is not as it should be is named.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

import tlbprobe as tp
from tlbprobe.cores.description import Description
from tlbprobe.display.commands.main import build_parser
from tlbprobe.record import RECORDS, Probe
from tlbprobe.units import page_suffix

ROOT = Path(__file__).parents[1]


def between(text: str, begin: str, end: str, new: str) -> str:
    """Replace what stands between two markers, each on a line of its own."""
    pattern = re.compile(rf"(?<={re.escape(begin)}\n).*?(?=^ *{re.escape(end)}$)", re.DOTALL | re.MULTILINE)
    changed, count = pattern.subn(lambda _: new, text)
    if count != 1:
        raise ValueError(f"{begin!r} and {end!r} stand {count} times")
    return changed


def names(text: str) -> str:
    """Every public name, from the file that it lives in."""
    homes = {f"probes.{name}": (name,) for name in RECORDS}
    for home, public in tp.HOMES.items():
        homes[home] = (*homes.get(home, ()), *public)
    lines = [
        f"    from .{home} import {name} as {name}\n"
        for home, public in sorted([*homes.items(), ("hierarchy", ("model",))])
        for name in sorted(public, key=lambda name: (name[0].islower(), name))
    ]
    return between(text, "    # names", "# end of names", "".join(lines))


def table(rows: list[tuple[str, ...]]) -> str:
    """Write a table in Markdown; the first row is its heading."""
    head, *others = ("| " + " | ".join(row) + " |\n" for row in rows)
    return "".join([head, "|---" * len(rows[0]) + "|\n", *others])


def probes(text: str) -> str:
    """Every probe: its question, what one access is, its own parameters; then what its docstring notes."""
    rows = [("probe", "tells", "a time is of one", "parameters of its own")]
    for name, record in RECORDS.items():
        own = ", ".join(f"`{parameter}`" for parameter in record.own_parameters)
        rows.append((f"`{name}`", record.question, record.word, own))
    about = (f"\n## `{name}`\n\n{notes(record)}\n" for name, record in RECORDS.items())
    return between(text, "<!-- probes -->", "<!-- end of probes -->", table(rows) + "".join(about) + "\n")


def notes(record: Probe) -> str:
    """What a probe isolates, what confounds it, and its limits: the notes of its docstring, in Markdown."""
    doc = inspect.getdoc(record.function) or ""
    text = " ".join(doc.partition("Notes\n-----\n")[2].partition("\n\n")[0].split())
    text = re.sub(r" \[\d+\]_", "", text).replace("``", "`")  # references to articles; code
    return re.sub(r" ?\b(Isolates|Confounded by|Limits)(?=[:,])", r"\n\n**\1**", text).strip()


def commands(text: str) -> str:
    """Every command, with the line that its help begins with."""
    rows = [("command", "does")]
    named = next(action.choices for action in build_parser()._actions if action.choices)
    rows += [(f"`tlbprobe {name}`", parser.description) for name, parser in dict(named).items()]
    return between(text, "<!-- commands -->", "<!-- end of commands -->", table(rows))


def machines(text: str) -> str:
    """Every simulated machine: its pages, and the entries that each side looks up one after the other."""
    rows = [("machine", "what it is", "pages", "data TLB", "code TLB")]
    for machine in tp.machines():
        pages = ", ".join(page_suffix(size) for size in machine.pages)
        rows.append(
            (f"`{machine.name}`", machine.about, pages, *(levels(machine, side) for side in ("data", "code")))
        )
    return between(text, "<!-- machines -->", "<!-- end of machines -->", table(rows))


def levels(machine: Description, side: str) -> str:
    """Entries of the levels of a side: of a level with several arrays, those for base pages."""
    mine = [level["entries"] for level in machine.tables["tlb"] if level["side"] in (side, "both")]
    held = [next((one for one in arrays if machine.base_page in one["pages"]), arrays[0]) for arrays in mine]
    return ", ".join(f"{one['entries']}{f' ({ways}-way)' if (ways := one['ways']) else ''}" for one in held)


GENERATED: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("tlbprobe/__init__.py", names),
    ("docs/probes.md", probes),
    ("docs/commands.md", commands),
    ("docs/simulated.md", machines),
)


def main() -> int:
    """Write all of it, or name what is not as it should be."""
    stale = []
    for place, generate in GENERATED:
        path = ROOT / place
        before = path.read_text(encoding="utf-8")
        after = generate(before)
        if after != before:
            stale.append(place)
            if "--check" not in sys.argv:
                path.write_text(after, encoding="utf-8")
    if stale and "--check" in sys.argv:
        print(f"not as 'make readme' would write it: {', '.join(stale)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
