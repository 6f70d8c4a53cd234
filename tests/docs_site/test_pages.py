"""Pages are read alike by the site and by code hosts: tables, lists and headings stand apart from text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from documents import DOCUMENTS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ROW = re.compile(r"\|")
_ITEM = re.compile(r"[-*] |\d+\. ")
_HEADING = re.compile(r"#+ ")


def joined(text: str) -> Iterator[str]:
    """Yield lines that begin a table, list or heading without a blank line, or a comment, above them."""
    fenced = False
    above = ""
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and above and not above.startswith("<!--"):
            begins = _ROW.match(line) and not _ROW.match(above)
            begins = begins or _HEADING.match(line)
            begins = begins or (_ITEM.match(line) and not (_ITEM.match(above) or above.startswith(" ")))
            if begins:
                yield line
        above = line


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_tables_lists_and_headings_stand_apart(path: Path):
    assert not list(joined(path.read_text()))


def test_those_without_a_blank_line_are_found_and_not_those_in_blocks():
    text = "Text:\n- item\n  goes on\n- item\n\n| a |\n| - |\n# H\n\n<!-- x -->\n| b |\n```\nx\n- y\n```\n"
    assert list(joined(text)) == ["- item", "# H"]
