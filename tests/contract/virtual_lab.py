"""Virtual SR-IOV in network namespaces of the test's own."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from contract.lab import LINK_MBPS, PF0, PF1
from contract.linux_lab import LinuxLab, run
from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.core.types import Setting
from k8s_rdma.linux.netlink.rtnl import Rtnl, named, of_kind
from k8s_rdma.linux.netns import entered
from k8s_rdma.linux.virtual.kernel import VirtualSriov
from k8s_rdma.linux.virtual.pf import create_pf
from k8s_rdma.linux.virtual.topology import VirtualPf, random_base_mac
from network_namespaces import create_namespace

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.core.step import NetnsRef
    from k8s_rdma.core.types import PciAddress

TAKEN = frozenset({Setting.MAC, Setting.MTU, Setting.TRUST, Setting.SPOOF_CHECK, Setting.LINK_STATE})
VLANS = frozenset({Setting.VLAN})


class VirtualLab(LinuxLab):
    """Two virtual PFs in a namespace that this thread is in until `close`."""

    pcis = (PF0, PF1)
    pf_names = ("enp3s0f0", "enp3s0f1")
    link_mbps = LINK_MBPS
    rates = EVERY_RATE
    pf_mtu = 1500
    vf_driver = "veth"

    def __init__(self, directory: Path, vfs: int) -> None:
        super().__init__(directory)
        self.vfs = vfs
        with ExitStack() as failed:
            failed.callback(self.close)
            host = create_namespace()
            self.stack.callback(os.close, host)
            self.stack.enter_context(entered(host))
            self.rtnl = self.stack.enter_context(Rtnl())
            self.pfs = [self._create_pf(number, pci) for number, pci in enumerate(self.pcis)]
            self.takes = VLANS | TAKEN if _bridges_have_vlans(self.rtnl) else TAKEN
            self.kernel = self.another_kernel()
            failed.pop_all()

    def vf_name(self, pf: int, index: int) -> str:
        return self.pfs[pf].vf_name(index)

    def another_kernel(self) -> VirtualSriov:
        kernel = VirtualSriov(self.namespaces)
        self.stack.callback(kernel.close)
        return kernel

    def rtnl_of(self, netns: NetnsRef) -> Rtnl:
        with self.namespaces.existing(netns) as namespace:
            return Rtnl(namespace)

    def _create_pf(self, number: int, pci: PciAddress) -> VirtualPf:
        uplink = f"up{number}"
        self.rtnl.create("create uplink", named(uplink), of_kind("veth"))
        for link in self.rtnl.links():
            if link.kind == "veth" and link.name in (uplink, f"veth{number}"):
                self.rtnl.change(link.index, link.name, up=True)
        pf = VirtualPf(
            name=self.pf_names[number],
            pci=pci,
            uplink=uplink,
            vfs=self.vfs,
            link_mbps=self.link_mbps,
            base_mac=random_base_mac(),
        )
        create_pf(pf, self.rtnl)
        return pf


def _bridges_have_vlans(rtnl: Rtnl) -> bool:
    run("ip", "link", "add", "probe", "type", "bridge", "vlan_filtering", "1", check=False)
    link = rtnl.link("probe")
    if link is not None:
        rtnl.delete(link.index, "probe")
    return link is not None
