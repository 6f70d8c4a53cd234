"""A node in a network namespace of its own: virtual PFs, the agent and the server as processes, a runtime."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

from e2e.processes import ANNOTATIONS, DEADLINE_S, NodeProcesses, pod
from k8s_rdma.core.types import pci_address
from k8s_rdma.linux.netlink.rtnl import Rtnl
from k8s_rdma.linux.netns import entered
from k8s_rdma.linux.virtual.pf import create_pf
from k8s_rdma.linux.virtual.topology import VirtualPf, random_base_mac
from network_namespaces import create_namespace

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ANNOTATIONS", "DEADLINE_S", "LINK_MBPS", "PFS", "Node", "pod"]

PFS = ("enp1s0f0", "enp1s0f1")
LINK_MBPS = 1000


class Node(NodeProcesses):
    """The calling thread is in the node's namespace until `close`, and so are processes that it starts.

    With the namespace goes all that is in it. names: of its PFs.
    """

    def __init__(self, *, vfs: int, plugins: str, shim: Path, names: tuple[str, ...] = PFS) -> None:
        super().__init__(plugins=plugins, shim=shim)
        self._names = names
        namespace = create_namespace()
        self._stack.callback(os.close, namespace)
        self._stack.enter_context(entered(namespace))
        self._rtnl = self._stack.enter_context(Rtnl())
        self.ip("link", "set", "lo", "up")
        self.pfs: list[VirtualPf] = []
        for number, name in enumerate(names):
            self._create_pf(number, name, vfs)
        self.pristine = self.kernel_state()

    def document(self) -> dict[str, object]:
        return super().document() | {"kernel": "virtual"}

    def rates(self) -> dict[tuple[str, int], tuple[str, str]]:
        """Rate and ceil of every VF as `tc` prints them, by PF and index."""
        found = {}
        for pf in self._names:
            shown = subprocess.run(
                ["tc", "class", "show", "dev", f"{pf}-tx"], capture_output=True, text=True, check=True
            )
            for line in shown.stdout.splitlines():
                words = line.split()
                index = int(words[2].partition(":")[2], 16) - 0x10
                if 0 <= index < 256:
                    rate, ceil = (words[words.index(word) + 1] for word in ("rate", "ceil"))
                    found[pf, index] = (rate, ceil)
        return found

    def kernel_state(self) -> dict[str, Any]:
        """Everything of PFs and VFs that must be again as it was.

        MACs of VFs only: the kernel chooses those of a bridge and its ports, which do not count.
        """
        rates = self.rates()
        vfs = {f"{pf}v{index}" for pf, index in rates}
        links = {
            link["ifname"]: (
                link["address"] if link["ifname"] in vfs else None,
                link["mtu"],
                "UP" in link["flags"],
                link.get("ifalias"),
            )
            for link in self.ip("link", "show")
            if link["ifname"].startswith(self._names)
        }
        return {"links": links, "rates": rates}

    def vf_away(self) -> bool:
        """Whether any VF has left the node's namespace."""
        here = {link.name for link in self._rtnl.links()}
        return any(f"{pf}v{index}" not in here for pf, index in self.pristine["rates"])

    def _create_pf(self, number: int, name: str, vfs: int) -> None:
        uplink = f"up{number}"
        self.ip("link", "add", uplink, "type", "veth", "peer", "name", f"wire{number}")
        for end in (uplink, f"wire{number}"):
            self.ip("link", "set", end, "up")
        pf = VirtualPf(
            name=name,
            pci=pci_address(f"0000:01:00.{number}"),
            uplink=uplink,
            vfs=vfs,
            link_mbps=LINK_MBPS,
            base_mac=random_base_mac(),
        )
        create_pf(pf, self._rtnl)
        self.pfs.append(pf)
