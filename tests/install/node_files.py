"""A node's directories of plugins and networks, and how a container runtime reads them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k8s_rdma.install.directory import NodeDirectory
from k8s_rdma.install.installation import Installation
from k8s_rdma.install.network import DesiredConflist
from k8s_rdma.install.network_mode import NetworkMode
from k8s_rdma.wire.conflist import plugin_section

OURS = "k8s-rdma-cni"
FILE = "00-k8s-rdma.conflist"
BRIDGE = {"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local", "subnet": "10.244.1.0/24"}}
PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}


def conflist(*plugins: dict[str, Any], version: str = "1.0.0", name: str = "pods", **more: object) -> str:
    return json.dumps({"cniVersion": version, "name": name, "plugins": plugins, **more})


class BrokenNetworkError(Exception):
    """The runtime takes no pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFiles:
    """bin: of plugins; confs: of networks."""

    bin: Path
    confs: Path

    @classmethod
    def made(cls, directory: Path) -> NodeFiles:
        node = cls(bin=directory / "bin", confs=directory / "net.d")
        node.bin.mkdir(parents=True)
        node.confs.mkdir()
        for plugin in ("bridge", "portmap", "ptp", "mesh"):
            (node.bin / plugin).write_text("#!/bin/sh\n")
            (node.bin / plugin).chmod(0o755)
        return node

    def installation(
        self,
        network: NetworkMode = NetworkMode.CHAINED,
        *,
        file: str = FILE,
        plugin: str = "{}",
    ) -> Installation:
        section = plugin_section(plugin.encode(), chained=network is NetworkMode.CHAINED)
        wanted = DesiredConflist(
            network=network, file=file, section=section, name="k8s-rdma", version="1.0.0"
        )
        return Installation(binaries=NodeDirectory(self.bin), confs=NodeDirectory(self.confs), desired=wanted)

    def state(self) -> dict[str, bytes | str]:
        """Everything that is in both directories."""
        return {
            str(path): str(path.readlink()) if path.is_symlink() else path.read_bytes()
            for directory in (self.bin, self.confs)
            for path in directory.iterdir()
        }

    def network(self) -> tuple[str, dict[str, Any]]:
        """The file that containerd takes, and its list; BrokenNetworkError when no pod would start.

        Source: `loadFromConfDir` of go-cni 1.1: the first file in the order of names, or an error.
        """
        names = sorted(
            each.name
            for each in os.scandir(self.confs)
            if not each.is_dir(follow_symlinks=False) and each.name.endswith((".conf", ".conflist", ".json"))
        )
        if not names:
            raise BrokenNetworkError("no network config found")
        try:
            document = json.loads((self.confs / names[0]).read_bytes())
        except (OSError, ValueError) as error:
            raise BrokenNetworkError(names[0]) from error
        if not names[0].endswith(".conflist"):
            document = {"name": document["name"], "plugins": [document]}
        for plugin in document["plugins"]:
            if not os.access(self.bin / plugin["type"], os.X_OK):
                raise BrokenNetworkError(f"failed to find plugin {plugin['type']}")
        return names[0], document

    def types(self) -> list[str]:
        """The plugins that a pod of now goes through."""
        return [plugin["type"] for plugin in self.network()[1]["plugins"]]
