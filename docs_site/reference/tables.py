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
    """A table; a `|` or a new line in a cell does not end it."""
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def code(text: str) -> str:
    """As code; nothing of nothing."""
    return f"`{text}`" if text else ""


def section(page: str, heading: str) -> str:
    """What a page has below a heading of the second level; nothing where it has none."""
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows_by_name(page: str) -> Iterator[tuple[str, list[str]]]:
    """Each name in backticks of a row's first cell, with the row's cells, of all tables of a page."""
    for line in page.splitlines():
        if line.startswith("| "):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
            yield from ((name, cells) for name in _NAMED.findall(cells[0]))


def moved(text: str, *, source: str, to: str) -> str:
    """A text of one page in another: its links lead where they led. Both paths are from the root."""

    def lead(found: re.Match[str]) -> str:
        path, _, anchor = found[1].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source
        return f"]({posixpath.relpath(target, posixpath.dirname(to))}{'#' * bool(anchor)}{anchor})"

    return _LINK.sub(lead, text)
