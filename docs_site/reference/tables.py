"""Tables of Markdown, written and read."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_NAMED = re.compile(r"`([^`]*)`")
_LINK = re.compile(r"\]\((?!\w+:)([^)\s]*)\)")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a `|` or a new line in a cell does not end it."""
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def code(text: str) -> str:
    """Return the text as code; empty for an empty text."""
    return f"`{text}`" if text else ""


def section(page: str, heading: str) -> str:
    """Return a page's text below a heading of the second level; empty if the page does not have it."""
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows_by_name(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each name in backticks of a row's first cell, with the row's cells, of all tables of a page."""
    for line in page.splitlines():
        if line.startswith("| "):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
            yield from ((name, cells) for name in _NAMED.findall(cells[0]))


def moved(text: str, *, source: str, to: str) -> str:
    """Return a text of one page for another: its links keep their targets. Both paths are from the root."""

    def lead(found: re.Match[str]) -> str:
        path, _, anchor = found[1].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source
        return f"]({posixpath.relpath(target, posixpath.dirname(to))}{'#' * bool(anchor)}{anchor})"

    return _LINK.sub(lead, text)
