"""How much memory containers may lock, which RDMA needs for every buffer.

A container has the limit that its runtime was started with (RLIMIT_MEMLOCK; Linux
`drivers/infiniband/core/umem.c`, ib_umem_get) but for processes that have CAP_IPC_LOCK. No container has it
by default, and added to one (`capabilities.add`) it is root's alone: Kubernetes sets no ambient
capabilities, so that execve takes permitted and effective ones from any other user (Linux
`security/commoncap.c`, cap_bprm_creds_from_file) whose program has none as a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.finding import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding

MEMLOCK = Subject("memlock", "Locked memory")
OK = MEMLOCK.ok()
LOW = MEMLOCK.warning("low")
NO_PROCESS = MEMLOCK.warning("no-process")

UNLIMITED = None
ENOUGH_BYTES = 64 << 30
"""More than a training job registers; a limit at or above it is deliberate."""
_UNITS = {"crio": "crio", "containerd": "containerd", "dockerd": "docker"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LockingProcess:
    """soft_bytes: None for no limit."""

    name: str
    pid: int
    soft_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemlockFacts:
    """Runtimes that start containers."""

    processes: tuple[LockingProcess, ...]


def check_memlock(facts: MemlockFacts) -> Iterator[Finding]:
    """One finding for each process that starts containers."""
    if not facts.processes:
        yield NO_PROCESS(
            "no process of containerd or CRI-O is seen, so that the limit is not known",
            source="/proc/*/limits",
            expected="to be looked at on the node",
            fix="run the doctor on the node, or with the node's /proc below --host-root",
        )
    for process in facts.processes:
        source = f"/proc/{process.pid}/limits, Max locked memory"
        if process.soft_bytes is UNLIMITED or process.soft_bytes >= ENOUGH_BYTES:
            limit = "any amount of" if process.soft_bytes is UNLIMITED else f"{process.soft_bytes} bytes of"
            yield OK(f"containers may lock {limit} memory", about=process.name, source=source)
            continue
        unit = _UNITS[process.name]
        drop_in = f"/etc/systemd/system/{unit}.service.d"
        yield LOW(
            f"containers may lock {process.soft_bytes} bytes, but for root with the capability IPC_LOCK: "
            "programs fail when they register more (ibv_reg_mr: Cannot allocate memory)",
            about=process.name,
            source=source,
            expected="unlimited",
            fix=f"mkdir -p {drop_in} && printf '[Service]\\nLimitMEMLOCK=infinity\\n' > {drop_in}/"
            f"memlock.conf, then systemctl daemon-reload and systemctl restart {unit}; containers that are "
            "made from then on have it. The capability IPC_LOCK helps those that run as root alone",
        )
