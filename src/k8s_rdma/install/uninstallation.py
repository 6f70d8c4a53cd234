"""Removal of the project from a node, in the order in which no pod of the node is failed or loses anything.

Pods that still have interfaces are known by the running agent or, without one, by its ledger.
"""

from __future__ import annotations

import shutil
import socket
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.config.bounded_files import read_found_file
from k8s_rdma.core.node_paths import CDI_SOCKET, CLAIMS_SOCKET, CNI_SOCKET, STATE_SOCKET
from k8s_rdma.errors import K8sRdmaError, LedgerError, MalformedError
from k8s_rdma.install.directory import InstalledProgram, left_for
from k8s_rdma.linux.receipts import REBUILD, Receipts
from k8s_rdma.wire.cached_attachment import decode_cached
from k8s_rdma.wire.cdi import CLAIM_CLASS, SHARED_CLASS, SLOT_CLASS, VF_CLASS, device_of_file_name
from k8s_rdma.wire.conflist import LEGACY_PLUGIN, PLUGIN
from k8s_rdma.wire.report import decode_report
from k8s_rdma.wire.state_socket import HEADER, decode_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from k8s_rdma.install.network import ConfDirectory

OF_RUN_DIR = (
    "exclusive-devices",
    "deletions",
    "deletions.withheld",
    CNI_SOCKET,
    CDI_SOCKET,
    CLAIMS_SOCKET,
    STATE_SOCKET,
    "attachments",
    "attachments.new",
    "claims",
)
"""The first one first: while it is there and no agent runs, no pod of the node starts."""

TIMEOUT_S = 10.0
"""An agent sends its report at once."""

NAMED = 10
"""The limit of pods that a message names; of more, it gives the number."""


def remove_run_dir(run_dir: Path) -> bool:
    """Remove the agent's files in its runDir, and that if it is empty then; report whether it was there.

    K8sRdmaError names a file that cannot be removed.
    """
    if not run_dir.is_dir():
        return False
    try:
        for path in (run_dir / name for name in OF_RUN_DIR):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        run_dir.rmdir()
    except OSError as error:
        msg = f"{error.filename or run_dir}: cannot be removed: {error.strerror}"
        raise K8sRdmaError(msg) from error
    return True


def remove_specifications(cdi_dir: Path) -> tuple[Path, ...]:
    """Remove our CDI specifications; K8sRdmaError names a file that cannot be removed."""
    if not cdi_dir.is_dir():
        return ()
    ours = tuple(path for path in sorted(cdi_dir.iterdir()) if _is_specification(path.name))
    try:
        for path in ours:
            path.unlink()
    except OSError as error:
        msg = f"{error.filename}: cannot be removed: {error.strerror}"
        raise K8sRdmaError(msg) from error
    return ours


def _is_specification(name: str) -> bool:
    classes = (VF_CLASS, SLOT_CLASS, SHARED_CLASS, CLAIM_CLASS)
    return any(device_of_file_name(interface_class, name) is not None for interface_class in classes)


def functions_with_vfs(devices: Path) -> Iterator[str]:
    """PCI addresses and numbers of VFs, `0000:01:00.0 (8)`. devices: `/sys/bus/pci/devices`."""
    for path in sorted(devices.glob("*/sriov_numvfs")):
        if number := int(path.read_text()):
            yield f"{path.parent.name} ({number})"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedPods:
    """agent_runs: whether one answers. pods: `namespace/name` of those that hold interfaces, in order."""

    agent_runs: bool
    pods: tuple[str, ...]


def attached_pods(run_dir: Path, state_dir: Path) -> AttachedPods:
    """Look it up; K8sRdmaError when it cannot be known."""
    pods = _of_agent(run_dir / STATE_SOCKET)
    if pods is not None:
        return AttachedPods(agent_runs=True, pods=pods)
    return AttachedPods(agent_runs=False, pods=_of_ledger(state_dir / "ledger.db", run_dir / "attachments"))


def started_with_us(caches: Iterable[Path]) -> tuple[str, ...]:
    """Return `network/interface of container` of cached attachments whose list had our plugin.

    caches: directories of libcni; files that are no attachments do not count.
    """
    found = []
    for path in sorted(entry for cache in caches if cache.is_dir() for entry in cache.iterdir()):
        with suppress(OSError, MalformedError):
            cached = decode_cached(read_found_file(path))
            if cached.stdin((PLUGIN, LEGACY_PLUGIN)) is not None:
                found.append(f"{cached.network_name}/{cached.if_name} of {cached.container_id}")
    return tuple(found)


