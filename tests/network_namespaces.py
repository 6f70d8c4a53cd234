"""Network namespaces that end with their descriptor."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor

from k8s_rdma.linux.netns import current_namespace

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)  # os.unshare comes with Python 3.12


def create_namespace() -> int:
    """A descriptor of a new network namespace; without mount or process it ends when that is closed."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_unshare).result()


def _unshare() -> int:
    if _libc.unshare(_CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")
    return current_namespace()
