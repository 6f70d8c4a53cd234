"""The files of a node that was set up by hand, as the documentation has them, and their paths there."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import yaml

from k8s_rdma_demo.cluster.command import kubeconfig
from lab.places import ANNOTATIONS, ETC

CONTAINERD = "/run/containerd/containerd.sock"
LEASES = "/var/lib/cni/networks"
KUBELET = "/var/lib/kubelet"
MOUNT = "rdma-sriov/dev-infiniband-mount"
IMAGE = "docker.io/lab/pause:1"
KEY = "a key of 32 bytes, for placements"
VFS = 4
"""On each of a node's two PFs."""

CONTAINERD_TOML = f"""\
version = 2
[grpc]
  address = "{CONTAINERD}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A node. number: of which its addresses are made. api: the API server's URL.

    rdma_plugins: more plugins of the chain, behind ours. agent: more of the agent's configuration.
    """

    name: str
    number: int
    api: str
    rdma_plugins: tuple[dict[str, Any], ...] = ()
    agent: dict[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Of its first PF."""
        return f"192.168.77.{self.number}"

    def files(self) -> dict[str, str]:
        """By path."""
        hardware = {
            "requireRdma": False,
            "pfs": [{"names": ["eth0", "eth1"], "numVfs": VFS}],
        }
        node = {"node": self.name, "hardware": hardware}
        agent = {
            "placementKeyFile": f"{ETC}/placement.key",
            "kubeconfig": f"{ETC}/kubeconfig",
            **self.agent,
        }
        extender = {
            "source": "http",
            "kubeconfig": f"{ETC}/kubeconfig",
            "placementKeyFile": f"{ETC}/placement.key",
        }
        documents = {
            "init": {"hardware": hardware},
            "agent": node | agent,
            "server": node,
            "device-plugin": {"resources": [{"mode": "mount", "name": MOUNT}]},
            "extender": extender,
        }
        files = {f"{ETC}/{name}.yaml": yaml.safe_dump(each) for name, each in documents.items()}
        return files | {
            f"{ETC}/placement.key": KEY,
            f"{ETC}/kubeconfig": yaml.safe_dump(kubeconfig(self.api)),
            "/etc/containerd/config.toml": CONTAINERD_TOML,
            "/etc/resolv.conf": "",  # which containerd gives to pods
            "/etc/cni/net.d/10-pods.conflist": json.dumps(self.conflist(), indent=2),
        }

    def conflist(self) -> dict[str, Any]:
        """An ordinary network, and our plugin behind it, whose addresses are of one network on all nodes."""
        ordinary = {
            "type": "bridge",
            "bridge": "cni0",
            "ipam": {"type": "host-local", "ranges": [[{"subnet": f"10.244.{self.number}.0/24"}]]},
        }
        span = {
            "subnet": "10.56.0.0/16",
            "rangeStart": f"10.56.{self.number}.1",
            "rangeEnd": f"10.56.{self.number}.99",
        }
        rdma = {
            "type": "k8s-rdma-cni",
            "capabilities": {ANNOTATIONS: True},
            "ipam": {"type": "host-local", "ranges": [[span]]},
        }
        plugins = [ordinary, rdma, *self.rdma_plugins]
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}
