"""Tables for notebooks, in which everything is escaped: firmware and other programs wrote some of it."""

from __future__ import annotations

import html
from collections.abc import Iterable

ALIGNED = 'style="text-align:left"'


def html_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A title, and rows of a name and a text."""
    lines = (_row(_cell("th", name) + _cell("td", text)) for name, text in rows)
    return f"<table><caption {ALIGNED}><b>{html.escape(title)}</b></caption>{''.join(lines)}</table>"


def html_columns(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A line of headings, and rows of cells below them."""
    lines = ("".join(_cell("td", text) for text in row) for row in rows)
    return f"<table>{_row(''.join(_cell('th', name) for name in head))}{''.join(map(_row, lines))}</table>"


def _row(cells: str) -> str:
    return f"<tr>{cells}</tr>"


def _cell(tag: str, text: str) -> str:
    return f"<{tag} {ALIGNED}>{html.escape(text)}</{tag}>"
