"""Tables and text in columns, for screens that are too narrow for them."""

from __future__ import annotations

import re
from html import escape, unescape
from itertools import chain, cycle, repeat

_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEADING = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_CELL = re.compile(r"<td\b")
_BLOCK = re.compile(r'<div class="([^"]*highlight)">(.*?</div>)', re.DOTALL)
_COLUMNS = re.compile(r"\S {3,}\S")
_LEAST_ROWS = 2
_MOST_COLUMNS = 110
"""Longer lines hold sentences, and go on in the next line."""
_TAG = re.compile(r"<[^>]+>")


def with_column_names(html: str) -> str:
    """Add `data-column`, the heading of its column, to each cell that has one."""
    return _TABLE.sub(lambda table: _named(table[0]), html)


def with_columns_marked(html: str) -> str:
    """Give blocks of text in columns, such as pictures, the class `columns`: their lines stay whole.

    `--columns` is the length of the longest line.
    """
    return _BLOCK.sub(_marked, html)


def _marked(block: re.Match[str]) -> str:
    lines = unescape(_TAG.sub("", block[2])).splitlines()
    longest = max(map(len, lines), default=0)
    if longest > _MOST_COLUMNS or sum(bool(_COLUMNS.search(line)) for line in lines) < _LEAST_ROWS:
        return block[0]
    return f'<div class="{block[1]} columns" style="--columns: {longest}">{block[2]}'


def _named(table: str) -> str:
    names = [unescape(_TAG.sub("", heading)).strip() for heading in _HEADING.findall(table)]
    columns = chain(cycle(names), repeat(""))
    return _CELL.sub(
        lambda cell: f'{cell[0]} data-column="{escape(name)}"' if (name := next(columns)) else cell[0], table
    )
