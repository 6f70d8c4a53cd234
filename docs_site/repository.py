"""The files of the repository that the site has: docs/, the documents beside it, and their link targets."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FIRST = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
MARK = "mark.svg"
"""The site's mark, beside this file."""

_CODE = re.compile(r"^(`{3,}).*?^\1|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_TARGET = re.compile(r"\]\((?!\w+:)([^)#\s]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFiles:
    """Paths from the root, with `/`. listings: folders that are linked to and have no README.md."""

    files: tuple[str, ...]
    listings: tuple[str, ...]


def site_files(root: Path) -> SiteFiles:
    """Return the files of the site; mkdocs reports links to missing files."""
    pages = sorted(path.relative_to(root).as_posix() for path in (root / "docs").rglob("*.md"))
    waiting = [*FIRST, *pages]
    found: dict[str, None] = {}
    while waiting:
        path = waiting.pop()
        if path in found or not (root / path).exists():
            continue
        found[path] = None
        if (root / path).is_dir():
            waiting.extend(f"{path}/{each.name}" for each in (root / path).iterdir() if each.is_file())
        elif path.endswith(".md"):
            waiting.extend(link_targets(path, (root / path).read_text()))
    folders = [path for path in found if (root / path).is_dir()]
    return SiteFiles(
        files=tuple(sorted(found.keys() - set(folders))),
        listings=tuple(path for path in folders if f"{path}/README.md" not in found),
    )


def link_targets(page: str, text: str) -> list[str]:
    """Return the targets of a page's relative links, each from the root."""
    targets = _TARGET.findall(_CODE.sub("", text))
    return [posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) for target in targets]


def listing(root: Path, folder: str) -> str:
    """Return a page for a folder, as a code host shows one."""
    names = sorted(path.name for path in (root / folder).iterdir() if path.is_file())
    return "\n".join([f"# {folder}", "", *(f"- [{name}]({name})" for name in names), ""])


def with_pages_for_folders(root: Path, page: str, text: str) -> str:
    """Return a page's text in which links to folders lead to pages for them, as on a code host."""

    def lead(found: re.Match[str]) -> str:
        folder = root / posixpath.join(posixpath.dirname(page), found[1])
        return f"]({found[1].rstrip('/')}/README.md" if folder.is_dir() else found[0]

    return _TARGET.sub(lead, text)
