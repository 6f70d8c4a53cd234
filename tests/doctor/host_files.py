"""Files of a node whose root is a directory of the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.doctor.collectors.host import Host

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max locked memory         {soft:<20} {soft:<20} bytes
Max open files            1024                 524288               files
"""


def put(host: Host, path: str, text: str) -> Path:
    file = host.root / path.removeprefix("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def process(host: Host, pid: int, name: str, *arguments: str, soft: str = "unlimited") -> None:
    put(host, f"/proc/{pid}/comm", f"{name}\n")
    put(host, f"/proc/{pid}/cmdline", "\0".join([name, *arguments, ""]))
    put(host, f"/proc/{pid}/limits", LIMITS.format(soft=soft))
