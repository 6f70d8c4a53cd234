"""The PCI functions that RDMA devices are of, and the PFs of those; each is read once a look."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from k8s_rdma.core.ids import PciAddress, pci_address
from k8s_rdma.core.options import LinkType
from k8s_rdma.linux.discovery.pci import PciFunction
from k8s_rdma.linux.discovery.pfs import own_link
from k8s_rdma.linux.netlink.rtnl import INFINIBAND, Link
from k8s_rdma.linux.sysfs import Sysfs

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFacts:
    """A function. pf: of a VF its PF, of any other itself. vf: its index, None where it is none.

    driver: empty for none. link: its netdev, where that is in this namespace.
    """

    pci: PciAddress
    vendor: str
    driver: str
    numa_node: int | None
    pcie_path: tuple[PciAddress, ...]
    link: Link | None
    pf: FunctionFacts | None = None
    vf: int | None = None

    @property
    def physical(self) -> FunctionFacts:
        """The PF: its own, or itself."""
        return self.pf or self

    @property
    def link_type(self) -> LinkType:
        """What the PF's port speaks, by its netdev."""
        link = self.physical.link
        return LinkType.INFINIBAND if link and link.type == INFINIBAND else LinkType.ETHERNET


@dataclass(slots=True)
class Functions:
    """Those of one look. links: by name. Every failure to read one is an OSError."""

    sysfs: Sysfs
    links: Mapping[str, Link]
    _read: dict[PciAddress, FunctionFacts | None] = field(default_factory=dict)
    _vfs: dict[PciAddress, dict[PciAddress, int]] = field(default_factory=dict)

    def of(self, pci: PciAddress) -> FunctionFacts | None:
        """A function; None when there is none of this address."""
        if pci not in self._read:
            self._read[pci] = self._facts(pci)
        return self._read[pci]

    def of_device(self, path: str) -> FunctionFacts | None:
        """The one that a device of some class (`class/infiniband/mlx5_0`) is of; None where that is none."""
        target = self.sysfs.target_if_any(f"{path}/device") or ""
        return self.of(pci_address(target)) if _ADDRESS.fullmatch(target) else None

    def of_netdev(self, link: Link) -> FunctionFacts | None:
        """The one that a netdev is of; None where that is none."""
        if _ADDRESS.fullmatch(link.device):
            return self.of(pci_address(link.device))
        return self.of_device(f"class/net/{link.name}")

    def _facts(self, pci: PciAddress) -> FunctionFacts | None:
        function = PciFunction(self.sysfs, pci)
        if not function.exists():
            return None
        pf = function.pf()
        return FunctionFacts(
            pci=pci,
            vendor=function.vendor(),
            driver=function.driver() or "",
            numa_node=function.numa_node(),
            pcie_path=function.pcie_path(),
            link=own_link(function, function.netdevs() or (), self.links),
            pf=self.of(pf) if pf else None,
            vf=self._index(pf, pci) if pf else None,
        )

    def _index(self, pf: PciAddress, vf: PciAddress) -> int | None:
        if pf not in self._vfs:
            vfs = PciFunction(self.sysfs, pf).vfs()
            self._vfs[pf] = {pci: index for index, pci in vfs.items()}
        return self._vfs[pf].get(vf)
