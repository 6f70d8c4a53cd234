"""What a node has, as placement sees it, and what is used of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.ids import NodeName, PciAddress
from k8s_rdma.core.options import LinkType, Setting
from k8s_rdma.core.rates import EVERY_RATE, Enforce, RateAbility

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class Pf:
    """A physical function.

    capacity_vfs: VFs that exist and may be given to pods that ask by annotation.
    pools: how many VFs exclusive resources have of it, by resource.
    link_mbps: link speed in Mb/s that reservations may add up to; None when unknown (link down):
        such a PF takes interfaces without a reservation only.
    rates, enforce: what its driver can program, and what is demanded of it.
    takes: what else its driver can do for VFs. driver: its name. mtu: bytes. vendor: `15b3:1017`.
    numa_node: None where there is none.
    """

    name: str
    pci: PciAddress
    capacity_vfs: int
    link_mbps: int | None
    rates: RateAbility = field(
        default=EVERY_RATE, hash=False
    )  # few differ in these alone, and hashing is slow
    enforce: Enforce = field(default=Enforce.AUTO, hash=False)
    driver: str = ""
    takes: frozenset[Setting] = field(default=frozenset(), hash=False)
    link_type: LinkType = field(default=LinkType.ETHERNET, hash=False)
    mtu: int = field(default=0, hash=False)
    vendor: str = field(default="", hash=False)
    numa_node: int | None = field(default=None, hash=False)
    pools: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Generation:
    """Names one state of a node. Two generations of different epochs cannot be ordered.

    epoch: changes when the agent starts, so that a counter is never reused with another meaning.
    """

    epoch: str
    counter: int

    def __str__(self) -> str:
        """`epoch.counter`, as in the REST documents."""
        return f"{self.epoch}.{self.counter}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A node's PFs, ordered by PCI address.

    takes_every_rate: whether they differ in what is free of them alone.
    """

    node: NodeName
    pfs: tuple[Pf, ...]
    takes_every_rate: bool = field(init=False, repr=False, compare=False)
    _by_pci: Mapping[PciAddress, Pf] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Order the PFs, so that equal hardware gives equal inventories."""
        object.__setattr__(self, "pfs", tuple(sorted(self.pfs, key=lambda pf: pf.pci)))
        every = all(pf.rates == EVERY_RATE and pf.enforce is not Enforce.SOFTWARE for pf in self.pfs)
        object.__setattr__(self, "takes_every_rate", every)
        object.__setattr__(self, "_by_pci", {pf.pci: pf for pf in self.pfs})

    def pf(self, pci: PciAddress) -> Pf | None:
        """The PF at an address."""
        return self._by_pci.get(pci)


class DeviceUse(NamedTuple):
    """Of the VFs that an exclusive resource has of one PF: the reservations on them, Mb/s, falling.

    vfs: how many the PF has. kubelet gives each to one pod at a time, so that no more than these reservations
        are ever on the PF together, however many pods may come to hold one: the largest ones count.
    held: how many are known to be held; they may be more, where the resource had more VFs before.
    """

    resource: str
    vfs: int
    mins: tuple[int, ...]
    held: int = 0

    def joined(self, other: DeviceUse) -> tuple[DeviceUse, tuple[int, ...]]:
        """Both together, and what does not count then."""
        held = self.held + other.held
        vfs = max(self.vfs, other.vfs, held)
        mins = tuple(sorted(self.mins + other.mins, reverse=True))
        return DeviceUse(self.resource, vfs, mins[:vfs], held), mins[vfs:]


EVERY_DEVICE = 1 << 16
"""`DeviceUse.vfs` where it is not known how many there are: more than a PF can have (PCI Express SR-IOV)."""


@dataclass(frozen=True, slots=True)
class Used:
    """What is taken of one PF: VFs, and the sum of reservations in Mb/s.

    vfs: of those that pods ask for by annotation. mins: all reservations one by one, falling, where the PF's
        rates are weights; empty elsewhere. devices: VFs of exclusive resources, by resource, which are
        besides; their reservations are in the other figures.
    """

    vfs: int = 0
    mbps: int = 0
    mins: tuple[int, ...] = ()
    devices: tuple[DeviceUse, ...] = ()

    @property
    def in_use(self) -> int:
        """All VFs that anybody has: they share the link."""
        return self.vfs + sum(len(use.mins) for use in self.devices)

    def __add__(self, other: Used) -> Used:
        """Both together."""
        mins = self.mins + other.mins
        if self.mins and other.mins:
            mins = tuple(sorted(mins, reverse=True))
        vfs, mbps = self.vfs + other.vfs, self.mbps + other.mbps
        if not (self.devices and other.devices):
            return Used(vfs, mbps, mins, self.devices or other.devices)
        devices, beyond = _together(self.devices, other.devices)
        return Used(vfs, mbps - sum(beyond), _without(mins, beyond) if beyond else mins, devices)


def _together(
    some: tuple[DeviceUse, ...], others: tuple[DeviceUse, ...]
) -> tuple[tuple[DeviceUse, ...], list[int]]:
    """By resource, and the reservations that do not count."""
    uses = {use.resource: use for use in some}
    beyond: list[int] = []
    for use in others:
        held = uses.get(use.resource)
        uses[use.resource], more = held.joined(use) if held else (use, ())
        beyond += more
    return tuple(uses[resource] for resource in sorted(uses)), beyond


def _without(mins: tuple[int, ...], beyond: Iterable[int]) -> tuple[int, ...]:
    left = Counter(mins)
    left.subtract(each for each in beyond if each in left)
    return tuple(left.elements())


NOTHING_USED = Used()


def total(*usages: Mapping[PciAddress, Used]) -> dict[PciAddress, Used]:
    """Add usages PF by PF."""
    result: dict[PciAddress, Used] = {}
    for usage in usages:
        for pci, used in usage.items():
            before = result.get(pci)
            result[pci] = used if before is None else before + used
    return result
