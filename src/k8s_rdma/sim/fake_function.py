"""What a pretended machine is made of: PFs as they are asked for, VFs, and their netdevs."""

from __future__ import annotations

from dataclasses import dataclass, field

from k8s_rdma.core.ids import PciAddress
from k8s_rdma.core.options import LinkState, LinkType, Setting
from k8s_rdma.core.rates import EVERY_RATE, Enforce, RateAbility
from k8s_rdma.core.step import Route, Vlan

HOST = 0
"""The place of everything in the host's namespace."""

NO_MAC = "00:00:00:00:00:00"
"""What a PF has for a VF that it leaves its MAC to."""

VF_DRIVER = "fakevf"
"""The kernel's own driver of every VF here: it makes the netdev."""

_OF_INFINIBAND = frozenset({Setting.GUID, Setting.LINK_STATE, Setting.MTU, Setting.TRUST, Setting.VFIO_PCI})
_TAKEN = {
    LinkType.ETHERNET: frozenset(Setting) - {Setting.GUID, Setting.PKEY, Setting.SOFTWARE_CAPS},
    LinkType.INFINIBAND: _OF_INFINIBAND,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FakePf:
    """A PF to pretend: VF i is netdev `<name>v<i>`, and with `rdma` RDMA device `<name>r<i>`.

    rates, enforce: which it takes, and what is demanded.
    takes: what it can do for VFs beside rates; None for all that makes sense on its type of link.
    """

    name: str
    pci: PciAddress
    vfs: int
    link_mbps: int | None = 100_000
    driver: str = "fake"
    rdma: bool = False
    link_type: LinkType = LinkType.ETHERNET
    mtu: int = 1500
    rates: RateAbility = EVERY_RATE
    enforce: Enforce = Enforce.AUTO
    takes: frozenset[Setting] | None = None
    mac: str = "0a:ff:00:00:00:01"

    def taken(self) -> frozenset[Setting]:
        """What it can do for VFs beside rates."""
        return _TAKEN[self.link_type] if self.takes is None else self.takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A netdev as `ip link`, `ip address` and `ip route` would show it."""

    mac: str
    mtu: int
    up: bool
    addresses: tuple[str, ...]
    routes: tuple[Route, ...]


@dataclass(slots=True, kw_only=True)
class Device:
    """A netdev; `place` is its namespace's inode. duplicates: what others had when it was given them.

    max_tx_rate_mbps: of its queueing discipline; 0 for none that limits.
    """

    name: str
    mac: str
    mtu: int = 1500
    place: int = HOST
    up: bool = False
    addresses: tuple[str, ...] = ()
    duplicates: frozenset[str] = frozenset()
    routes: tuple[Route, ...] = ()
    max_tx_rate_mbps: int = 0


@dataclass(slots=True, kw_only=True)
class Settings:
    """What a PF has for a VF besides its rates. guid: of the port; both are empty on Ethernet."""

    mac: str
    guid: str = ""
    node_guid: str = ""
    vlan: Vlan = field(default_factory=lambda: Vlan(0))
    trust: bool = False
    spoof_check: bool = True
    link_state: LinkState = LinkState.AUTO


@dataclass(slots=True, kw_only=True)
class Function:
    """A VF: what drives it, its netdev and RDMA device if it has them, and what its PF has for it.

    driver: empty for none. override: which driver alone may have it (`driver_override`); empty for any.
    device: of no meaning while another driver than `VF_DRIVER` has it.
    verbs: number of its RDMA device's character device; None while it has none.
    """

    pci: PciAddress
    device: Device
    rdma_device: str | None
    settings: Settings
    driver: str = VF_DRIVER
    override: str = ""
    rdma_place: int = HOST
    verbs: int | None = None
    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0

    @property
    def is_netdev(self) -> bool:
        """Whether the kernel's own driver has it."""
        return self.driver == VF_DRIVER

    def own_mac(self) -> str:
        """The hardware address that its netdev comes up with."""
        if self.settings.guid:
            return _ipoib_address(self.settings.guid)
        return self.device.mac if self.settings.mac == NO_MAC else self.settings.mac


def function_of(pf: FakePf, number: int, index: int) -> Function:
    """VF `index` of the machine's PF `number`, at home and without settings."""
    guid = f"00:02:fa:00:{number:02x}:00:{index >> 8:02x}:{index & 255:02x}"
    mac = f"02:fa:00:{number:02x}:{index >> 8:02x}:{index & 255:02x}"
    infiniband = pf.link_type is LinkType.INFINIBAND
    return Function(
        pci=_vf_pci(pf.pci, index),
        device=Device(name=f"{pf.name}v{index}", mac=_ipoib_address(guid) if infiniband else mac),
        rdma_device=f"{pf.name}r{index}" if pf.rdma else None,
        settings=Settings(mac=NO_MAC, guid=guid, node_guid=guid) if infiniband else Settings(mac=mac),
    )


def _ipoib_address(guid: str) -> str:
    """Queue pair, subnet prefix, port GUID (RFC 4391, section 9.1.1)."""
    return f"00:00:10:49:fe:80:00:00:00:00:00:00:{guid}"


def _vf_pci(pf: PciAddress, index: int) -> PciAddress:
    """The PF's bus plus one and onwards, eight VFs a device, 32 devices a bus."""
    domain, bus, rest = pf.split(":")
    number = (int(bus, 16) + 1 + 16 * int(rest[-1])) * 256 + index
    return PciAddress(f"{domain}:{number >> 8 & 255:02x}:{number >> 3 & 31:02x}.{number & 7}")
