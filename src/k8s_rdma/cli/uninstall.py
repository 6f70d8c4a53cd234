"""`k8s-rdma uninstall`: takes the project off this node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from k8s_rdma.agent.config import AgentConfig
from k8s_rdma.agent.plugins.host_files import below
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.install.directory import NodeDirectory, all_locked
from k8s_rdma.install.network import ConfDirectory
from k8s_rdma.install.program import InstalledProgram
from k8s_rdma.install.uninstalling import NodePaths, Uninstalling

WAIT_S = 2.0
"""How long another one may take that is at work on the network configuration or the executable."""
CRIO = Path("/run/crio/crio.sock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The node's paths, as the node has them; host_root: where its root file system is for us."""

    host_root: Path
    bin_dir: Path
    conf_dir: Path
    conf_name: str
    run_dir: Path
    state_dir: Path
    cdi_dir: Path

    def here(self, path: Path) -> Path:
        """Where a path of the node is for us. K8sRdmaError for one that is not absolute."""
        if not path.is_absolute():
            msg = f"{path}: must be an absolute path of the node"
            raise K8sRdmaError(msg)
        return below(self.host_root, path)

    def directory(self, path: Path) -> NodeDirectory:
        """One of the node's, in which links lead where they lead on the node."""
        return NodeDirectory(
            self.here(path), leads=lambda ours: self.here(Path("/", ours.relative_to(self.host_root)))
        )


def uninstall(places: Places, grace_s: float) -> int:
    """The exit status: 1 while something is left that this is to be run again for. K8sRdmaError refuses."""
    if not places.host_root.is_dir():
        msg = f"--host-root {places.host_root}: no such directory; mount the node's root file system there"
        raise K8sRdmaError(msg)
    confs, binaries = (places.directory(each) for each in (places.conf_dir, places.bin_dir))
    caches = AgentConfig(node="-").cni_cache_dirs
    paths = NodePaths(
        run_dir=places.here(places.run_dir),
        state_dir=places.here(places.state_dir),
        cdi_dir=places.here(places.cdi_dir),
        crio=places.here(CRIO),
        caches=tuple(places.here(Path(each)) for each in caches),
    )
    work = Uninstalling(
        paths,
        conf=ConfDirectory(confs, places.conf_name),
        program=InstalledProgram(binaries),
        told=typer.echo,
    )
    work.check()
    with all_locked([each for each in (binaries, confs) if each.path.is_dir()], WAIT_S):
        return 0 if work.run(grace_s) else 1
