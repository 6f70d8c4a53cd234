"""Options of interfaces besides rates, and the needs among them that decide which PFs take one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique
from functools import lru_cache

from k8s_rdma.core.ids import PciAddress


@unique
class LinkType(StrEnum):
    """The link layer of a port."""

    ETHERNET = "ethernet"
    INFINIBAND = "infiniband"


@unique
class VlanProto(StrEnum):
    """The tag's EtherType, as `ip link` writes it; 802.1ad is the outer tag of QinQ."""

    DOT1Q = "802.1Q"
    DOT1AD = "802.1ad"


@unique
class LinkState(StrEnum):
    """The link state of a VF (`IFLA_VF_LINK_STATE_*`): its port's, always up, or always down."""

    AUTO = "auto"
    ENABLE = "enable"
    DISABLE = "disable"


@unique
class VfDriver(StrEnum):
    """The driver of a pod's VF: the kernel's, as a netdev, or a program in the pod."""

    KERNEL = "kernel"
    VFIO_PCI = "vfio-pci"


@unique
class Setting(StrEnum):
    """A setting that a PF's driver may support for VFs, by the key that requests it.

    VLAN_PROTO: another tag than 802.1Q's. VFIO_PCI: whether the VFs can be given as PCI functions.
    SOFTWARE_CAPS: caps by `core.rates.Enforce.SOFTWARE`, of which older agents and some kernels know nothing.
    """

    VLAN = "vlan"
    QOS = "qos"
    VLAN_PROTO = "vlan_proto"
    MAC = "mac"
    MTU = "mtu"
    TRUST = "trust"
    SPOOF_CHECK = "spoof_check"
    LINK_STATE = "link_state"
    GUID = "guid"
    PKEY = "pkey"
    VFIO_PCI = "vfio-pci"
    SOFTWARE_CAPS = "software-caps"


@dataclass(frozen=True, slots=True, kw_only=True)
class PfSelector:
    """Selects PFs: each set that is not empty must hold the PF's value.

    names: of netdevs. vendors: PCI vendor, or vendor and device: `15b3`, `15b3:1017`.
    """

    names: frozenset[str] = frozenset()
    pcis: frozenset[PciAddress] = frozenset()
    vendors: frozenset[str] = frozenset()
    drivers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The needs of an interface that a PF must meet. mtu: bytes, 0 for any."""

    pf: PfSelector | None = None
    link_type: LinkType | None = None
    mtu: int = 0
    settings: frozenset[Setting] = frozenset()


NO_NEEDS = Needs()


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceOptions:
    """Optional settings of an interface; the VF keeps its own where none is requested.

    name: in the pod; empty for the one that the network's pattern gives.
    network: which network's addresses; empty for the network that the pod is attached to.
    vlan: 0 (none) to 4094. qos: the tag's priority, 0 to 7. mtu: bytes. mac: `aa:bb:cc:dd:ee:ff`.
    guid: of the InfiniBand port, `aa:bb:cc:dd:ee:ff:00:11`. pkey: 0x0001 to 0xffff.
    """

    name: str = ""
    network: str = ""
    pf: PfSelector | None = None
    link_type: LinkType | None = None
    driver: VfDriver = VfDriver.KERNEL
    vlan: int | None = None
    qos: int | None = None
    vlan_proto: VlanProto | None = None
    mac: str | None = None
    mtu: int | None = None
    trust: bool | None = None
    spoof_check: bool | None = None
    link_state: LinkState | None = None
    guid: str | None = None
    pkey: int | None = None


NO_OPTIONS = InterfaceOptions()


@lru_cache(maxsize=1024)
def needs_of(options: InterfaceOptions, *, software_caps: bool = False) -> Needs:
    """The needs of these options, and of caps in software; `NO_NEEDS` itself for none."""
    requested = {
        Setting.VLAN: options.vlan,
        Setting.QOS: options.qos,
        Setting.MAC: options.mac,
        Setting.MTU: options.mtu,
        Setting.TRUST: options.trust,
        Setting.SPOOF_CHECK: options.spoof_check,
        Setting.LINK_STATE: options.link_state,
        Setting.GUID: options.guid,
        Setting.PKEY: options.pkey,
        Setting.VLAN_PROTO: None if options.vlan_proto in (None, VlanProto.DOT1Q) else options.vlan_proto,
        Setting.VFIO_PCI: options.driver if options.driver is VfDriver.VFIO_PCI else None,
        Setting.SOFTWARE_CAPS: software_caps or None,
    }
    needs = Needs(
        pf=options.pf,
        link_type=options.link_type,
        mtu=options.mtu or 0,
        settings=frozenset(setting for setting, value in requested.items() if value is not None),
    )
    return NO_NEEDS if needs == NO_NEEDS else needs
