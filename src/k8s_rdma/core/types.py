"""Types that every other module uses: identifiers, and words of options."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, StrEnum, unique
from typing import Literal, NewType, TypeAlias

NodeName = NewType("NodeName", str)
PodUid = NewType("PodUid", str)
ContainerId = NewType("ContainerId", str)

PciAddress = NewType("PciAddress", str)
"""A PCI address in the kernel's full form `dddd:bb:dd.f`, lower case; make one with `pci_address`."""
_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-7])")

MIN_MTU, MAX_MTU = 68, 65_535
"""RFC 791: every link carries 68 bytes; `IFLA_MTU` of Linux drivers."""

BITS_PER_MEGABIT = 1_000_000
BYTES_PER_MEGABIT = 125_000

MAX_RATE_MBPS = 2**32 - 1
"""The kernel's rates are unsigned 32 bit Mb/s (`struct ifla_vf_rate`, include/uapi/linux/if_link.h, 6.1)."""

Enforcer: TypeAlias = Literal["hardware", "software", "accounted"]
"""`software`: a queueing discipline. `accounted`: only the sums."""

VIRTUAL_DRIVER = "virtual"
"""The driver of PFs that are made of Linux' own parts (`linux.virtual`): their rates are HTB's."""


def pci_address(text: str) -> PciAddress:
    """Parse `03:00.1` or `0000:03:00.1`; ValueError for anything else.

    Source: Linux `Documentation/ABI/testing/sysfs-bus-pci`, domain:bus:device.function.
    """
    found = _PCI.fullmatch(text.strip().lower())
    if not found:
        msg = f"not a PCI address (dddd:bb:dd.f): {text!r}"
        raise ValueError(msg)
    domain, bus, device, function = found.groups()
    return PciAddress(f"{domain or '0000'}:{bus}:{device}.{function}")


class GangApi(Enum):
    """The API whose PodGroup says how many pods make a gang; the value is the API group.

    KUBERNETES: kube-scheduler's own, `spec.schedulingGroup` of a pod.
    COSCHEDULING: the plug-in of kubernetes-sigs/scheduler-plugins, a label of a pod.
    """

    KUBERNETES = "scheduling.k8s.io"
    COSCHEDULING = "scheduling.x-k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A PodGroup that pods belong to, by its name; it is not known whether it exists."""

    api: GangApi
    namespace: str
    name: str

    def __str__(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"


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

    VLAN_PROTO: another tag than 802.1Q's.
    VFIO_PCI: whether the VFs can be given as PCI functions.
    SOFTWARE_CAPS: caps by `core.types.Enforce.SOFTWARE`, which older agents and some kernels do not support.
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

    names: of netdevs.
    vendors: PCI vendor, or vendor and device: `15b3`, `15b3:1017`.
    """

    names: frozenset[str] = frozenset()
    pcis: frozenset[PciAddress] = frozenset()
    vendors: frozenset[str] = frozenset()
    drivers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The needs of an interface that a PF must meet. mtu: bytes, 0 for any.

    near_gpu: that it is near a GPU of the pod, which depends on more than the PF (`core.devices.near_gpus`).
    """

    pf: PfSelector | None = None
    link_type: LinkType | None = None
    mtu: int = 0
    settings: frozenset[Setting] = frozenset()
    near_gpu: bool = False


NO_NEEDS = Needs()


@unique
class Accelerator(StrEnum):
    """Devices that interfaces are placed near."""

    GPU = "gpu"


@unique
class Strategy(StrEnum):
    """The preference among nodes that fit, and among a node's PFs.

    BINPACK: those with less bandwidth free, so that large holes stay for large pods.
    SPREAD: the emptier.
    BALANCED: those on which VFs and bandwidth run out together.
    """

    BINPACK = "binpack"
    SPREAD = "spread"
    BALANCED = "balanced"


@unique
class Enforce(StrEnum):
    """The enforcement of rates that a PF's configuration asks for; an interface may demand more.

    HARDWARE: by the NIC, read back; a rate that its driver cannot program is refused.
    SOFTWARE: caps by a queueing discipline on the VF's netdev in the pod. It limits the traffic that the
    pod's kernel sends, but not the traffic that RDMA hardware sends by itself. Reservations as with AUTO,
    because no software on a sender can keep its neighbours from sending.
    AUTO: by the NIC if its driver can. If not, caps as with SOFTWARE if the kernel can, and reservations only
    accounted. Each allocation names its enforcer.
    """

    HARDWARE = "hardware"
    SOFTWARE = "software"
    AUTO = "auto"


@unique
class PfUse(StrEnum):
    """The way in which pods ask for the VFs of a PF: by annotation, or by ResourceClaims."""

    ANNOTATION = "annotation"
    CLAIMS = "claims"


def enforcer_of(driver: str) -> Enforcer:
    """Return the enforcer of rates that are programmed on VFs of a driver."""
    return "software" if driver == VIRTUAL_DRIVER else "hardware"
