"""Files of the node, whose root file system is mounted somewhere in ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_MOST_LINKS = 40
"""The kernel's limit of links in one path (path_resolution(7))."""


def below(root: Path, path: Path) -> Path:
    """Resolve an absolute path of the node; links on the way are followed as the node sees them.

    For this process an absolute link (`/opt/cni/bin` often is one) would lead out of the node's root into its
    own. A missing file, or a circle of links, gives a path that does not exist either.
    """
    found, to_go, links = root, list(reversed(path.parts[1:])), 0
    while to_go:
        part = to_go.pop()
        if part == "..":
            found = found.parent if found != root else root
            continue
        target = found / part
        if target.is_symlink() and links < _MOST_LINKS:
            links += 1
            aim = target.readlink()
            if aim.is_absolute():
                found = root
            to_go += reversed(aim.parts[aim.is_absolute() :])
        else:
            found = target
    return found
