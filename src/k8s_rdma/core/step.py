"""Kernel changes as values, each with its inverse.

A step describes the desired state, not the commands. Applying a step that already holds has no effect, and
applying the inverse of one that failed half way restores the state before. Only an implementation of
`core.kernel.Kernel` executes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, TypeVar

from k8s_rdma.core.netdev_attributes import Attributes
from k8s_rdma.core.types import LinkState, PciAddress, VlanProto
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.rate_ability import RateAbility, RateRange

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NetnsRef:
    """A network namespace: the path where it was mounted, and the inode that identifies it.

    inode: `st_ino` of the namespace file (namespaces(7)); unique while the namespace lives.
    """

    path: str
    inode: int


@dataclass(frozen=True, slots=True, order=True)
class VfRef:
    """A VF by its PF's PCI address and its index there (`virtfn<index>`)."""

    pf: PciAddress
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VfHome:
    """The state of a VF's netdev on the host before it was moved, restored afterwards.

    attributes: the others that move along; None if unknown, in receipts of agents that did not note them.
    """

    name: str
    mac: str
    mtu: int
    attributes: Attributes | None = None


@dataclass(frozen=True, slots=True)
class VfRate:
    """Rates of one VF, Mb/s; 0 as in the kernel: no guarantee, no limit."""

    index: int
    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRates:
    """Program rates on VFs of one PF, and read them back (once: a query holds the RTNL lock 1-2 ms a VF)."""

    pf: PciAddress
    rates: tuple[VfRate, ...]
    previous: tuple[VfRate, ...]

    @property
    def inverse(self) -> SetRates:
        """Restore the previous rates."""
        return SetRates(pf=self.pf, rates=self.previous, previous=self.rates)


@dataclass(frozen=True, slots=True)
class Vlan:
    """A VF's port VLAN: its tag (0 for no VLAN), priority and EtherType."""

    id: int
    qos: int = 0
    proto: VlanProto = VlanProto.DOT1Q


