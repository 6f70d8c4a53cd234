"""The site's navigation is docs/index.md: a section a heading, a page an item."""

from __future__ import annotations

import posixpath
import re

Navigation = list[dict[str, object]]

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_ITEM = re.compile(r"^- \[([^\]]+)\]\(([^)#\s]+)\)", re.MULTILINE)


def navigation(index: str, generated: dict[str, list[tuple[str, str]]]) -> Navigation:
    """Return the `nav` of mkdocs, of the text of docs/index.md.

    generated: by section, titles and paths of pages that are in no index, as they are in no repository.
    """
    _, *parts = _SECTION.split(index)
    sections: Navigation = []
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        pages = [(name, posixpath.normpath(f"docs/{path}")) for name, path in _ITEM.findall(text)]
        sections.append({title: [{name: path} for name, path in pages + generated.get(title, [])]})
    return [{"Overview": "README.md"}, *sections]