def _of_agent(path: Path) -> tuple[str, ...] | None:
    """List the pods that hold interfaces by the agent's report, if an agent listens."""
    try:
        with socket.socket(socket.AF_UNIX) as agent:
            agent.settimeout(TIMEOUT_S)
            agent.connect(str(path))
            _, length = decode_header(_received(agent, HEADER.size))
            report = decode_report(_received(agent, length))
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError as error:
        msg = f"{path}: the agent does not report which pods hold interfaces: {error.strerror or error}"
        raise K8sRdmaError(msg) from error
    return _in_order((allocation.pod.namespace, allocation.pod.name) for allocation in report.allocations)


def _received(agent: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        chunk = agent.recv(length - len(data))
        if not chunk:
            raise K8sRdmaError("the agent stopped before it reported which pods hold interfaces; try again")
        data += chunk
    return bytes(data)


def _of_ledger(path: Path, attachments: Path) -> tuple[str, ...]:
    if not path.exists():
        if marked := len(list(attachments.iterdir())) if attachments.is_dir() else 0:
            msg = (
                f"ledger {path}: does not exist, although {marked} containers have interfaces from it; "
                f"see `{REBUILD}`"
            )
            raise LedgerError(msg)
        return ()
    with closing(Receipts(path)) as receipts:
        pods = [receipt.pod for receipt in receipts.load().receipts.values()]
    return _in_order((pod.namespace, pod.name) for pod in pods)


def _in_order(pods: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple("/".join(pod) for pod in sorted(set(pods)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePaths:
    """Paths of the node, as this process sees them.

    crio: the socket of CRI-O, which ends a pod by the list that the pod was started with.
    caches: of libcni.
    pci_devices: in sysfs.
    """

    run_dir: Path
    state_dir: Path
    cdi_dir: Path
    crio: Path
    caches: tuple[Path, ...]
    pci_devices: Path = Path("/sys/bus/pci/devices")


class Uninstalling:
    """Removal from one node; the caller has locked its configuration directory."""

    def __init__(
        self,
        paths: NodePaths,
        *,
        conf: ConfDirectory,
        program: InstalledProgram,
        report: Callable[[str], None],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Set the paths only. report: gets a line for each change, and for each thing that is left."""
        self._paths = paths
        self._conf = conf
        self._program = program
        self._report = report
        self._pause = pause

    def run(self, grace_s: float) -> bool:
        """Remove as much as possible; report whether that was all, else it is to be run again.

        K8sRdmaError names the pods that hold interfaces, or a file that cannot be removed.

        grace_s: between our network configuration and the executable, for calls that were begun.
        """
        self.check()
        if self._conf.remove():
            self._report(f"removed {self._conf.path}")
            self._pause(grace_s)
        found = self._require_nothing_held("the network configuration is removed, and nothing else")
        complete = self._remove_program()
        if found.agent_runs:
            self._report("left: the agent runs; delete its DaemonSet, or stop it, and run this again")
            return False
        self._remove_files()
        self._tell_what_stays()
        return complete

    def check(self) -> None:
        """K8sRdmaError names the pods that hold something."""
        self._require_nothing_held("nothing was removed")

    def _require_nothing_held(self, otherwise: str) -> AttachedPods:
        found = attached_pods(self._paths.run_dir, self._paths.state_dir)
        if not found.pods:
            return found
        names = ", ".join(found.pods[:NAMED])
        suffix = f" and {len(found.pods) - NAMED} more" if len(found.pods) > NAMED else ""
        hint = "" if found.agent_runs else "; while no agent runs, nothing comes back: start it"
        raise K8sRdmaError(
            f"pods hold interfaces: {names}{suffix}; end them, and run this again ({otherwise}){hint}"
        )

    def _remove_program(self) -> bool:
        """Remove the executable, unless a network names it or CRI-O needs it to end pods."""
        if files := self._conf.others_with_ours():
            self._report(left_for(self._program.paths[0], files))
            return False
        attachments = started_with_us(self._paths.caches) if self._paths.crio.exists() else ()
        if attachments:
            self._report(
                f"left: {self._program.paths[0]}, which CRI-O calls when pods end that were started with it "
                f"({len(attachments)} attachments, {attachments[0]}); run this again when they have ended"
            )
            return False
        if self._program.remove():
            self._report(f"removed {self._program.paths[0]}")
        return True

    def _remove_files(self) -> None:
        if remove_run_dir(self._paths.run_dir):
            self._report(f"removed {self._paths.run_dir}")
        for path in remove_specifications(self._paths.cdi_dir):
            self._report(f"removed {path}")

    def _tell_what_stays(self) -> None:
        if self._paths.state_dir.exists():
            self._report(f"stays: {self._paths.state_dir}, the empty ledger; remove it by hand")
        if functions := list(functions_with_vfs(self._paths.pci_devices)):
            self._report(
                f"stays: VFs of {', '.join(functions)}: `echo 0 > /sys/bus/pci/devices/PF/sriov_numvfs`"
            )
        self._report(
            "stays in the cluster: `kubectl delete rdmanode NODE`; the Node's count of `publish.vfResource`"
        )
