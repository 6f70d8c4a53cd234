"""Removal of everything that is ours from a node, by `k8s-rdma uninstall`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from k8s_rdma.config.agent import AgentConfig
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.install.directory import LOCK_WAIT_S, InstalledProgram, NodeDirectory, all_locked
from k8s_rdma.install.network import ConfDirectory
from k8s_rdma.install.uninstallation import NodePaths, Uninstalling
from k8s_rdma.linux.host_root import below

CRIO = Path("/run/crio/crio.sock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The node's paths, as the node has them.

    host_root: our directory of its root file system.
    """

    host_root: Path
    bin_dir: Path
    conf_dir: Path
    conf_name: str
    run_dir: Path
    state_dir: Path
    cdi_dir: Path

    def own_path(self, path: Path) -> Path:
        """Translate a path of the node to ours. K8sRdmaError if it is not absolute."""
        if not path.is_absolute():
            msg = f"{path}: must be an absolute path of the node"
            raise K8sRdmaError(msg)
        return below(self.host_root, path)

    def directory(self, path: Path) -> NodeDirectory:
        """Open a directory of the node, in which links have the same targets as on the node."""
        return NodeDirectory(
            self.own_path(path), leads=lambda ours: self.own_path(Path("/", ours.relative_to(self.host_root)))
        )


def uninstall(places: Places, grace_s: float) -> int:
    """Remove everything from the node; the exit status is 1 while something is left for another run.

    K8sRdmaError if pods hold interfaces, or a path cannot be used.
    """
    if not places.host_root.is_dir():
        msg = f"--host-root {places.host_root}: no such directory; mount the node's root file system there"
        raise K8sRdmaError(msg)
    confs, binaries = (places.directory(path) for path in (places.conf_dir, places.bin_dir))
    caches = AgentConfig(node="-").cni_cache_dirs
    paths = NodePaths(
        run_dir=places.own_path(places.run_dir),
        state_dir=places.own_path(places.state_dir),
        cdi_dir=places.own_path(places.cdi_dir),
        crio=places.own_path(CRIO),
        caches=tuple(places.own_path(Path(path)) for path in caches),
    )
    work = Uninstalling(
        paths,
        conf=ConfDirectory(confs, places.conf_name),
        program=InstalledProgram(binaries),
        report=typer.echo,
    )
    work.check()
    with all_locked([directory for directory in (binaries, confs) if directory.path.is_dir()], LOCK_WAIT_S):
        return 0 if work.run(grace_s) else 1
