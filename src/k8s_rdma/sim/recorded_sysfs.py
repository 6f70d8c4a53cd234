"""A recorded sysfs, served from memory: directories, symbolic links, and what the kernel refuses to read.

Every failure is an OSError with the kernel's errno.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.wire.machine import Refused, SymbolicLink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from k8s_rdma.wire.machine import Entry

_MOST_LINKS = 40
"""Symbolic links that a path may lead through (Linux `include/linux/namei.h`, MAXSYMLINKS)."""

_DIRECTORY = None


class RecordedTree:
    """Entries by path; directories are those that have something below them, and the empty ones recorded.

    As in sysfs, links lead to something: to an empty directory where nothing is recorded of it.
    """

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._nodes: dict[str, Entry] = {"": _DIRECTORY}
        self._names: dict[str, set[str]] = {"": set()}
        for path, entry in entries.items():
            self._enter(path, entry)
        for entry in entries.values():
            if isinstance(entry, SymbolicLink) and entry.target[1:] not in self._nodes:
                self._enter(entry.target[1:], _DIRECTORY)

    def _enter(self, path: str, entry: Entry) -> None:
        parent, _, name = path.rpartition("/")
        if parent not in self._names:
            self._enter(parent, _DIRECTORY)
        self._names[parent].add(name)
        self._nodes[path] = entry
        if entry is _DIRECTORY:
            self._names.setdefault(path, set())

    def read(self, path: str) -> str:
        """A file's text; one that is not empty ends with a newline."""
        node = self._nodes[self.resolved(path)]
        if isinstance(node, Refused):
            raise _error(node.number, path)
        if not isinstance(node, str):
            raise _error(errno.EISDIR, path)
        return f"{node}\n" if node else ""

    def names(self, path: str) -> list[str]:
        """What a directory holds."""
        found = self.resolved(path)
        node = self._nodes[found]
        if isinstance(node, Refused):
            raise _error(node.number, path)
        if node is not _DIRECTORY:
            raise _error(errno.ENOTDIR, path)
        return sorted(self._names[found])

    def target(self, path: str) -> str:
        """The last part of where a link leads."""
        parent, _, name = path.rstrip("/").rpartition("/")
        directory = self.resolved(parent)
        node = self._node(directory, f"{directory}/{name}" if directory else name, path)
        if not isinstance(node, SymbolicLink):
            raise _error(errno.EINVAL, path)
        return node.target.rpartition("/")[2]

    def resolved(self, path: str) -> str:
        """The path itself, where it leads through no symbolic link any more."""
        steps, links, found = path.split("/")[::-1], 0, ""
        while steps:
            step = steps.pop()
            if step in {"", "."}:
                continue
            if step == "..":
                found = found.rpartition("/")[0]
                continue
            below = f"{found}/{step}" if found else step
            node = self._node(found, below, path)
            if not isinstance(node, SymbolicLink):
                found = below
                continue
            links += 1
            if links > _MOST_LINKS:
                raise _error(errno.ELOOP, path)
            found = ""
            steps += node.target.split("/")[::-1]
        return found

    def _node(self, directory: str, below: str, path: str) -> Entry:
        if self._nodes[directory] is not _DIRECTORY:
            node = self._nodes[directory]
            raise _error(node.number if isinstance(node, Refused) else errno.ENOTDIR, path)
        if below not in self._nodes:
            raise _error(errno.ENOENT, path)
        return self._nodes[below]

    def set_text(self, path: str, text: str) -> None:
        """Give the file at a resolved path another text; without one there nothing happens."""
        if path in self._nodes:
            self._nodes[path] = text

    def remove(self, path: str) -> None:
        """Take away a resolved path, what is below it, and the links that lead there."""
        links = {at: node.target[1:] for at, node in self._nodes.items() if isinstance(node, SymbolicLink)}
        for each in (path, *(at for at, target in links.items() if f"{target}/".startswith(f"{path}/"))):
            self._cut(each)

    def _cut(self, path: str) -> None:
        if path not in self._nodes:
            return
        for name in list(self._names.get(path, ())):
            self._cut(f"{path}/{name}")
        parent, _, name = path.rpartition("/")
        self._names[parent].discard(name)
        self._names.pop(path, None)
        del self._nodes[path]


class RecordedSysfs(Sysfs):
    """The sysfs of a recorded machine; nothing can be written to it (EROFS)."""

    def __init__(self, tree: RecordedTree, look: Callable[[], None]) -> None:
        """`look` is called before anything is looked at."""
        super().__init__()
        self._tree, self._look = tree, look

    def read(self, path: str) -> str:
        """A file's text, whole."""
        self._look()
        return self._tree.read(path)

    def names(self, path: str) -> list[str]:
        """What a directory holds."""
        self._look()
        return self._tree.names(path)

    def target(self, path: str) -> str:
        """The last part of where a symbolic link leads."""
        self._look()
        return self._tree.target(path)

    def resolved(self, path: str) -> str:
        """The path without symbolic links."""
        self._look()
        return self._tree.resolved(path)

    def write(self, path: str, _text: str) -> None:
        """Refuse."""
        raise _error(errno.EROFS, path)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), f"/{path.strip('/')}")
