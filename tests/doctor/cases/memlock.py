"""Facts of `memlock`: in order, and for each kind of finding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k8s_rdma.doctor.node.memlock import LockingProcess, MemlockFacts, check_memlock

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding


def memlock(soft_bytes: int | None, **facts: Any) -> list[Finding]:
    process = LockingProcess(name="containerd", pid=7, soft_bytes=soft_bytes)
    return list(check_memlock(MemlockFacts(processes=(process,), cni_path="/opt/cni/bin", **facts)))


IN_ORDER = memlock(None)

CASES = {
    "memlock-low": memlock(8 << 20),
    "memlock-overrides": memlock(8 << 20, amount="unlimited", ulimits=(("crio", "8388608:-1"),)),
    "memlock-no-hook": memlock(None, amount="unlimited", hook=False),
    "memlock-no-process": list(check_memlock(MemlockFacts(processes=()))),
}
