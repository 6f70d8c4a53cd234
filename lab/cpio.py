"""Archives that the kernel unpacks into its first root: cpio, format "newc".

Linux' Documentation/driver-api/early-userspace/buffer-format.rst describes the format, and says that archives
may follow each other in one file.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

NODES = {"dev/console": (0o600, 5, 1), "dev/null": (0o666, 1, 3)}
"""Character devices that the first process needs before it mounts: mode, major, minor."""


def write_archive(tree: Path, archive: Path, *, nodes: bool = False) -> None:
    """Write the whole tree, all of it owned by root. nodes: with NODES."""
    with archive.open("wb") as file:
        writing = _Writing(file)
        for path in _below(tree):
            writing.path(path, str(path.relative_to(tree)))
        for name, (mode, major, minor) in NODES.items() if nodes else ():
            writing.entry(name, stat.S_IFCHR | mode, device=(major, minor))
        writing.entry("TRAILER!!!", 0)
        file.write(b"\0" * (-file.tell() % 512))


class _Writing:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._inode = 0

    def path(self, path: Path, name: str) -> None:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            self.entry(name, mode, os.fsencode(path.readlink()))
        elif stat.S_ISDIR(mode):
            self.entry(name, stat.S_IFDIR | 0o755)
        elif stat.S_ISREG(mode):
            self.entry(name, mode, path.read_bytes())

    def entry(self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        self._inode += 1
        encoded = os.fsencode(name) + b"\0"
        fields = (self._inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(encoded), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
        for part in (head, data):
            self._file.write(part + b"\0" * (-len(part) % 4))


def _below(tree: Path) -> list[Path]:
    """Return every folder before its content."""
    found = []
    for folder, folders, files in os.walk(tree):
        folders.sort()
        found += [tree / folder / name for name in sorted(folders + files)]
    return found
