"""The kernel's status of a process (proc_pid_status(5), proc_pid_stat(5))."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal


def status(pid: int | Literal["self"]) -> dict[str, str]:
    """By field."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def resident_kib(pid: int | Literal["self"]) -> int:
    """Its resident memory, VmRSS."""
    return int(status(pid)["VmRSS"].split()[0])


def processor_s(pid: int) -> float:
    """User and system time of all its threads, in ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
