"""Two PFs of netdevsim as `linux.kernel.SriovKernel` finds PFs, for the contract of rates and settings.

All that is asked of netlink and set by it is the kernel's. Pretended are parts that netdevsim lacks: PCI
functions in a tree of files, with the name of a real card's driver, whose rules the code then follows, and a
link's speed; and the netdevs of VFs, which are dummy links that stay in place. So moves of VFs are not
for this lab.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from contract.lab import LINK_MBPS, PF0, PF1
from contract.linux_lab import LinuxLab
from fakes.sriov_machine import RENAMED, Tree
from k8s_rdma.core.pf_selection import PfRule, Selection
from k8s_rdma.core.types import LinkType, PciAddress
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.drivers import ability, supported_settings
from k8s_rdma.linux.kernel import SriovKernel
from k8s_rdma.linux.netlink.devlink import devlink_rates
from k8s_rdma.linux.netlink.rtnl import Link, Rtnl, named, of_kind
from k8s_rdma.linux.netns import entered
from netdevsim.device import device
from network_namespaces import create_namespace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from k8s_rdma.linux.netlink.queries import DevlinkRate, VfInfo

_ETHERNET = "0x020000"


class SimulatedRtnl(Rtnl):
    """Reports simulated devices by the PCI addresses that the lab's files have for them."""

    def __init__(self, addresses: Mapping[str, PciAddress]) -> None:
        super().__init__()
        self._addresses = addresses

    def links(self) -> list[Link]:
        return [self._addressed(link) for link in super().links()]

    def link(self, name: str) -> Link | None:
        found = super().link(name)
        return None if found is None else self._addressed(found)

    def _addressed(self, link: Link) -> Link:
        return replace(link, device=self._addresses.get(link.device, link.device))


class SimulatedQueries(NetlinkQueries):
    """As `NetlinkQueries`, by the same addresses; counts queries that hold the kernel's lock for long."""

    asked = 0

    def __init__(self, addresses: Mapping[str, PciAddress]) -> None:
        super().__init__()
        self._addresses = addresses
        self.rtnl = self._open.enter_context(SimulatedRtnl(addresses))

    def vf_infos(self, index: int) -> tuple[VfInfo, ...]:
        self.asked += 1
        return tuple(super().vf_infos(index))

    def devlink_rates(self) -> Mapping[str, Mapping[int, DevlinkRate]]:
        rates = devlink_rates(self._devlink, "netdevsim")
        return {self._addresses[name]: rates for name, rates in rates.items() if name in self._addresses}

    def eswitch_modes(self) -> Mapping[str, str]:
        modes = self._devlink.eswitch_modes("netdevsim")
        return {self._addresses[name]: mode for name, mode in modes.items() if name in self._addresses}


class SimulatedLab(LinuxLab):
    """In a network namespace of its own, which the thread is in until `close`."""

    pcis = (PF0, PF1)
    pf_names = ("nsim0", "nsim1")
    pf_mtu = 1500
    vf_driver = "dummy"

    def __init__(
        self, directory: Path, vfs: int, *, driver: str, link_mbps: int = LINK_MBPS, netdevs: bool = True
    ) -> None:
        """netdevs: whether VFs have any; else theirs are in namespaces of others."""
        super().__init__(directory)
        self.vfs, self.link_mbps = vfs, link_mbps
        self.rates = ability(driver=driver, link_mbps=link_mbps)
        self.takes = supported_settings(
            driver=driver, link_type=LinkType.ETHERNET, switchdev=False, vfio_pci=False
        )
        self.tree = Tree(directory / "sys")
        with ExitStack() as failed:
            failed.callback(self.close)
            host = create_namespace()
            self.stack.callback(os.close, host)
            self.stack.enter_context(entered(host))
            self.rtnl = self.stack.enter_context(Rtnl())
            self.devices = [self.stack.enter_context(device(vfs)) for _ in self.pcis]
            self.indexes = [self._make_pf(number, driver) for number in range(len(self.pcis))]
            for number in range(len(self.pcis)):
                for index in range(vfs):
                    self._make_vf(number, index, netdev=netdevs)
            self.kernel = self.another_kernel()
            failed.pop_all()

    def vf_name(self, pf: int, index: int) -> str:
        return f"{self.pf_names[pf]}v{index}"

    def queries(self) -> SimulatedQueries:
        """New ones; a kernel that gets them closes them."""
        names = (each.name for each in self.devices)
        return SimulatedQueries(dict(zip(names, self.pcis, strict=True)))

    def another_kernel(self, queries: SimulatedQueries | None = None) -> SriovKernel:
        kernel = SriovKernel(
            self.namespaces,
            Selection(require_rdma=False, rules=(PfRule(names=frozenset(self.pf_names)),)),
            sysfs=self.tree.root,
            queries=queries or self.queries(),
        )
        self.stack.callback(kernel.close)
        return kernel

    def _make_pf(self, number: int, driver: str) -> int:
        pci, name = self.pcis[number], self.pf_names[number]
        files = {"class": _ETHERNET, "vendor": "0x0000", "device": "0x0000", "sriov_totalvfs": str(self.vfs)}
        self.tree.add_function(pci, files)
        (self.tree.device(pci) / "sriov_numvfs").symlink_to(self.devices[number].num_vfs)
        self.tree.bind(pci, driver)
        self.tree.add_netdev(pci, name, RENAMED)
        (self.tree.root / "class/net" / name / "speed").write_text(f"{self.link_mbps}\n")
        link = self.devices[number].link(self.rtnl)
        self.rtnl.change(link.index, name, named(name))
        self.rtnl.change(link.index, name, up=True)
        return link.index

    def _make_vf(self, number: int, index: int, *, netdev: bool) -> None:
        pci = PciAddress(f"0000:{0x10 + number:02x}:{index // 8:02x}.{index % 8}")
        self.tree.add_function(pci, {"class": _ETHERNET})
        self.tree.link_vf(self.pcis[number], index, pci)
        self.tree.bind(pci, self.vf_driver)
        if netdev:
            name = self.vf_name(number, index)
            self.rtnl.create(name, named(name), of_kind("dummy"))
            self.tree.add_netdev(pci, name, RENAMED)
        else:
            (self.tree.device(pci) / "net").mkdir()
