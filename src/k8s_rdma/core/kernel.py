"""The kernel as a parameter: the operations that the agent needs of it, and their results.

Three implementations pass one contract suite (`tests/contract/`): `linux.kernel` on SR-IOV hardware,
`linux.virtual` made of ordinary Linux parts, `fakes.kernel` of the tests in memory.

The settings that a PF holds for a VF besides rates are converted both ways: from an interface's options, and
to the fields of a VF.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.rate_ability import EVERY_RATE, RateAbility
from k8s_rdma.core.step import NetnsRef, Step, VfConfig, VfRef, Vlan
from k8s_rdma.core.types import Enforce, LinkState, LinkType, NodeName, PciAddress, Setting, VlanProto
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from k8s_rdma.core.netdev_attributes import Attributes
    from k8s_rdma.core.options import InterfaceOptions

_NO_GUID = "00:00:00:00:00:00:00:00"
_GUID_CHARACTERS = len(_NO_GUID)

_LINK_STATES = {LinkState.AUTO: "Follow", LinkState.ENABLE: "Up", LinkState.DISABLE: "Down"}
_FLAGS = {True: "ON", False: "OFF"}


def asked_config(index: int, options: InterfaceOptions) -> VfConfig | None:
    """Return the settings that a PF shall have for the VF of that index, if any is requested."""
    vlan = options.vlan
    config = VfConfig(
        index=index,
        mac=options.mac,
        vlan=None if vlan is None else Vlan(vlan, options.qos or 0, options.vlan_proto or VlanProto.DOT1Q),
        trust=options.trust,
        spoof_check=options.spoof_check,
        link_state=options.link_state,
        guid=options.guid,
    )
    return None if config == VfConfig(index=index) else config


def present_config(vf: Vf, config: VfConfig) -> VfConfig:
    """Return the PF's present settings for a VF, of all that `config` sets.

    A setting that its driver does not report is taken to be that of a new VF: not trusted, source addresses
    checked, the port's link. So no pod finds a VF as permissive as another pod was allowed to have it.
    """
    present = VfConfig(
        index=vf.index,
        mac=vf.admin_mac or vf.mac,
        vlan=Vlan(vf.vlan, vf.qos, _proto(vf)),
        trust=vf.trust == _FLAGS[True],
        spoof_check=vf.spoof_check != _FLAGS[False],
        link_state=_link_state(vf),
        guid=_guid(vf),
    )
    untouched: dict[str, Any] = {
        field.name: None for field in fields(present) if getattr(config, field.name) is None
    }
    untouched["node_guid"] = (config.guid and vf.node_guid) or None
    return replace(present, **untouched)


def shown(config: VfConfig) -> Mapping[str, Any]:
    """Return the fields of a `Vf` with these settings, as an observation shows them; only those set."""
    result: dict[str, Any] = {}
    if config.mac is not None:
        result["admin_mac"] = config.mac
    if config.vlan is not None:
        tagged = config.vlan.id or config.vlan.qos
        proto = config.vlan.proto.value if tagged else "N/A"
        result |= {"vlan": config.vlan.id, "qos": config.vlan.qos, "vlan_proto": proto}
    if config.trust is not None:
        result["trust"] = _FLAGS[config.trust]
    if config.spoof_check is not None:
        result["spoof_check"] = _FLAGS[config.spoof_check]
    if config.link_state is not None:
        result["link_state"] = _LINK_STATES[config.link_state]
    return result


def _proto(vf: Vf) -> VlanProto:
    return VlanProto.DOT1AD if vf.vlan_proto == VlanProto.DOT1AD else VlanProto.DOT1Q


def _link_state(vf: Vf) -> LinkState:
    return next((state for state, name in _LINK_STATES.items() if name == vf.link_state), LinkState.AUTO)


def _guid(vf: Vf) -> str:
    """Return the port GUID: the last eight octets of an InfiniBand address (RFC 4391, section 9.1.1)."""
    address = max(vf.admin_mac, vf.mac, key=len)
    return address[-_GUID_CHARACTERS:] if len(address) >= _GUID_CHARACTERS else _NO_GUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Vf:
    """A virtual function in its present state.

    Rates are in Mb/s, 0 as in `VfRate`. Fields without a description are those of `IFLA_VFINFO_LIST` and of
    `/getpfs`; text as `ip link` and MLNX_OFED print it.

    netdev: its name in the host's namespace; None while it is in another one, or if no driver made one.
    mac: its netdev's while that is at home, else the one that the PF has for it: on InfiniBand the port GUID,
        empty if that is not known.
    admin_mac: the MAC that the PF has for it (`ip link show dev PF`); empty if that is not known.
    node_guid: InfiniBand: as `ip link` prints it; empty if that is not known.
    driver: the driver of its PCI function; empty without one, or if that is not known.
    unusable: why it cannot be given to a pod although its netdev is at home; empty if it can.
    pool: the exclusive resource that it belongs to (`core.devices.pools`); empty for pods that ask by
        annotation.
    failures: how often it could not be given since it last could (`core.vf_failures`); VFs with fewer are
        given before it.
    set_aside: whether `unusable` is for the same cause, and passes.
    """

    index: int
    pci: PciAddress
    netdev: str | None
    mac: str
    mtu: int
    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0
    vlan: int = 0
    qos: int = 0
    vlan_proto: str = "N/A"
    spoof_check: str = "OFF"
    trust: str = "OFF"
    link_state: str = "Follow"
    vgt_plus: str = "OFF"
    rate_group: int = 0
    rdma_device: str | None = None
    admin_mac: str = ""
    node_guid: str = ""
    driver: str = ""
    unusable: str = ""
    pool: str = ""
    failures: int = 0
    set_aside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PfState:
    """A physical function and its VFs, ordered by index.

    altnames: other names of its netdev.
    link_mbps: None if unknown, for example while the link is down.
    mtu: bytes.
    vendor: PCI vendor and device, `15b3:1017`.
    numa_node: its NUMA node, if the machine reports it.
    pcie_path: its PCI bridges and switches from the root port down; those that share more of it are closer.
    switchdev: whether its embedded switch is in that mode, in which VFs are configured through representors.
    rates, enforce: the rates that its driver can program, and the enforcement that is demanded of it.
    supported_settings: the other settings that its driver supports for VFs.
    software_caps: whether the kernel can limit the rate at which netdevs send.
    problems: one sentence each for an operator, for example that the link is down.
    failures: one sentence each on VFs that could not be given (`core.vf_failures`).
    mac: its netdev's own, which no VF may have; comparisons ignore it.
    claims_mbps: the part of its link that is for ResourceClaims, if it is split.
    """

    name: str
    pci: PciAddress
    link_mbps: int | None
    driver: str
    vfs: tuple[Vf, ...]
    mtu: int = 1500
    link_type: LinkType = LinkType.ETHERNET
    rdma_device: str | None = None
    vendor: str = ""
    firmware: str = ""
    numa_node: int | None = None
    pcie_path: tuple[PciAddress, ...] = ()
    switchdev: bool = False
    rates: RateAbility = EVERY_RATE
    enforce: Enforce = Enforce.AUTO
    supported_settings: frozenset[Setting] = frozenset()
    software_caps: bool = True
    problems: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    mac: str = field(default="", compare=False)
    claims_mbps: int | None = None
    altnames: tuple[str, ...] = ()

    @property
    def requestable_settings(self) -> frozenset[Setting]:
        """The settings that pods may request for its VFs besides rates."""
        return (
            self.supported_settings | {Setting.SOFTWARE_CAPS}
            if self.software_caps
            else self.supported_settings
        )

    @property
    def pcie_root(self) -> str:
        """Return the root complex as in sysfs, such as `pci0000:3a`; empty if it has no PCI address."""
        port = self.pcie_path[0] if self.pcie_path else self.pci
        domain, bus, device = port.split(":") if port.count(":") == 2 else ("", "", "")
        return f"pci{domain}:{bus}" if device else ""

    def vf(self, index: int) -> Vf | None:
        """Return the VF of an index, if there is one. In most lists its place is its index."""
        if index < len(self.vfs) and self.vfs[index].index == index:
            return self.vfs[index]
        return next((vf for vf in self.vfs if vf.index == index), None)

    def pools(self) -> dict[str, int]:
        """Return the number of its VFs in exclusive resources, by resource."""
        return dict(sorted(Counter(vf.pool for vf in self.vfs if vf.pool).items()))


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Something that a scan could not read, and why; it is never reported as absent.

    pf: the PF that it is, or that it belongs to; None if it may be any.
    """

    subject: str
    why: str
    pf: PciAddress | None = None


