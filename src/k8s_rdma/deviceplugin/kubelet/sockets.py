"""Whose socket is at a path."""

from __future__ import annotations

import socket
import stat
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class SocketFile(NamedTuple):
    """One socket among all that are ever at a path; inodes are used again, with another time."""

    device: int
    inode: int
    made_ns: int


def socket_at(path: Path) -> SocketFile | None:
    """The socket at a path; None for nothing, or something else."""
    try:
        found = path.lstat()
    except OSError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        return None
    return SocketFile(found.st_dev, found.st_ino, found.st_mtime_ns)


def is_served(path: Path) -> bool:
    """Whether somebody listens at a socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # it listens, and its queue is full
            return True
        except OSError:
            return False
        return True
