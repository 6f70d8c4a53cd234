"""The node's root file system, which may be mounted somewhere in ours."""

from __future__ import annotations

from pathlib import Path, PurePath

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


class HostRoot:
    """Looks at files by their absolute paths on the node. All calls block."""

    def __init__(self, root: Path) -> None:
        """Open nothing yet. root: where the node's root file system is for us."""
        self.root = root

    def path_of(self, path: PurePath | str) -> Path:
        """Translate a path of the node to ours; follow links as the node sees them."""
        return below(self.root, Path(path))

    def exists(self, path: PurePath | str) -> bool:
        """Report whether the path exists; a link must lead to a file of the node."""
        return self.path_of(path).exists()

    def names(self, directory: PurePath | str) -> list[str]:
        """List the names in a directory in order; none if there is no such directory. OSError."""
        try:
            return sorted(path.name for path in self.path_of(directory).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
