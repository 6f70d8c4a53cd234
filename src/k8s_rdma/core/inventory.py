"""Inventory: a node's hardware as placement knows it, and how much of it is in use.

A selection chooses the PFs of a machine that are ours, and how they are set up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from k8s_rdma.core.types import (
    EVERY_RATE,
    Enforce,
    LinkType,
    NodeName,
    PciAddress,
    PfUse,
    RateAbility,
    Setting,
)

CLAIMS_POOL = "k8s-rdma.io/claims"
"""The pool of VFs that pods get by ResourceClaims (`core.devices.pools`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pf:
    """A physical function.

    capacity_vfs: VFs that exist and may be given to pods that ask by annotation.
    pools: the number of its VFs in exclusive resources, by resource.
    link_mbps: link speed in Mb/s that reservations may add up to; None if unknown (link down): such a PF
        takes interfaces without a reservation only.
    rates, enforce: the rates that its driver can program, and the enforcement that is demanded of it.
    supported_settings: the other settings that its driver supports for VFs.
    driver: its name.
    mtu: bytes.
    vendor: `15b3:1017`.
    numa_node: its NUMA node, if known.
    pcie_path: as in `core.kernel.PfState`.
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
    supported_settings: frozenset[Setting] = field(default=frozenset(), hash=False)
    link_type: LinkType = field(default=LinkType.ETHERNET, hash=False)
    mtu: int = field(default=0, hash=False)
    vendor: str = field(default="", hash=False)
    numa_node: int | None = field(default=None, hash=False)
    pcie_path: tuple[PciAddress, ...] = field(default=(), hash=False)
    pools: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def is_for_claims(self) -> bool:
        """Report whether all of its VFs are for ResourceClaims: no annotation brings a pod there."""
        return not self.capacity_vfs and self.pools.keys() == {CLAIMS_POOL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU that kubelet gives pods.

    resource: the extended resource that it counts for.
    pcie_path, numa_node: its place, as in `core.devices.pod_devices.Neighbour`.
    in_use: whether a pod has it, or a share of it.
    devices: the number of its devices of the resource; more than one if pods share it.
    device_id: the first of its devices, as kubelet has it, by which a pod holds it; empty if that does not
        matter.
    """

    resource: str
    pci: PciAddress
    pcie_path: tuple[PciAddress, ...] = field(hash=False)
    numa_node: int | None = field(default=None, hash=False)
    in_use: bool = False
    devices: int = field(default=1, hash=False)
    device_id: str = field(default="", compare=False)


def in_order(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Order GPUs by resource and PCI address."""
    return tuple(sorted(gpus, key=lambda gpu: (gpu.resource, gpu.pci)))


@dataclass(frozen=True, slots=True)
class Generation:
    """Names one state of a node. Two generations of different epochs cannot be ordered.

    epoch: changes when the agent starts, so that a counter is never reused with another meaning.
    """

    epoch: str
    counter: int

    def __str__(self) -> str:
        """Return `epoch.counter`, as in the REST documents."""
        return f"{self.epoch}.{self.counter}"


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Inventory:
    """A node's PFs, ordered by PCI address, and its GPUs, ordered by resource and PCI address.

    claims_pfs: PFs for ResourceClaims alone. They are not among `pfs`, because no decision on an annotation
        and no score depends on them.
    takes_every_rate: whether PFs differ in their free capacity alone.
    """

    node: NodeName
    pfs: tuple[Pf, ...]
    gpus: tuple[Gpu, ...] = field(default=(), hash=False)
    claims_pfs: tuple[Pf, ...] = field(default=(), hash=False)
    takes_every_rate: bool = field(init=False, repr=False, compare=False)
    _by_pci: Mapping[PciAddress, Pf] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Order PFs and GPUs, so that equal hardware gives equal inventories."""
        object.__setattr__(self, "pfs", tuple(sorted(self.pfs, key=lambda pf: pf.pci)))
        if self.gpus:
            object.__setattr__(self, "gpus", in_order(self.gpus))
        every = all(pf.rates == EVERY_RATE and pf.enforce is not Enforce.SOFTWARE for pf in self.pfs)
        object.__setattr__(self, "takes_every_rate", every)
        object.__setattr__(self, "_by_pci", {pf.pci: pf for pf in (*self.pfs, *self.claims_pfs)})

    @classmethod
    def of_node(cls, node: NodeName, pfs: Iterable[Pf], gpus: tuple[Gpu, ...] = ()) -> Inventory:
        """Make the inventory of all PFs of a node."""
        by_use: dict[bool, list[Pf]] = {True: [], False: []}
        for pf in pfs:
            by_use[pf.is_for_claims].append(pf)
        return cls(node=node, pfs=tuple(by_use[False]), gpus=gpus, claims_pfs=tuple(by_use[True]))

    @property
    def hardware(self) -> Hashable:
        """The value that equal nodes share, whatever their names: all that annotations depend on."""
        return self.pfs, self.gpus, bool(self.claims_pfs)

    def pf(self, pci: PciAddress) -> Pf | None:
        """Return the PF at an address, for annotations or for claims."""
        return self._by_pci.get(pci)


class DeviceUse(NamedTuple):
    """The reservations, Mb/s, falling, on the VFs that an exclusive resource has of one PF.

    vfs: how many the PF has. kubelet gives each to one pod at a time, so that at most this many reservations
        are on the PF together, however many pods may come to hold one: the largest ones count.
    held_vfs: how many are known to be held; they may be more than `vfs` if the resource had more VFs before.
    """

    resource: str
    vfs: int
    mins: tuple[int, ...]
    held_vfs: int = 0

    @classmethod
    def joined(cls, uses: Sequence[DeviceUse]) -> tuple[DeviceUse, tuple[int, ...]]:
        """Join the devices of one resource; also the reservations that do not count."""
        held_vfs = sum(use.held_vfs for use in uses)
        vfs = max(held_vfs, *(use.vfs for use in uses))
        mins = tuple(sorted((rate for use in uses for rate in use.mins), reverse=True))
        return cls(uses[0].resource, vfs, mins[:vfs], held_vfs), mins[vfs:]


EVERY_DEVICE = 1 << 16
"""`DeviceUse.vfs` if their number is not known: more than a PF can have (PCI Express SR-IOV)."""


@dataclass(frozen=True, slots=True)
class Used:
    """The use of one PF: VFs, and the sum of reservations in Mb/s.

    vfs: VFs of pods that ask by annotation.
    mins: all reservations one by one, falling, if the PF's rates are weights; empty if not.
    devices: VFs of exclusive resources, by resource, in addition to `vfs`; their reservations are in the
        other figures.
    set_aside_mbps: the part of `mbps` that no VF has, set aside for pods that ask in another way.
    """

    vfs: int = 0
    mbps: int = 0
    mins: tuple[int, ...] = ()
    devices: tuple[DeviceUse, ...] = ()
    set_aside_mbps: int = 0

    @property
    def in_use(self) -> int:
        """The number of VFs in use, which share the link."""
        return self.vfs + sum(len(use.mins) for use in self.devices)

    def __add__(self, addend: Used) -> Used:
        """Return the sum of both."""
        return Used.joined((self, addend))

    @classmethod
    def joined(cls, usages: Sequence[Used]) -> Used:
        """Join many at once: adding one after the other would copy each time."""
        weighed = [used.mins for used in usages if used.mins]
        mins = weighed[0] if len(weighed) == 1 else tuple(sorted(chain.from_iterable(weighed), reverse=True))
        vfs, mbps = sum(used.vfs for used in usages), sum(used.mbps for used in usages)
        set_aside_mbps = sum(used.set_aside_mbps for used in usages)
        counted = [used.devices for used in usages if used.devices]
        if len(counted) <= 1:
            return cls(vfs, mbps, mins, counted[0] if counted else (), set_aside_mbps)
        devices, beyond = _joined_devices(chain.from_iterable(counted))
        mins = _removed(mins, beyond) if beyond else mins
        return cls(vfs, mbps - sum(beyond), mins, devices, set_aside_mbps)


def _joined_devices(uses: Iterable[DeviceUse]) -> tuple[tuple[DeviceUse, ...], list[int]]:
    """Join devices by resource; also the reservations that do not count."""
    by_resource: dict[str, list[DeviceUse]] = {}
    for use in uses:
        by_resource.setdefault(use.resource, []).append(use)
    joined = [DeviceUse.joined(by_resource[resource]) for resource in sorted(by_resource)]
    return tuple(use for use, _ in joined), [rate for _, beyond in joined for rate in beyond]


def _removed(mins: tuple[int, ...], beyond: Iterable[int]) -> tuple[int, ...]:
    remaining = Counter(mins)
    remaining.subtract(rate for rate in beyond if rate in remaining)
    return tuple(remaining.elements())


NOTHING_USED = Used()


def total(*usages: Mapping[PciAddress, Used]) -> dict[PciAddress, Used]:
    """Add usages PF by PF."""
    by_pf: dict[PciAddress, list[Used]] = {}
    for usage in usages:
        for pci, used in usage.items():
            by_pf.setdefault(pci, []).append(used)
    return {pci: parts[0] if len(parts) == 1 else Used.joined(parts) for pci, parts in by_pf.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsPart:
    """The part of a PF that is for ResourceClaims: its VFs of highest index, and bandwidth, Mb/s."""

    vfs: int
    mbps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PfRule:
    """Selectors that must all match (one without values matches every PF), and settings for it.

    names: of network devices.
    vendors: PCI vendor, or vendor and device: `15b3`, `15b3:1017`.
    num_vfs: how many VFs `init` creates; None for as many as the PF can have.
    trust: whether its VFs are trusted (may be promiscuous, set their own MAC); None leaves that unchanged.
    mtu: bytes, that `init` sets on PF and VFs; None leaves them unchanged.
    claims: the part for ResourceClaims of a PF that is split; the rest is for `use`. None if the PF is whole.
    """

    names: frozenset[str] = frozenset()
    pcis: frozenset[PciAddress] = frozenset()
    vendors: frozenset[str] = frozenset()
    drivers: frozenset[str] = frozenset()
    link_types: frozenset[LinkType] = frozenset()
    num_vfs: int | None = None
    enforce: Enforce = Enforce.AUTO
    trust: bool | None = None
    mtu: int | None = None
    use: PfUse = PfUse.ANNOTATION
    claims: ClaimsPart | None = None

    @property
    def names_it(self) -> bool:
        """Report whether the rule names these very PFs, even one with the default route."""
        return bool(self.names or self.pcis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The first rule that matches a PF applies to it; a PF without one is left alone.

    require_rdma: whether a PF must have an RDMA device.
    unsafe_noiommu: whether VFs may be given to programs without an IOMMU; such a program can read and write
        all of the machine's memory.
    allocated: PFs whose VFs pods have. These PFs are ours even if no rule matches them any more, so that VFs
        that pods give back are taken back.
    """

    require_rdma: bool = True
    rules: tuple[PfRule, ...] = (PfRule(),)
    unsafe_noiommu: bool = False
    allocated: frozenset[PciAddress] = frozenset()
