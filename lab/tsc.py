"""How fast this machine's time stamp counter counts.

An emulated guest reads the same counter (QEMU, `cpu_get_host_ticks`). By itself it would measure the speed
when it boots, by timers that a busy host lets run late, and then have a clock that is several times too fast:
deadlines in it pass early, and throughput is reported wrong.
"""

from __future__ import annotations

import ctypes
import mmap
import statistics
import time

_READ = bytes.fromhex("0f31 48c1e220 4809d0 c3")
"""rdtsc; shl rdx, 32; or rax, rdx; ret (Intel SDM, volume 2, RDTSC)."""
_WHILE_S = 0.02
_TIMES = 5


def tsc_khz() -> int:
    """Return counts in a millisecond."""
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(_READ)
        view = ctypes.c_char.from_buffer(page)
        read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(view))
        speeds = []
        for _ in range(_TIMES):
            count, began = read(), time.perf_counter_ns()
            time.sleep(_WHILE_S)
            speeds.append((read() - count) * 1_000_000 // (time.perf_counter_ns() - began))
        del view
    return int(statistics.median(speeds))
