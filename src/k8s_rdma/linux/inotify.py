"""What comes to and goes from directories, told by the kernel. Source: inotify(7)."""

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
    """Watches directories; a descriptor for an event loop, readable when there is something to tell."""

    def __init__(self) -> None:
        """Watch nothing yet. OSError when the kernel has no more of these to give."""
        self._fd = _checked(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Watch nothing any more; once more does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def _add(self, directory: Path, events: int) -> int:
        """The watch, the same for a directory that is watched already; negative for none."""
        return int(_libc.inotify_add_watch(self._fd, os.fsencode(directory), events))

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _BUFFER)
        except BlockingIOError:
            return b""


class DirectoryChanges(_Inotify):
    """Tells that something came or went in directories, or they themselves; what, one has to look.

    contents: also that files there were written to in place, or given other modes.
    """

    def __init__(self, *, contents: bool = False) -> None:
        super().__init__()
        self._events = _CONTENTS if contents else _CHANGES

    def watch(self, directories: Iterable[Path]) -> None:
        """Watch what these paths are now as well; one that is not there is left out.

        OSError (ENOSPC) when the kernel has no more watches to give; those before are watched.
        """
        for directory in directories:
            if self._add(directory, self._events) < 0 and ctypes.get_errno() == errno.ENOSPC:
                raise OSError(errno.ENOSPC, "no inotify watch is left", str(directory))

    def forget(self) -> None:
        """Be silent about what was told until now."""
        while self._read():
            pass


class Deletions(_Inotify):
    """Tells what is deleted from directories."""

    def __init__(self) -> None:
        super().__init__()
        self._watched: dict[int, Path] = {}

    def watch(self, directories: Iterable[Path]) -> bool:
        """Watch these as well; whether any was not before. One that cannot be watched now is left out."""
        watched = set(self._watched)
        for directory in set(directories).difference(self._watched.values()):
            watch = self._add(directory, _DELETIONS)
            if watch >= 0:
                self._watched[watch] = directory
        return bool(self._watched.keys() - watched)

    def drain(self) -> frozenset[Path] | None:
        """What was deleted or moved away since this was asked last; None: perhaps anything, look yourself."""
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
