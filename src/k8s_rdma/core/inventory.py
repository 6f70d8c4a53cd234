"""Inventory: a node's hardware as placement knows it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from k8s_rdma.core.rate_ability import EVERY_RATE, RateAbility
from k8s_rdma.core.types import Enforce, LinkType, NodeName, PciAddress, Setting

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