@dataclass(frozen=True, slots=True, kw_only=True)
class VfConfig:
    """The PF's settings for a VF besides its rates; None leaves one unchanged.

    mac: administrative, `aa:bb:cc:dd:ee:ff`.
    guid: of the port and the node, `aa:bb:cc:dd:ee:ff:00:11`.
    node_guid: the node's if it differs from the port's; ignored without `guid`.
    """

    index: int
    mac: str | None = None
    vlan: Vlan | None = None
    trust: bool | None = None
    spoof_check: bool | None = None
    link_state: LinkState | None = None
    guid: str | None = None
    node_guid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigureVfs:
    """Have a PF hold these settings for some of its VFs, and read them back (once, as with rates).

    previous: of the same VFs in the same order, the present value of each setting that `configs` sets.
    homes: the home states of their netdevs, in that order, if a GUID is set. A driver takes a GUID when it is
        bound, so that a VF at home is bound again, and its netdev is then restored.
    """

    pf: PciAddress
    configs: tuple[VfConfig, ...]
    previous: tuple[VfConfig, ...]
    homes: tuple[VfHome, ...] = ()

    @property
    def inverse(self) -> ConfigureVfs:
        """Restore the previous settings."""
        return ConfigureVfs(pf=self.pf, configs=self.previous, previous=self.configs, homes=self.homes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramVfs:
    """Rates and settings of VFs of one PF, read back by one query for both."""

    rates: SetRates
    settings: ConfigureVfs

    @property
    def pf(self) -> PciAddress:
        """The PF of rates and settings."""
        return self.rates.pf

    @property
    def inverse(self) -> ProgramVfs:
        """Set everything as it was before."""
        return ProgramVfs(rates=self.rates.inverse, settings=self.settings.inverse)


def _converted(step: _DriverChange | _Move | _Configuration, kind: type[T]) -> T:
    """Return the fields of a step as a step of another kind."""
    return kind(**{field.name: getattr(step, field.name) for field in fields(step)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _DriverChange:
    """The drivers that a VF's PCI function changes between.

    pci: the VF's own address.
    driver: such as `vfio-pci`.
    kernel_driver: its driver at home.
    mac: the one that its PF is set to give it in the meantime; None for its MAC on the host.
    """

    vf: VfRef
    pci: str
    driver: str
    kernel_driver: str
    home: VfHome
    mac: str | None = None


class BindVf(_DriverChange):
    """Have a VF's PCI function driven by another driver, which makes no netdev (`driver_override`)."""

    __slots__ = ()

    @property
    def inverse(self) -> UnbindVf:
        """Have it driven as before."""
        return _converted(self, UnbindVf)


class UnbindVf(_DriverChange):
    """Give a VF back to the kernel's driver, without an override: its netdev is then as `home` says, down.

    Holds at once when that drives it already and the netdev is so.
    """

    __slots__ = ()

    @property
    def inverse(self) -> BindVf:
        """Bind the VF to the other driver again."""
        return _converted(self, BindVf)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanVf:
    """Have a VF at home be without BPF programs, and with the attributes of `home` if those are known.

    Otherwise a new netdev replaces its own: hardware is bound to its driver again. The step holds at once for
    a VF that is elsewhere. It needs no undoing.
    """

    vf: VfRef
    home: VfHome

    @property
    def inverse(self) -> CleanVf:
        """Clean it again."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class _Move:
    """The places that a VF's netdev moves between.

    mac, mtu: the netdev's in the pod; None for those on the host.
    """

    vf: VfRef
    home: VfHome
    netns: NetnsRef
    ifname: str
    mac: str | None = None
    mtu: int | None = None


class GiveVf(_Move):
    """Move a VF's netdev (its RDMA device before it, if it has one) into a namespace under a new name.

    MAC and MTU are set and read back on the way. If the netdev has another MAC than that, it gets it as it
    leaves.
    """

    __slots__ = ()

    @property
    def inverse(self) -> BringHome:
        """Return the netdev to the host."""
        return _converted(self, BringHome)


class BringHome(_Move):
    """Bring a VF home from any namespace, restored to `home`: down, without addresses and BPF programs.

    If an attribute cannot be restored, or is not known, or links were made on the netdev, a new netdev
    replaces it: hardware is bound to its driver again. The step holds at once if the VF is home already. When
    the namespace is gone the kernel has returned the netdev (a physical VF) or destroyed it (a virtual one,
    which is then made again).
    """

    __slots__ = ()

    @property
    def inverse(self) -> GiveVf:
        """Move the netdev away again."""
        return _converted(self, GiveVf)


@dataclass(frozen=True, slots=True)
class Route:
    """A route through an interface; `dst` in CIDR form, `gateway` None for one on the link.

    Fields that are None are left to the kernel.

    mtu, advmss: bytes, of packets and of TCP segments that are asked for.
    priority: the metric, lower ones win.
    table: of policy routing.
    scope: as in rtnetlink(7).
    """

    dst: str
    gateway: str | None = None
    mtu: int | None = field(default=None, kw_only=True)
    advmss: int | None = field(default=None, kw_only=True)
    priority: int | None = field(default=None, kw_only=True)
    table: int | None = field(default=None, kw_only=True)
    scope: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Configuration:
    """Addresses (CIDR form) and routes of an interface in a namespace.

    address_flags: the flags of IPv6 addresses (`core.options.KeyRow`); 0 if they need no flags.
    """

    netns: NetnsRef
    ifname: str
    addresses: tuple[str, ...] = ()
    routes: tuple[Route, ...] = ()
    address_flags: int = 0


class ConfigureInterface(_Configuration):
    """Bring an interface up in a namespace with these addresses and routes."""

    __slots__ = ()

    @property
    def inverse(self) -> ClearInterface:
        """Take it down again, without addresses."""
        return _converted(self, ClearInterface)


class ClearInterface(_Configuration):
    """Take an interface down and flush its addresses; holds when interface or namespace is gone."""

    __slots__ = ()

    @property
    def inverse(self) -> ConfigureInterface:
        """Configure the netdev again."""
        return _converted(self, ConfigureInterface)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapInterface:
    """Limit the traffic that the kernel sends through an interface, Mb/s of whole frames; 0 for no limit.

    The limit is a root queueing discipline of ours in the interface's namespace, read back; a foreign one is
    replaced. Without a limit, the step holds if interface or namespace is gone. A netdev that moves loses the
    discipline (Linux `dev_shutdown`), so that a netdev that returns to the host needs no undoing.
    """

    netns: NetnsRef
    ifname: str
    max_tx_rate_mbps: int
    previous: int = 0

    @property
    def inverse(self) -> CapInterface:
        """Restore the previous limit."""
        return CapInterface(
            netns=self.netns,
            ifname=self.ifname,
            max_tx_rate_mbps=self.previous,
            previous=self.max_tx_rate_mbps,
        )


Step = (
    SetRates
    | ConfigureVfs
    | ProgramVfs
    | BindVf
    | UnbindVf
    | CleanVf
    | GiveVf
    | BringHome
    | ConfigureInterface
    | ClearInterface
    | CapInterface
)


def check_rates(
    step: SetRates, *, ability: RateAbility, link_mbps: int | None, current: Mapping[int, VfRate]
) -> None:
    """Refuse all rates of a step if one of them cannot be programmed.

    A sum that is too large already may stay so: the link has become slower under reservations that are kept.
    KernelError names VF and value, or the sum.

    current: the present rates of all VFs of the PF.
    """
    for rate in step.rates:
        why = _refusal(rate, ability)
        if why:
            msg = f"VF {rate.index} of PF {step.pf}: {why}"
            raise KernelError(msg)
    if not ability.sum_checked or link_mbps is None:
        return
    after = {**current, **{rate.index: rate for rate in step.rates}}
    sum_before, sum_after = (
        sum(rate.min_tx_rate_mbps for rate in rates.values()) for rates in (current, after)
    )
    if sum_after > max(link_mbps, sum_before):
        msg = f"PF {step.pf}: min rates would add up to {sum_after} Mb/s, its link has {link_mbps}"
        raise KernelError(msg)


def _refusal(rate: VfRate, ability: RateAbility) -> str:
    if 0 < rate.max_tx_rate_mbps < rate.min_tx_rate_mbps:
        return f"min rate {rate.min_tx_rate_mbps} Mb/s above its max rate {rate.max_tx_rate_mbps} Mb/s"
    return _outside("min", rate.min_tx_rate_mbps, ability.min) or _outside(
        "max", rate.max_tx_rate_mbps, ability.max
    )


def _outside(rate_name: str, mbps: int, supported: RateRange | None) -> str:
    """Describe why the driver does not take a rate; empty when it does."""
    if mbps == 0:
        return ""
    if supported is None:
        return f"{rate_name} rate {mbps} Mb/s: the driver takes no {rate_name} rates"
    if not supported.smallest <= mbps <= supported.largest or mbps % supported.step:
        steps = f" in steps of {supported.step}" if supported.step > 1 else ""
        span = f"{supported.smallest} to {supported.largest}"
        return f"{rate_name} rate {mbps} Mb/s: the driver takes {span}{steps}"
    return ""
