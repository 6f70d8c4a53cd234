"""Which pods have something of ours on this node, by the running agent or, without one, by its ledger."""

from __future__ import annotations

import socket
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError, LedgerError, MalformedError
from k8s_rdma.linux.receipts import REBUILD, Receipts
from k8s_rdma.wire.cni_cache import decode_cached
from k8s_rdma.wire.conflist import LEGACY_PLUGIN, PLUGIN
from k8s_rdma.wire.rest import decode_report
from k8s_rdma.wire.state import HEADER, decode_header

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TIMEOUT_S = 10.0
"""An agent sends its report at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """agent_runs: whether one answers. pods: `namespace/name` of those that hold interfaces, in order."""

    agent_runs: bool
    pods: tuple[str, ...]


def held(run_dir: Path, state_dir: Path) -> Held:
    """Look it up; K8sRdmaError when it cannot be known."""
    pods = _of_agent(run_dir / "state.sock")
    if pods is not None:
        return Held(agent_runs=True, pods=pods)
    return Held(agent_runs=False, pods=_of_ledger(state_dir / "ledger.db", run_dir / "attachments"))


def started_with_us(caches: Iterable[Path]) -> tuple[str, ...]:
    """`network/interface of container` of the attachments whose list had our plugin, as the runtime keeps it.

    caches: directories of libcni; what is there and is no attachment does not count.
    """
    found = []
    for path in sorted(each for cache in caches if cache.is_dir() for each in cache.iterdir()):
        with suppress(OSError, MalformedError):
            cached = decode_cached(path.read_bytes())
            if cached.stdin((PLUGIN, LEGACY_PLUGIN)) is not None:
                found.append(f"{cached.network_name}/{cached.if_name} of {cached.container_id}")
    return tuple(found)


def _of_agent(path: Path) -> tuple[str, ...] | None:
    """None where none listens."""
    try:
        with socket.socket(socket.AF_UNIX) as agent:
            agent.settimeout(TIMEOUT_S)
            agent.connect(str(path))
            _, length = decode_header(_received(agent, HEADER.size))
            report = decode_report(_received(agent, length))
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError as error:
        msg = f"{path}: the agent does not say what pods hold: {error.strerror or error}"
        raise K8sRdmaError(msg) from error
    return _in_order((each.pod.namespace, each.pod.name) for each in report.allocations)


def _received(agent: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        chunk = agent.recv(length - len(data))
        if not chunk:
            raise K8sRdmaError("the agent ended before it said what pods hold; try again")
        data += chunk
    return bytes(data)


def _of_ledger(path: Path, attachments: Path) -> tuple[str, ...]:
    if not path.exists():
        if marked := len(list(attachments.iterdir())) if attachments.is_dir() else 0:
            msg = (
                f"ledger {path}: not there, though {marked} containers have something of it; see `{REBUILD}`"
            )
            raise LedgerError(msg)
        return ()
    with closing(Receipts(path)) as receipts:
        pods = [each.pod for each in receipts.load().receipts.values()]
    return _in_order((pod.namespace, pod.name) for pod in pods)


def _in_order(pods: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple("/".join(pod) for pod in sorted(set(pods)))
