"""Netdevs of PFs and VFs while those are set up; the seam where a pretended machine is put in.

`KernelSriovLinks` asks the running kernel, `sim.sriov_machine` answers for a tree of files.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from k8s_rdma.linux.netlink import vf_config
from k8s_rdma.linux.netlink.addressed_links import addressed_links
from k8s_rdma.linux.netlink.rtnl import Rtnl, named
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.netlink.vf_info import vf_infos

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from k8s_rdma.linux.discovery.queries import VfInfo
    from k8s_rdma.linux.netlink.rtnl import Link
    from k8s_rdma.linux.vf.creation import VfFunction

_SKIP_STATS = 8
_PERM_ADDRESS = 54


@unique
class GuidOf(Enum):
    """What a GUID names (InfiniBand Architecture Specification volume 1, 4.1)."""

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

    which: GuidOf
    value: str
    kind: ClassVar[str] = "GUID"


@dataclass(frozen=True, slots=True)
class VfTrust:
    """Whether the VF may be promiscuous and set its own MAC."""

    value: bool
    kind: ClassVar[str] = "trust"


@dataclass(frozen=True, slots=True)
class VfLinkState:
    """What link the VF sees; as `linux.vf_config.link_state`."""

    value: str
    kind: ClassVar[str] = "link state"


Setting = VfMac | VfGuid | VfTrust | VfLinkState

_NO_MEANS = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})
"""What is answered for a driver without the function (InfiniBand's with ENOSYS in older kernels)."""


class NetdevsOf:
    """Netdevs by their function. Names will not do: one that was just given up may be another VF's now."""

    def __init__(self, links: Iterable[Link]) -> None:
        """Those of one moment."""
        self._by_device: dict[str, list[Link]] = {}
        for link in links:
            self._by_device.setdefault(link.device, []).append(link)

    def of(self, vf: VfFunction) -> Sequence[Link]:
        """A VF's."""
        return self._by_device.get(vf.pci, ())


class SriovLinks(Protocol):
    """Netdevs of one network namespace, the host's. Every failure is a `NetlinkError`. Used by one thread."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def links(self) -> Sequence[Link]:
        """All."""
        ...

    def link(self, name: str) -> Link | None:
        """The one of that name."""
        ...

    def addressed_links(self) -> frozenset[int]:
        """As `linux.discovery.queries.Queries.addressed_links`."""
        ...

    def permanent_address(self, link: Link) -> str:
        """The hardware address that it was made with, or that of now where its driver tells of none."""
        ...

    def vf_infos(self, index: int) -> Sequence[VfInfo]:
        """The VFs of a PF's netdev; dear, see `linux.netlink.vf_info`."""
        ...

    def set_vf(self, pf: Link, vf: int, setting: Setting) -> bool:
        """Set one thing on a VF of a PF; False when the PF's driver has no means for it."""
        ...

    def bring_up(self, link: Link) -> None:
        """Set a link up."""
        ...

    def rename(self, link: Link, name: str) -> None:
        """Give a link, which must be down, another name."""
        ...


class KernelSriovLinks(Rtnl):
    """Those of the running kernel."""

    def addressed_links(self) -> frozenset[int]:
        """As `SriovLinks.addressed_links`."""
        return addressed_links(self)

    def permanent_address(self, link: Link) -> str:
        """As `SriovLinks.permanent_address`."""
        found = self.details(link.index, _SKIP_STATS, f"link {link.name}")
        return found[_PERM_ADDRESS].hex(":") if _PERM_ADDRESS in found else link.mac

    def vf_infos(self, index: int) -> Sequence[VfInfo]:
        """As `SriovLinks.vf_infos`."""
        return vf_infos(self, index)

    def set_vf(self, pf: Link, vf: int, setting: Setting) -> bool:
        """As `SriovLinks.set_vf`."""
        try:
            vf_config.set_vfs(self, pf.index, f"PF {pf.name}", (_packed(vf, setting),))
        except NetlinkError as error:
            if error.errno in _NO_MEANS:
                return False
            raise
        return True

    def bring_up(self, link: Link) -> None:
        """As `SriovLinks.bring_up`."""
        self.change(link.index, f"{link.name}: up", up=True)

    def rename(self, link: Link, name: str) -> None:
        """As `SriovLinks.rename`."""
        self.change(link.index, f"{link.name}: name {name}", named(name))


def _packed(vf: int, setting: Setting) -> vf_config.VfSetting:
    if isinstance(setting, VfMac):
        return vf_config.mac(vf, setting.value)
    if isinstance(setting, VfTrust):
        return vf_config.trust(vf, on=setting.value)
    if isinstance(setting, VfLinkState):
        return vf_config.link_state(vf, setting.value)
    if setting.which is GuidOf.NODE:
        return vf_config.node_guid(vf, setting.value)
    return vf_config.port_guid(vf, setting.value)
