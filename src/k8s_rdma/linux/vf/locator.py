"""Locator of a VF's netdev: by its PCI address, never by its name, which the pod may change."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.kernel import NoSuchVfError
from k8s_rdma.core.types import PciAddress, pci_address
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.functions import own_link
from k8s_rdma.linux.netlink.ethtool import Ethtool
from k8s_rdma.linux.netlink.sriov import mac as vf_mac
from k8s_rdma.linux.netlink.sriov import set_vfs
from k8s_rdma.linux.sysfs import PciFunction

if TYPE_CHECKING:
    from k8s_rdma.core.step import VfRef
    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl
    from k8s_rdma.linux.sysfs import Sysfs

_ATTEMPTS = 3
"""Attempts for a netdev that is renamed, or appears, while it is read."""


class Host(NamedTuple):
    """The host's network namespace: its links, and a descriptor of it."""

    rtnl: Rtnl
    namespace: int


class VfLocator:
    """Finds VFs, and their netdevs in the host's namespace."""

    def __init__(self, host: Host, sysfs: Sysfs) -> None:
        """Read this sysfs, mounted in the host's namespace."""
        self._rtnl = host.rtnl
        self._sysfs = sysfs

    def function(self, vf: VfRef) -> PciFunction:
        """Return the VF's PCI function. NoSuchVfError, or KernelError when its PF does not exist either."""
        try:
            return PciFunction(
                self._sysfs, pci_address(self._sysfs.target(f"bus/pci/devices/{vf.pf}/virtfn{vf.index}"))
            )
        except FileNotFoundError as error:
            raise self._unknown(vf) from error
        except OSError as error:
            msg = f"{describe(vf)}: cannot be accessed: {error.strerror}"
            raise KernelError(msg) from error

    def at_home(self, vf: VfRef) -> Link | None:
        """Return its netdev in the host's namespace; None when it is elsewhere.

        KernelError for an unknown VF.
        """
        function = self.function(vf)
        for _ in range(_ATTEMPTS):
            names = function.netdevs()
            if not names:
                return None
            links = {name: link for name in names if (link := self._rtnl.link(name))}
            found = own_link(function, names, links)
            if found is not None:
                return found
        msg = f"{describe(vf)}: sysfs gives it {', '.join(sorted(names or ()))}, which netlink does not list"
        raise KernelError(msg)

    def pf_link(self, vf: VfRef) -> Link:
        """Return the netdev of its PF. KernelError when that has none here."""
        function = PciFunction(self._sysfs, vf.pf)
        names = function.netdevs() or ()
        links = {name: link for name in names if (link := self._rtnl.link(name))}
        found = own_link(function, names, links)
        if found is None:
            msg = f"{describe(vf)}: that PF has no netdev here"
            raise KernelError(msg)
        return found

    def let_have_mac(self, vf: VfRef, mac: str) -> None:
        """Set this administrative MAC on the PF, so that the VF may use it."""
        operation = f"PF {vf.pf}: MAC for its return"
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
    """Return a function's netdev in a namespace (a socket there, and its descriptor); None if it has none.

    index: the last known one; reading all of 60 links for each of 60 VFs would take long.
    """
    if index is not None:
        link = namespace_rtnl.link_at(index)
        if link is not None and _device(link, namespace) == pci:
            return link
    return netdevs_by_device(namespace_rtnl, namespace).get(pci)


def netdevs_by_device(namespace_rtnl: Rtnl, namespace: int) -> dict[str, Link]:
    """Return the functions' netdevs in a namespace (a socket there, and its descriptor).

    IPoIB interfaces of other partitions, whose peer a function's own netdev is, are left out.
    """
    links = sorted(namespace_rtnl.links(), key=lambda link: link.index, reverse=True)
    return {device: link for link in links if not link.peer and (device := _device(link, namespace))}


def describe(vf: VfRef) -> str:
    """Name a VF at the beginning of a message."""
    return f"VF {vf.index} of PF {vf.pf}"


def _device(link: Link, namespace: int) -> str:
    """Return the device of a link; virtual links have a kind, those of hardware none."""
    if link.device or link.kind:
        return link.device
    with Ethtool(namespace) as ethtool:  # Linux before 5.14 has no IFLA_PARENT_DEV_NAME
        found = ethtool.driver_info(link.name)
    return found.bus_info if found else ""
