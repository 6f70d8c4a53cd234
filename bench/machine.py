"""The machine that benchmarks run on, and whether other programs use it meanwhile."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path

BUSY_PERCENT = 5.0
"""The most that other programs may take of the processors, for figures to count."""

_LOOK_S = 3.0
_IDLE = slice(3, 5)
"""The columns of idle time and of waiting for disks in `/proc/stat` (proc(5)), after the name."""


def description() -> str:
    """Return the processors, memory, kernel and Python, on one line."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^(?:model name|CPU part)\s*: (.*)$", cpuinfo, re.MULTILINE)
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} of {os.cpu_count()} processors, {model[1] if model else platform.machine()}; "
        f"{memory_gib:.0f} GiB; {platform.system()} {platform.release()}; Python {platform.python_version()}"
    )


def busy_percent(look_s: float = _LOOK_S) -> float:
    """Measure the share of the processors that is in use, by a process that sleeps meanwhile."""
    idle, total = _ticks()
    time.sleep(look_s)
    idle_later, total_later = _ticks()
    passed = total_later - total
    return 100 * (1 - (idle_later - idle) / passed) if passed else 0.0


def _ticks() -> tuple[int, int]:
    """Return the idle and all ticks of all processors since the start."""
    [line] = [
        line for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines() if line[:4] == "cpu "
    ]
    ticks = [int(each) for each in line.split()[1:9]]  # guests' are in user time already
    return sum(ticks[_IDLE]), sum(ticks)
