"""Locator of a VF's netdev: by its PCI address, never by its name, which the pod may change."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.ids import pci_address
from k8s_rdma.core.kernel import NoSuchVfError
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.pfs import own_link
from k8s_rdma.linux.netlink.ethtool import Ethtool
from k8s_rdma.linux.netlink.sriov import mac as vf_mac
from k8s_rdma.linux.netlink.sriov import set_vfs
from k8s_rdma.linux.pci import PciFunction

if TYPE_CHECKING:
    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.core.step import VfRef
    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl
    from k8s_rdma.linux.sysfs import Sysfs

_ATTEMPTS = 3
"""At a netdev that is renamed, or comes, while it is looked at."""


class Host(NamedTuple):
    """The network namespace where VFs are at home: its links, and a descriptor of it."""

    rtnl: Rtnl
    namespace: int


class VfLocator:
    """Finds VFs, and their netdevs in the host's namespace."""

    def __init__(self, host: Host, sysfs: Sysfs) -> None:
        """Sysfs of that namespace."""
        self._rtnl = host.rtnl
        self._sysfs = sysfs

    def function(self, vf: VfRef) -> PciFunction:
        """The VF's PCI function. NoSuchVfError, or KernelError where its PF is not to be seen either."""
        try:
            return PciFunction(
                self._sysfs, pci_address(self._sysfs.target(f"bus/pci/devices/{vf.pf}/virtfn{vf.index}"))
            )
        except FileNotFoundError as error:
            raise self._unknown(vf) from error
        except OSError as error:
            msg = f"{describe(vf)}: cannot be looked at: {error.strerror}"
            raise KernelError(msg) from error

    def at_home(self, vf: VfRef) -> Link | None:
        """Its netdev in the host's namespace; None when it is not there. KernelError for an unknown VF."""
        function = self.function(vf)
        for _ in range(_ATTEMPTS):
            names = function.netdevs()
            if not names:
                return None
            links = {name: link for name in names if (link := self._rtnl.link(name))}
            found = own_link(function, names, links)
            if found is not None:
                return found
        msg = (
            f"{describe(vf)}: sysfs gives it {', '.join(sorted(names or ()))}, of which netlink knows nothing"
        )
        raise KernelError(msg)

    def pf_link(self, vf: VfRef) -> Link:
        """The netdev of its PF. KernelError when that has none here."""
        function = PciFunction(self._sysfs, vf.pf)
        names = function.netdevs() or ()
        links = {name: link for name in names if (link := self._rtnl.link(name))}
        found = own_link(function, names, links)
        if found is None:
            msg = f"{describe(vf)}: that PF has no netdev here"
            raise KernelError(msg)
        return found

    def let_have_mac(self, vf: VfRef, mac: str) -> None:
        """Have the PF give a VF this MAC, so that it may take it."""
        operation = f"PF {vf.pf}: so that it can come home"
        set_vfs(self._rtnl, self.pf_link(vf).index, operation, [vf_mac(vf.index, mac)])

    def _unknown(self, vf: VfRef) -> KernelError:
        operation, function = f"{describe(vf)}: unknown", PciFunction(self._sysfs, vf.pf)
        try:
            names, count = function.netdevs(), len(function.vfs())
        except OSError:
            return KernelError(f"{operation}: there is no such PF")
        return NoSuchVfError(f"{operation}: {min(names or ('that PF',))} has {count} VFs")


def netdev_of(
    pci: PciAddress, namespace_rtnl: Rtnl, namespace: int, *, index: int | None = None
) -> Link | None:
    """The netdev of a function in a namespace (a socket there, and its descriptor); None if it is not there.

    index: which it had when last seen; to look at all of 60 links for each of them would take long.
    """
    if index is not None:
        link = namespace_rtnl.link_at(index)
        if link is not None and _device(link, namespace) == pci:
            return link
    return netdevs_by_device(namespace_rtnl, namespace).get(pci)


def netdevs_by_device(namespace_rtnl: Rtnl, namespace: int) -> dict[str, Link]:
    """The netdev of each function that has one in a namespace (a socket there, and its descriptor).

    Beside it there may be IPoIB interfaces of other partitions, whose peer it is.
    """
    links = sorted(namespace_rtnl.links(), key=lambda link: link.index, reverse=True)
    return {device: link for link in links if not link.peer and (device := _device(link, namespace))}


def describe(vf: VfRef) -> str:
    """A VF at the beginning of a message."""
    return f"VF {vf.index} of PF {vf.pf}"


def _device(link: Link, namespace: int) -> str:
    """What a link is a netdev of; virtual links have a kind, those of hardware none."""
    if link.device or link.kind:
        return link.device
    with Ethtool(namespace) as ethtool:  # Linux before 5.14 tells no IFLA_PARENT_DEV_NAME
        found = ethtool.driver_info(link.name)
    return found.bus_info if found else ""
