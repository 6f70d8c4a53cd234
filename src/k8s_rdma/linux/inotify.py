"""Notifications about entries of directories. Source: inotify(7)."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_IN_MODIFY, _IN_ATTRIB, _IN_CLOSE_WRITE = 0x2, 0x4, 0x8
_IN_MOVED_FROM, _IN_MOVED_TO, _IN_CREATE = 0x40, 0x80, 0x100
_IN_DELETE, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x200, 0x400, 0x800
_IN_UNMOUNT, _IN_Q_OVERFLOW, _IN_IGNORED = 0x2000, 0x4000, 0x8000
_IN_ONLYDIR = 0x0100_0000
_DELETIONS = _IN_MOVED_FROM | _IN_DELETE | _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_ONLYDIR
_CHANGES = _DELETIONS | _IN_CREATE | _IN_MOVED_TO
_CONTENTS = _CHANGES | _IN_MODIFY | _IN_ATTRIB | _IN_CLOSE_WRITE
_ENDED = _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_UNMOUNT | _IN_Q_OVERFLOW
_EVENT = struct.Struct("iIII")  # struct inotify_event, followed by `len` bytes of name
_BUFFER = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


class _Inotify:
    """Watches directories; its descriptor, for an event loop, is readable when there are events."""

    def __init__(self) -> None:
        """Open a descriptor without watches. OSError at the limit of inotify instances."""
        self._fd = _checked(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all watches; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def _add(self, directory: Path, events: int) -> int:
        """Add a watch, or find the one that a directory already has; negative on failure."""
        return int(_libc.inotify_add_watch(self._fd, os.fsencode(directory), events))

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _BUFFER)
        except BlockingIOError:
            return b""


class DirectoryChanges(_Inotify):
    """Notifies that entries of directories, or the directories, were added or removed, but not which.

    contents: notify also of files that were written to in place or whose modes changed.
    """

    def __init__(self, *, contents: bool = False) -> None:
        super().__init__()
        self._events = _CONTENTS if contents else _CHANGES

    def watch(self, directories: Iterable[Path]) -> None:
        """Watch these directories as well, as they are now; missing ones are left out.

        OSError (ENOSPC) at the limit of watches; the directories before that one are watched.
        """
        for directory in directories:
            if self._add(directory, self._events) < 0 and ctypes.get_errno() == errno.ENOSPC:
                raise OSError(errno.ENOSPC, "no inotify watch is left", str(directory))

    def forget(self) -> None:
        """Discard all pending events."""
        while self._read():
            pass


class Deletions(_Inotify):
    """Reports the entries that are deleted from directories."""

    def __init__(self) -> None:
        super().__init__()
        self._watched: dict[int, Path] = {}

    def watch(self, directories: Iterable[Path]) -> bool:
        """Watch these as well; return whether any watch is new.

        Directories that cannot be watched are left out.
        """
        watched = set(self._watched)
        for directory in set(directories).difference(self._watched.values()):
            watch = self._add(directory, _DELETIONS)
            if watch >= 0:
                self._watched[watch] = directory
        return bool(self._watched.keys() - watched)

    def drain(self) -> frozenset[Path] | None:
        """Return the paths deleted or moved away since the last call; None when events were lost."""
        deleted: set[Path] = set()
        untold = False
        while data := self._read():
            while data:
                watch, mask, _, length = _EVENT.unpack_from(data)
                name = data[_EVENT.size : _EVENT.size + length].rstrip(b"\0")
                data = data[_EVENT.size + length :]
                untold |= bool(mask & _ENDED)
                directory = self._watched.get(watch)
                if mask & (_IN_IGNORED | _IN_MOVE_SELF):
                    self._watched.pop(watch, None)
                elif directory is not None and name:
                    deleted.add(directory / os.fsdecode(name))
        return None if untold else frozenset(deleted)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
