"""What the kernel says of a process (proc_pid_status(5))."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def status(pid: int | Literal["self"]) -> dict[str, str]:
    """By field."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def resident_kib(pid: int | Literal["self"]) -> int:
    """Its resident memory, VmRSS."""
    return int(status(pid)["VmRSS"].split()[0])
