"""Taking the project off a node, in the order in which no pod of the node is failed or loses anything."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.install.holders import held, started_with_us
from k8s_rdma.install.leftovers import functions_with_vfs, remove_run_dir, remove_specifications
from k8s_rdma.install.program import left_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.install.holders import Held
    from k8s_rdma.install.network import ConfDirectory
    from k8s_rdma.install.program import InstalledProgram

NAMED = 10
"""So many pods are named; of more, how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePaths:
    """Where things are, as this process sees them.

    crio: the socket of CRI-O, which ends a pod by the list that the pod was started with. caches: of libcni.
    pci_devices: in sysfs.
    """

    run_dir: Path
    state_dir: Path
    cdi_dir: Path
    crio: Path
    caches: tuple[Path, ...]
    pci_devices: Path = Path("/sys/bus/pci/devices")


class Uninstalling:
    """Of one node; the caller has locked its configuration directory."""

    def __init__(
        self,
        paths: NodePaths,
        *,
        conf: ConfDirectory,
        program: InstalledProgram,
        told: Callable[[str], None],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Nothing is looked at yet. told: what was done and what is left, a line each."""
        self._paths = paths
        self._conf = conf
        self._program = program
        self._told = told
        self._pause = pause

    def run(self, grace_s: float) -> bool:
        """Remove what can be; whether that was all, else it is to be run again.

        grace_s: between our network configuration and the executable, for calls that were begun. K8sRdmaError
        names the pods that hold something, or what cannot be removed.
        """
        self.check()
        if self._conf.remove():
            self._told(f"removed {self._conf.path}")
            self._pause(grace_s)
        found = self._require_nothing_held("the network configuration is removed, and nothing else")
        complete = self._remove_program()
        if found.agent_runs:
            self._told("left: the agent runs; delete its DaemonSet, or stop it, and run this again")
            return False
        self._remove_files()
        self._tell_what_stays()
        return complete

    def check(self) -> None:
        """K8sRdmaError names the pods that hold something."""
        self._require_nothing_held("nothing was removed")

    def _require_nothing_held(self, otherwise: str) -> Held:
        found = held(self._paths.run_dir, self._paths.state_dir)
        if not found.pods:
            return found
        names = ", ".join(found.pods[:NAMED])
        more = f" and {len(found.pods) - NAMED} more" if len(found.pods) > NAMED else ""
        hint = "" if found.agent_runs else "; while no agent runs, nothing comes back: start it"
        raise K8sRdmaError(
            f"pods hold interfaces: {names}{more}; end them, and run this again ({otherwise}){hint}"
        )

    def _remove_program(self) -> bool:
        """Unless somebody's network has it, or CRI-O will call it to end pods that were started with it."""
        if files := self._conf.others_with_ours():
            self._told(left_for(self._program.paths[0], files))
            return False
        attachments = started_with_us(self._paths.caches) if self._paths.crio.exists() else ()
        if attachments:
            self._told(
                f"left: {self._program.paths[0]}, which CRI-O calls when pods end that were started with it "
                f"({len(attachments)} attachments, {attachments[0]}); run this again when they have ended"
            )
            return False
        if self._program.remove():
            self._told(f"removed {self._program.paths[0]}")
        return True

    def _remove_files(self) -> None:
        if remove_run_dir(self._paths.run_dir):
            self._told(f"removed {self._paths.run_dir}")
        for path in remove_specifications(self._paths.cdi_dir):
            self._told(f"removed {path}")

    def _tell_what_stays(self) -> None:
        if self._paths.state_dir.exists():
            self._told(f"stays: {self._paths.state_dir}, the empty ledger; remove it by hand")
        if functions := list(functions_with_vfs(self._paths.pci_devices)):
            self._told(
                f"stays: VFs of {', '.join(functions)}: `echo 0 > /sys/bus/pci/devices/PF/sriov_numvfs`"
            )
        self._told(
            "stays in the cluster: `kubectl delete rdmanode NODE`; the Node's count of `publish.vfResource`"
        )