@dataclass(frozen=True, slots=True)
class Hardware:
    """One observation: the PFs, ordered by PCI address, and the parts that were unreadable.

    problems: one sentence each on problems of no observed PF, for example a PF that was left out.
    """

    pfs: tuple[PfState, ...]
    unreadable: tuple[Unreadable, ...] = ()
    problems: tuple[str, ...] = ()
    _by_pci: Mapping[PciAddress, PfState] = field(init=False, repr=False, compare=False)
    _inventories: dict[NodeName, Inventory] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        """Index the PFs."""
        object.__setattr__(self, "_by_pci", {pf.pci: pf for pf in self.pfs})

    def pf(self, pci: PciAddress) -> PfState | None:
        """Return the PF at an address, if the observation has one there."""
        return self._by_pci.get(pci)

    def inventory(self, node: NodeName) -> Inventory:
        """Return the inventory that placement uses; the same object each time."""
        found = self._inventories.get(node)
        if found is None:
            found = self._inventories[node] = self._inventory(node)
        return found

    def _inventory(self, node: NodeName) -> Inventory:
        return Inventory.of_node(
            node,
            (
                Pf(
                    name=pf.name,
                    pci=pf.pci,
                    capacity_vfs=sum(not vf.pool for vf in pf.vfs),
                    link_mbps=pf.link_mbps,
                    rates=pf.rates,
                    enforce=pf.enforce,
                    driver=pf.driver,
                    supported_settings=pf.requestable_settings,
                    link_type=pf.link_type,
                    mtu=pf.mtu,
                    vendor=pf.vendor,
                    numa_node=pf.numa_node,
                    pcie_path=pf.pcie_path,
                    pools=pf.pools(),
                )
                for pf in self.pfs
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInterface:
    """A network interface in a pod's namespace; addresses in CIDR form, including link addresses.

    Three fields list addresses by the present result of duplicate address detection (RFC 4862, RFC 4429).

    duplicates: another station of the network has the address.
    unusable: the address must not be used before the result is known.
    unverified: the address is in use before the result is known.
    max_tx_rate_mbps: the cap that `core.step.CapInterface` set, as the kernel has it now, rounded up to whole
        Mb/s; 0 if its root queueing discipline is another.
    xdp: the XDP programs that it has, number and mode of each; empty if it has no program.
    """

    mac: str
    mtu: int
    is_up: bool
    carrier: bool = True
    addresses: frozenset[str] = frozenset()
    duplicates: frozenset[str] = frozenset()
    unusable: frozenset[str] = frozenset()
    unverified: frozenset[str] = frozenset()
    max_tx_rate_mbps: int = 0
    xdp: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedVf:
    """A VF's netdev in a pod's namespace.

    ifname, mac: as the pod may have changed them.
    max_tx_rate_mbps: as in `PodInterface`.
    qdisc: the kind of its root queueing discipline; empty without one.
    """

    ifname: str
    mac: str
    max_tx_rate_mbps: int
    qdisc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VfCounters:
    """Traffic of a VF since its netdev was made, in its own direction: `tx` is sent by its holder.

    tx_dropped, rx_dropped: packets, as the driver counts them; None if it is not known.
    rdma: the RDMA device's `hw_counters` by the kernel's names; empty if it has no counters.
    """

    vf: VfRef
    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int
    tx_dropped: int | None = None
    rx_dropped: int | None = None
    rdma: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseFrames:
    """Pause frames of a PF at one priority (IEEE 802.1Qbb), since its driver was loaded."""

    sent: int
    received: int


class NameTakenError(KernelError):
    """A netdev cannot have its name: another one in that namespace has it."""


class NoSuchVfError(KernelError):
    """The PF is there, and has no such VF: it went with the PF's driver, or with a change of their number."""


class OtherMacError(KernelError):
    """A netdev cannot have its MAC, because its PF allows only another one: `mac`, which it has."""

    def __init__(self, message: str, *, mac: str, details: str = "") -> None:
        super().__init__(message, details=details)
        self.mac = mac


class Kernel(Protocol):
    """Observe the hardware, apply one step, tell of changes. Blocking: one worker thread owns it."""

    def observe(self) -> Hardware:
        """Everything there is now. KernelError when the kernel cannot be asked at all."""
        ...

    def apply(self, step: Step) -> Attributes | None:
        """Make the step hold, verified by reading back.

        Returns the attributes of its netdev that a BringHome has read last, if they are those of home; else,
        and for any other step, None.
        KernelError if it does not hold afterwards; the step's inverse then undoes the part that was done.
        NameTakenError if the cause is the name that a VF is to have.
        OtherMacError if the cause is the MAC that it is to have on the host.
        NoSuchVfError if the VF that returns to the host is gone for good.
        """
        ...

    def attributes(self, vf: VfRef) -> Attributes:
        """Return the attributes of a VF's netdev at home. KernelError when it is not there."""
        ...

    def namespace_alive(self, netns: NetnsRef) -> bool:
        """Report whether that very namespace (path and inode) still exists."""
        ...

    def interfaces(self, netns: NetnsRef) -> Mapping[str, PodInterface]:
        """Return the interfaces in a namespace, by name. KernelError when it cannot be read."""
        ...

    def located(self, netns: NetnsRef) -> Mapping[PciAddress, LocatedVf]:
        """Return the VFs whose netdevs are in a namespace. KernelError when that cannot be determined."""
        ...

    def announce(self, netns: NetnsRef, addresses: Mapping[str, Collection[str]]) -> None:
        """Announce on the link of each interface that these addresses (CIDR form) of it are there now.

        Stations that talked to an address's last holder have its MAC, and would use it for a while. An
        interface that is not there any more, or has no link, is passed over.
        KernelError if the namespace is gone.
        """
        ...

    def sample(self, holders: Mapping[VfRef, NetnsRef]) -> tuple[VfCounters, ...]:
        """Return the traffic of all VFs with counters, ordered by VF. It costs as much as an observation.

        A VF that cannot be read is left out.

        holders: the namespaces of VFs that pods have, by the ledger, because some drivers count in the VF's
            own netdev only.
        """
        ...

    def pause_frames(self, pf: str) -> Mapping[int, PauseFrames]:
        """Return a PF's pause frames by priority; empty if the driver does not report them.

        pf: the name of its netdev.
        """
        ...

    def reset(self, vf: VfRef) -> None:
        """Reset a VF in the host's namespace to that of a free one: no rates, no VLAN, no addresses, down.

        KernelError if it is not there, or some of its state stays.
        """
        ...

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` from any thread after an observable change; return a function to end the watch."""
        ...

    def close(self) -> None:
        """Release sockets and threads; the machine is not changed."""
        ...
