"""Check of the memory that containers may lock.

A container's limit (RLIMIT_MEMLOCK; Linux `drivers/infiniband/core/umem.c`, ib_umem_get) is its runtime's at
start, unless its specification sets one, which comes last. The agent's hook raises the limit of a container
with a slot.

Processes that have CAP_IPC_LOCK have no limit. Containers do not have it by default. If it is added to one
(`capabilities.add`), it works for root only: Kubernetes sets no ambient capabilities, so execve removes
permitted and effective ones from any other user whose program has no file capabilities (Linux
`security/commoncap.c`, cap_bprm_creds_from_file).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding


MEMLOCK = Subject(
    "memlock",
    "Locked memory",
    "Containers with a slot have the [agent's limit](locked-memory.md), others their runtime's.",
)
MEMLOCK_OK = MEMLOCK.ok()
LOW = MEMLOCK.warning("low")
OVERRIDES = MEMLOCK.warning("overrides")
NO_HOOK = MEMLOCK.error("no-hook")
NO_PROCESS = MEMLOCK.warning("no-process")

UNLIMITED = None
ENOUGH_BYTES = 64 << 30
"""More than a training job registers; a limit at or above it is deliberate."""
_UNITS = {"crio": "crio", "containerd": "containerd", "dockerd": "docker"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LockingProcess:
    """A process that starts containers. soft_bytes: its soft limit, if it has one."""

    name: str
    pid: int
    soft_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemlockFacts:
    """Runtimes that start containers.

    amount: the limit of containers with a slot by the agent's hook; empty if there are no slots, or the agent
        leaves the limit.
    hook: whether its executable is in one of the directories of cni_path.
    ulimits: the limit that a runtime writes into specifications, in its configuration's words, by its name.
    """

    processes: tuple[LockingProcess, ...]
    amount: str = ""
    hook: bool = True
    cni_path: str = ""
    ulimits: tuple[tuple[str, str], ...] = ()


@MEMLOCK.check(MemlockFacts)
def check_memlock(facts: MemlockFacts) -> Iterator[Finding]:
    """Check the limit of each process that starts containers."""
    if not facts.processes:
        yield NO_PROCESS(
            "no process of containerd or CRI-O is visible",
            source="/proc/*/limits",
            expected="a visible process",
            fix="run it on the node, or with the node's /proc below --host-root",
        )
    if facts.amount and not facts.hook:
        yield NO_HOOK(
            f"memlock is {facts.amount}, but no k8s-rdma-cni raises containers' limits",
            source="cniPath of the agent's file",
            expected=f"k8s-rdma-cni in one of {facts.cni_path}",
            fix="set the agent's cniPath to the CNI plugins' directory, then restart it",
        )
    for name, text in facts.ulimits:
        if facts.amount and text != "-1:-1":
            yield OVERRIDES(
                f"default_ulimits sets memlock={text} after the agent's hook",
                about=name,
                source="crio.runtime.default_ulimits",
                expected=f"no memlock, so that containers with a slot may lock {facts.amount}",
                fix=f"remove memlock={text} from default_ulimits, then restart {name}",
            )
    for process in facts.processes:
        source = f"/proc/{process.pid}/limits, Max locked memory"
        if process.soft_bytes is UNLIMITED or process.soft_bytes >= ENOUGH_BYTES:
            limit = "any amount of" if process.soft_bytes is UNLIMITED else f"{process.soft_bytes} bytes of"
            yield MEMLOCK_OK(f"containers may lock {limit} memory", about=process.name, source=source)
            continue
        if facts.amount and facts.hook:
            yield MEMLOCK_OK(
                f"containers with a slot may lock {facts.amount}, others {process.soft_bytes} bytes",
                about=process.name,
                source=f"memlock of the agent's file; {source}",
            )
            continue
        unit = _UNITS[process.name]
        drop_in = f"/etc/systemd/system/{unit}.service.d"
        yield LOW(
            f"containers may lock {process.soft_bytes} bytes, except for root with IPC_LOCK: "
            "more fails (ibv_reg_mr: Cannot allocate memory)",
            about=process.name,
            source=source,
            expected="unlimited",
            fix=f"mkdir -p {drop_in} && printf '[Service]\\nLimitMEMLOCK=infinity\\n' > {drop_in}/"
            f"memlock.conf, then systemctl daemon-reload && systemctl restart {unit}, for new containers; "
            "IPC_LOCK helps root alone",
        )
