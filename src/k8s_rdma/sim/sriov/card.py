"""The cards of a pretended machine: what they are, and the state that they are in."""

from __future__ import annotations

from dataclasses import dataclass, field

from k8s_rdma.core.ids import PciAddress, pci_address
from k8s_rdma.core.options import LinkType
from k8s_rdma.linux.netlink.rtnl import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A PF.

    name: of its netdev. mac: of the PF, 20 octets for InfiniBand. drivers: the PF's and the VFs'.
    settings: kinds (of `linux.vf.creation`) that its driver takes for VFs.
    driver_after_s, rdma_after_s: since the machine started. link_after_s: since the PF is up.
    vf_netdev_after_s: since the VF got its driver. has_cable: whether the port ever has a link.
    makes_at_most: VFs, whatever is asked.
    """

    name: str
    pci: PciAddress
    mac: str
    total_vfs: int = 7
    driver: str = "igb"
    vf_driver: str = "igbvf"
    vendor: str = "0x8086"
    device: str = "0x10c9"
    link_type: LinkType = LinkType.ETHERNET
    has_rdma: bool = False
    has_cable: bool = True
    settings: frozenset[str] = frozenset({"MAC", "GUID", "link state", "trust"})
    driver_after_s: float = 0.0
    rdma_after_s: float = 0.0
    link_after_s: float = 1.0
    vf_netdev_after_s: float = 0.0
    makes_at_most: int | None = None

    def vf_pci(self, index: int) -> PciAddress:
        """Where VF `index` is: from function 16 on (`sriov_offset`)."""
        domain_bus, _, _ = self.pci.rpartition(":")
        domain, bus = domain_bus.split(":")
        routing = int(bus, 16) << 8 | (16 + index)
        return pci_address(f"{domain}:{routing >> 8:02x}:{routing >> 3 & 31:02x}.{routing & 7}")


@dataclass(slots=True, kw_only=True)
class VfState:
    """A VF as its PF has it, and its netdev as its driver made it.

    override: the driver that alone may have it; empty for any that fits.
    netdev_at: when its driver makes the netdev; None without one that does. away: whether that is in another
    namespace. has_vlan: whether there is a VLAN on it.
    """

    pci: PciAddress
    mac: str = "00:00:00:00:00:00"
    trust: bool = False
    link_state: str = "auto"
    node_guid: str = "00:00:00:00:00:00:00:00"
    port_guid: str = "00:00:00:00:00:00:00:00"
    driver: str | None = None
    override: str = ""
    netdev_at: float | None = None
    netdev: str = ""
    netdev_mac: str = ""
    netdev_index: int = 0
    away: bool = False
    master: int = 0
    has_vlan: bool = False
    addresses: tuple[Address, ...] = ()


@dataclass(slots=True, kw_only=True)
class CardState:
    """A card as it is now.

    up_at: since when its netdev is up; None while it is down. carrier: what its file says of the link.
    """

    card: Card
    index: int
    autoprobe: bool = True
    has_driver: bool = False
    rdma_device: str = ""
    up_at: float | None = None
    carrier: bool | None = None
    vfs: dict[int, VfState] = field(default_factory=dict)

    def has_link(self, now: float) -> bool:
        """Whether its port has one."""
        return self.card.has_cable and self.up_at is not None and now >= self.up_at + self.card.link_after_s
