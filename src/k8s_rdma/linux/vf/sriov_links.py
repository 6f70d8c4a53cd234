"""Settings of VFs and netdevs during node setup, by netlink of the PF."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from k8s_rdma.linux.netlink import sriov
from k8s_rdma.linux.netlink.routes import addressed_links
from k8s_rdma.linux.netlink.rtnl import Link, Rtnl, named, with_mtu
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.netlink.sriov import vf_infos

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from k8s_rdma.linux.netlink.queries import VfInfo
    from k8s_rdma.linux.vf.creation import VfFunction


_SKIP_STATS = 8
_PERM_ADDRESS = 54

_NO_MEANS = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors for a driver without the function (InfiniBand's with ENOSYS in older kernels)."""

_OUT_OF_RANGE = frozenset({errno.EINVAL, errno.ERANGE})
"""Errors for an MTU outside the driver's limits (Linux `net/core/dev.c`, dev_validate_mtu, and drivers)."""


@unique
class GuidOf(Enum):
    """Object that a GUID names (InfiniBand Architecture Specification volume 1, 4.1)."""

    NODE = "node"
    PORT = "port"


@dataclass(frozen=True, slots=True)
class VfMac:
    """An administrative MAC, `aa:bb:cc:dd:ee:ff`."""

    value: str
    kind: ClassVar[str] = "MAC"


@dataclass(frozen=True, slots=True)
class VfGuid:
    """One of the two GUIDs of a VF, `aa:bb:cc:dd:ee:ff:00:11`."""

    guid_of: GuidOf
    value: str
    kind: ClassVar[str] = "GUID"


@dataclass(frozen=True, slots=True)
class VfTrust:
    """Permission of the VF to be promiscuous and to set its own MAC."""

    value: bool
    kind: ClassVar[str] = "trust"


@dataclass(frozen=True, slots=True)
class VfLinkState:
    """Link state of the VF; as in `linux.netlink.sriov.link_state`."""

    value: str
    kind: ClassVar[str] = "link state"


Setting = VfMac | VfGuid | VfTrust | VfLinkState


class NetdevsOf:
    """Index of netdevs by function.

    Names are not unique over time: the kernel may reuse one for another VF.
    """

    def __init__(self, links: Iterable[Link]) -> None:
        """Index the links of one moment."""
        self._by_device: dict[str, list[Link]] = {}
        for link in links:
            self._by_device.setdefault(link.device, []).append(link)

    def netdevs_of(self, vf: VfFunction) -> Sequence[Link]:
        """Return a VF's netdevs."""
        return self._by_device.get(vf.pci, ())


class SriovLinks(Protocol):
    """Netdevs of one network namespace, the host's. Every failure is a `NetlinkError`. Used by one thread."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def links(self) -> Sequence[Link]:
        """Return all links."""
        ...

    def link(self, name: str) -> Link | None:
        """Return the link of that name, if there is one."""
        ...

    def addressed_links(self) -> frozenset[int]:
        """Return the links with an address; see `linux.netlink.queries.Queries.addressed_links`."""
        ...

    def permanent_address(self, link: Link) -> str:
        """Return the permanent hardware address, or the present one if the driver does not report it."""
        ...

    def vf_infos(self, index: int) -> Sequence[VfInfo]:
        """Return the VFs of a PF's netdev; an expensive query, see `linux.netlink.sriov`."""
        ...

    def set_vf(self, pf: Link, vf: int, setting: Setting) -> bool:
        """Write one setting of a VF; False when the PF's driver does not support it."""
        ...

    def bring_up(self, link: Link) -> None:
        """Set a link up."""
        ...

    def set_mtu(self, link: Link, mtu: int) -> bool:
        """Set a link's MTU; return False if its driver does not take this one."""
        ...

    def rename(self, link: Link, name: str) -> None:
        """Rename a link, which must be down."""
        ...


class KernelSriovLinks(Rtnl):
    """`SriovLinks` of the running kernel."""

    def addressed_links(self) -> frozenset[int]:
        """Implement `SriovLinks.addressed_links`."""
        return addressed_links(self)

    def permanent_address(self, link: Link) -> str:
        """Implement `SriovLinks.permanent_address`."""
        found = self.details(link.index, _SKIP_STATS, f"link {link.name}")
        return found[_PERM_ADDRESS].hex(":") if _PERM_ADDRESS in found else link.mac

    def vf_infos(self, index: int) -> Sequence[VfInfo]:
        """Implement `SriovLinks.vf_infos`."""
        return vf_infos(self, index)

    def set_vf(self, pf: Link, vf: int, setting: Setting) -> bool:
        """Implement `SriovLinks.set_vf`."""
        try:
            sriov.set_vfs(self, pf.index, f"PF {pf.name}", (_packed(vf, setting),))
        except NetlinkError as error:
            if error.errno in _NO_MEANS:
                return False
            raise
        return True

    def bring_up(self, link: Link) -> None:
        """Implement `SriovLinks.bring_up`."""
        self.change(link.index, f"{link.name}: up", up=True)

    def set_mtu(self, link: Link, mtu: int) -> bool:
        """Implement `SriovLinks.set_mtu`."""
        try:
            self.change(link.index, f"{link.name}: MTU {mtu}", with_mtu(mtu))
        except NetlinkError as error:
            if error.errno in _OUT_OF_RANGE:
                return False
            raise
        return True

    def rename(self, link: Link, name: str) -> None:
        """Implement `SriovLinks.rename`."""
        self.change(link.index, f"{link.name}: name {name}", named(name))


def _packed(vf: int, setting: Setting) -> sriov.VfSetting:
    if isinstance(setting, VfMac):
        return sriov.mac(vf, setting.value)
    if isinstance(setting, VfTrust):
        return sriov.trust(vf, on=setting.value)
    if isinstance(setting, VfLinkState):
        return sriov.link_state(vf, setting.value)
    if setting.guid_of is GuidOf.NODE:
        return sriov.node_guid(vf, setting.value)
    return sriov.port_guid(vf, setting.value)
