"""Tables of text: columns that fit the terminal."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence

TABLE_WIDTH = 118  # where the output is no terminal


COUNTED_NOTE = (
    "*: consistent with the page faults that were counted, which is all that can be seen without root"
)


LEFT = (
    "variant",
    "pages",
    "proved",
    "why not",
    "what",
    "event",
    "here",
    "encoding",
    "what it counts",
    "from",
)  # words
HEADINGS = {"translation 95 %": "95 %", "wall 95 %": "95 %", "CPU 95 %": "95 %"}
GAP = "  "
ORDER = (
    "proved",
    "low",
    "spread",
    "95 %",
    "median",
    "translation",
    "translation 95 %",
    "pages per request",
    "hot pages",
    "set-up",
)


def print_table(rows: Sequence[dict[str, str]], spare: Sequence[str]) -> None:
    """Print rows of cells by column; spare columns are left out where the terminal is too narrow."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    terminal = shutil.get_terminal_size((TABLE_WIDTH, 0)).columns
    columns = _fitting(rows, spare, terminal)
    width = max(terminal, _width(rows, columns))  # a narrow terminal may wrap a line; no figure is ever cut
    console = Console(width=width, highlight=False, markup=False)
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for name in columns:
        heading = HEADINGS.get(name, name)
        table.add_column(heading, justify="left" if name in LEFT else "right", no_wrap=True)
    for row in _sparse(rows):
        table.add_row(*(row.get(name, "") for name in columns))
    with console.capture() as text:  # rich would leave the process where a pipe is broken
        console.print(table)
    print(text.get(), end="")
    if any(row.get("proved", "").endswith("*") for row in rows):
        print(COUNTED_NOTE)


def _fitting(rows: Sequence[dict[str, str]], spare: Sequence[str], width: int) -> list[str]:
    """Columns in order, without as many of the spare ones as it takes to fit the width."""
    found = dict.fromkeys(name for row in rows for name in row)
    columns = [*(name for name in found if name not in ORDER), *(name for name in ORDER if name in found)]
    for name in spare:
        if _width(rows, columns) > width and name in columns:
            columns.remove(name)
    return columns


def _width(rows: Sequence[dict[str, str]], columns: Sequence[str]) -> int:
    """Characters of a line with these columns."""
    wide = (max(len(HEADINGS.get(name, name)), *(len(row.get(name, "")) for row in rows)) for name in columns)
    return sum(width + len(GAP) for width in wide) - len(GAP)


def _sparse(rows: Sequence[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Rows without the first cell where it is that of the row before."""
    previous = ""
    for row in rows:
        name, value = next(iter(row.items()))
        yield {**row, name: ""} if value == previous else row
        previous = value
