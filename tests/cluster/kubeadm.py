"""A control-plane node whose files kubeadm wrote, and its static pods run without a kubelet.

The node's `/etc` is a copy of this machine's, in mount namespaces of those who enter. Its API server is that
of the scenario, which trusts the authority that kubeadm was given.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from cluster.real import SERVICE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.control_plane import ControlPlane, Json
    from cluster.typed import Shell

PORT = 6443
"""Of the API server, by default."""
MANIFESTS = "/etc/kubernetes/manifests"
_LINK = "control"
_HOST_PATHS = {
    "File": Path.is_file,
    "Directory": Path.is_dir,
    "FileOrCreate": Path.exists,
    "DirectoryOrCreate": Path.exists,
}


class ControlPlaneNode:
    """The node. etc: its `/etc`. entering: the command by which others see that."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name, self.etc = name, directory / "etc"
        subprocess.run(["cp", "--archive", "/etc", self.etc], check=True)
        mounted = f'mount --bind {self.etc} /etc && exec "$@"'
        self.entering = ("unshare", "--mount", "sh", "-c", mounted, "enter")

    def path(self, name: str) -> Path:
        """Return the path of a file of the node's /etc."""
        return self.etc / Path(name).relative_to("/etc")

    def manifest(self, component: str) -> Json:
        """A static pod, as its file says now."""
        return yaml.safe_load(self.path(f"{MANIFESTS}/{component}.yaml").read_text())

    async def make(self, plane: ControlPlane, shell: Shell, authority: tuple[Path, Path]) -> None:
        """Write and upload as `kubeadm init` does, with a given authority: certificate and key."""
        pki = self.path("/etc/kubernetes/pki")
        pki.mkdir(parents=True)
        for source, name in zip(authority, ("ca.crt", "ca.key"), strict=True):
            shutil.copy(source, pki / name)
        major, minor = plane.release
        config = shell.directory / "init.yaml"
        config.write_text(
            "apiVersion: kubeadm.k8s.io/v1beta4\n"
            "kind: InitConfiguration\n"
            f"nodeRegistration: {{name: {self.name}, criSocket: 'unix:///run/containerd/containerd.sock'}}\n"
            f"localAPIEndpoint: {{advertiseAddress: {SERVICE}, bindPort: {PORT}}}\n"
            "---\n"
            "apiVersion: kubeadm.k8s.io/v1beta4\n"
            "kind: ClusterConfiguration\n"
            f"kubernetesVersion: v{major}.{minor}.0\n"
            "etcd: {external: {endpoints: ['http://127.0.0.1:2379']}}\n"  # it is no pod
        )
        phases = ("certs all", "kubeconfig all", "control-plane all", "upload-config all")
        for phase in phases:
            await shell.types(f"kubeadm init phase {phase} --config {config}")


def container(node: ControlPlaneNode, component: str, program: Path, root: Path) -> list[str]:
    """The command of a static pod's container, in a root that has its volumes, as kubelet would mount them.

    A path of another type than the volume's keeps kubelet from starting the pod: AssertionError.
    """
    spec = node.manifest(component)["spec"]
    (only,) = spec["containers"]
    volumes = {each["name"]: each["hostPath"] for each in spec["volumes"]}
    for mount in only["volumeMounts"]:
        volume, into = volumes[mount["name"]], root / mount["mountPath"].lstrip("/")
        source = node.path(volume["path"])
        assert _HOST_PATHS[volume["type"]](source), volume
        into.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, into)
    shutil.copy(program, root / component)
    name, *arguments = only["command"]
    assert name == component
    return ["chroot", str(root), f"/{component}", *arguments]


@contextmanager
def network(*addresses: str) -> Iterator[None]:
    """A link with these addresses and the default route, by which kubeadm finds the node's address."""
    _ip("link", "add", _LINK, "type", "bridge")
    try:
        _ip("link", "set", _LINK, "up")
        for address in addresses:
            _ip("address", "add", f"{address}/24", "dev", _LINK)
        _ip("route", "add", "default", "dev", _LINK)
        yield
    finally:
        _ip("link", "delete", _LINK)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
