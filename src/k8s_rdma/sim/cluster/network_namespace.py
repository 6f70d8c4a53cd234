"""Network namespaces that last as long as a file: how container runtimes keep them.

Source: namespaces(7), unshare(2), mount(2); containerd `pkg/netns`. Works for root, and for who is root in
a user namespace with a mount namespace of its own (`unshare -Urmn`).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from pathlib import Path

_CLONE_NEWNET = 0x40000000
_MS_BIND = 4096
_MNT_DETACH = 2
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_IFREQ_FLAGS = "16sH22x"  # struct ifreq with ifr_flags
_libc = ctypes.CDLL(None, use_errno=True)  # os.unshare comes with Python 3.12; mount(2) is nowhere


def create_namespace_at(path: Path) -> None:
    """Make a network namespace with `lo` up, bound to a new file; KernelError leaves nothing behind."""
    failures: list[OSError] = []

    def make() -> None:
        try:
            _call("unshare", _CLONE_NEWNET)
            _call("mount", b"/proc/thread-self/ns/net", os.fsencode(path), None, _MS_BIND, None)
            _bring_loopback_up()
        except OSError as error:
            failures.append(error)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=False)
    except OSError as error:
        msg = f"network namespace {path}: {error.strerror}"
        raise KernelError(msg) from error
    # The namespace of a thread cannot be undone, so that a thread of its own makes it and ends.
    thread = threading.Thread(target=make, name="netns")
    thread.start()
    thread.join()
    if failures:
        remove_namespace_at(path)
        msg = f"network namespace {path}: {failures[0]}"
        raise KernelError(msg) from failures[0]


def remove_namespace_at(path: Path) -> None:
    """Let go of the namespace and remove the file; the namespace ends with its last user. Twice is once."""
    with suppress(OSError):  # not mounted
        _call("umount2", os.fsencode(path), _MNT_DETACH)
    path.unlink(missing_ok=True)


def is_namespace(path: Path) -> bool:
    """Whether a namespace is bound to the file: it is then on the kernel's file system of namespaces."""
    try:
        return path.stat().st_dev == os.stat("/proc/self/ns/net").st_dev  # noqa: PTH116 - a stat of a link
    except OSError:
        return False


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack(_IFREQ_FLAGS, b"lo", 0))
        _, flags = struct.unpack(_IFREQ_FLAGS, answer)
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack(_IFREQ_FLAGS, b"lo", flags | _IFF_UP))


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
