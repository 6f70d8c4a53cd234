"""Memory that connections took goes back to the kernel."""

from __future__ import annotations

import ctypes
import gc

_M_MMAP_THRESHOLD = -3
_THRESHOLD_BYTES = 128 << 10


def give_back_large_buffers() -> None:
    """Keep the C library's threshold for memory of its own mapping (mallopt(3)) where it is at first.

    glibc raises it to the largest such buffer that was ever freed. From then on TLS's 256 KiB of each
    connection come from the heap, between small objects, by which the heap grows under many connections
    and stays so. Another C library has no such threshold, and is left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)


def give_back_free_memory() -> None:
    """Have the C library return what is free between objects that stay (malloc_trim(3)), where it can.

    What ended connections left in circles is freed first; what has stayed for long is not gone through.
    """
    gc.collect(1)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
