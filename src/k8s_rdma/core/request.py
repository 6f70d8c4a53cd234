"""Requests of pods by annotation: interfaces with reservations and caps, and their spread over PFs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum, unique
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.options import NO_OPTIONS, InterfaceOptions, needs_of
from k8s_rdma.core.types import MAX_RATE_MBPS, NO_NEEDS, Accelerator, Enforce, Needs, PciAddress

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from k8s_rdma.core.inventory import Pf

MAX_INTERFACES = 1024
"""More than any node has: 8 PFs of 128 VFs (the most that today's drivers create on a PF)."""
_SOFTWARE = Enforce.SOFTWARE
"""A copy of the member: a lookup in the enumeration takes longer than the comparison, and interfaces are made
by the thousand."""


class InterfaceClass(NamedTuple):
    """The properties of an interface that matter to placement; not its name, MAC or VLAN."""

    min_tx_rate_mbps: int
    max_tx_rate_mbps: int
    enforce: Enforce
    needs: Needs


def class_of(request: InterfaceRequest) -> InterfaceClass:
    """Return an interface's class."""
    return InterfaceClass(request.min_tx_rate_mbps, request.max_tx_rate_mbps, request.enforce, request.needs)


@unique
class PfPolicy(StrEnum):
    """The annotation `k8s-rdma.io/policy`.

    SAME_PF: all on one PF.
    SPREAD_PFS: each on a PF of its own, for fabrics with a rail per PF.
    SAME_NUMA: all on PFs of one NUMA node; PFs without a NUMA node are not combined with others.
    """

    ANY = "any"
    SAME_PF = "same-pf"
    SPREAD_PFS = "spread-pfs"
    SAME_NUMA = "same-numa"


def groups(
    policy: PfPolicy, pfs: Iterable[Pf], sibling_pfs: Collection[PciAddress] = ()
) -> list[tuple[Pf, ...]]:
    """Return the sets of PFs; one set has to take all interfaces. `SPREAD_PFS` also demands a PF for each.

    sibling_pfs: the PFs of other interfaces of the same pod.
    """
    if policy is PfPolicy.ANY:
        return [tuple(pfs)]
    if policy is PfPolicy.SPREAD_PFS:
        return [tuple(pf for pf in pfs if pf.pci not in sibling_pfs)]
    found: dict[object, list[Pf]] = {}
    for pf in pfs:
        alone = policy is PfPolicy.SAME_PF or pf.numa_node is None
        found.setdefault(pf.pci if alone else pf.numa_node, []).append(pf)
    return [tuple(group) for group in found.values() if {pf.pci for pf in group}.issuperset(sibling_pfs)]


def satisfies_policy(
    policy: PfPolicy,
    chosen: Sequence[PciAddress],
    pfs: Iterable[Pf],
    sibling_pfs: Collection[PciAddress] = (),
) -> bool:
    """Report whether interfaces on these PFs, one for each time a PF is named, satisfy the policy."""
    if policy is PfPolicy.SPREAD_PFS and len(set(chosen)) < len(chosen):
        return False
    return any({pf.pci for pf in group}.issuperset(chosen) for group in groups(policy, pfs, sibling_pfs))


@unique
class Topology(StrEnum):
    """The annotation `k8s-rdma.io/topology`: how near its GPUs a pod's interfaces have to be.

    SAME_PCIE_SWITCH: below one PCIe switch, on the way to the same root port.
    SAME_NUMA: that, or on one NUMA node.
    PREFER: as near as they can be, and anywhere if need be.
    """

    PREFER = "prefer"
    SAME_NUMA = "same-numa"
    SAME_PCIE_SWITCH = "same-pcie-switch"


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceRequest:
    """A requested interface.

    min_tx_rate_mbps: reserved bandwidth, Mb/s (10^6 bit/s); 0 for no reservation.
    max_tx_rate_mbps: cap, Mb/s; 0 is no cap.
    enforce: HARDWARE if only the NIC may enforce the rates, whatever the PF's configuration says. With
        SOFTWARE, only a PF's configuration may be stricter.
    options: everything else, `NO_OPTIONS` itself if there is no option.
    needs: the conditions that a PF must meet.
    """

    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0
    enforce: Enforce = Enforce.AUTO
    options: InterfaceOptions = NO_OPTIONS
    needs: Needs = field(init=False, repr=False, compare=False, default=NO_NEEDS)

    def __post_init__(self) -> None:
        """Hold the invariants that the wire layer has already reported in its own words."""
        by_software = self.enforce is _SOFTWARE
        if self.options is not NO_OPTIONS or by_software:
            object.__setattr__(self, "options", NO_OPTIONS if self.options == NO_OPTIONS else self.options)
            object.__setattr__(self, "needs", needs_of(self.options, software_caps=by_software))
        for rate in (self.min_tx_rate_mbps, self.max_tx_rate_mbps):
            if not 0 <= rate <= MAX_RATE_MBPS:
                msg = f"rate outside 0..{MAX_RATE_MBPS} Mb/s: {rate}"
                raise ValueError(msg)
        if 0 < self.max_tx_rate_mbps < self.min_tx_rate_mbps:
            msg = f"reservation {self.min_tx_rate_mbps} above cap {self.max_tx_rate_mbps} Mb/s"
            raise ValueError(msg)

    def __hash__(self) -> int:
        """Hash the rates, and the options if there are any: so many fields are slow."""
        options = None if self.options is NO_OPTIONS else self.options
        return hash((self.min_tx_rate_mbps, self.max_tx_rate_mbps, self.enforce, options))


@dataclass(frozen=True, slots=True)
class Shape:
    """The part of a request that placement depends on; requests that differ in names alone share it.

    Made once a request, and not once a node: interfaces are a thousand, and so are nodes.

    kinds: the distinct ones, the largest reservation first, then the largest cap.
    kind_at: for each interface, in the request's order, which of these it is.
    """

    kinds: tuple[InterfaceClass, ...] = ()
    kind_at: tuple[int, ...] = ()
    policy: PfPolicy = PfPolicy.ANY
    devices: tuple[tuple[str, int], ...] = ()
    topology: Topology = Topology.PREFER
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        """Hash once: shapes are looked up for every node."""
        object.__setattr__(self, "_hash", hash((self.kind_at, self.kinds)))

    def __hash__(self) -> int:
        """Hash the interfaces: few requests differ in the policy alone, and an enumeration's hash is slow."""
        return self._hash

    @classmethod
    def from_interfaces(
        cls,
        interfaces: tuple[InterfaceRequest, ...],
        policy: PfPolicy,
        devices: tuple[tuple[str, int], ...],
        topology: Topology = Topology.PREFER,
    ) -> Shape:
        """Number the kinds of interfaces."""
        index: dict[InterfaceClass, int] = {}
        drawn = [index.setdefault(class_of(interface), len(index)) for interface in interfaces]
        kinds = sorted(index, key=lambda kind: (-kind.min_tx_rate_mbps, -kind.max_tx_rate_mbps, kind.enforce))
        place = {index[kind]: position for position, kind in enumerate(kinds)}
        return cls(tuple(kinds), tuple([place[number] for number in drawn]), policy, devices, topology)

    @property
    def near_gpus(self) -> bool:
        """Report whether there are interfaces that are to be near GPUs."""
        return any(kind.needs.near_gpu for kind in self.kinds)


@dataclass(frozen=True, slots=True)
class Request:
    """The interfaces of a pod, in the order of its annotation; empty if it needs no interface.

    policy: how they are to be spread over PFs; ANY without interfaces.
    devices: how many of each extended resource its containers request, by name. On a node where one of these
        is a pool, the interfaces are those devices. Empty without interfaces.
    memlock: the memory that the pod's containers may lock by its annotation, in bytes; None if it does not
        say.
    topology: the required nearness of interfaces that are to be near GPUs.
    shape: the part of the request that decides where it can be placed.
    """

    interfaces: tuple[InterfaceRequest, ...] = ()
    policy: PfPolicy = PfPolicy.ANY
    devices: tuple[tuple[str, int], ...] = ()
    memlock: int | None = None
    topology: Topology = Topology.PREFER
    shape: Shape = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Normalize a request without interfaces, so that there is one such request."""
        if not self.interfaces:
            object.__setattr__(self, "policy", PfPolicy.ANY)
            object.__setattr__(self, "devices", ())
            object.__setattr__(self, "memlock", None)
        shape = Shape.from_interfaces(self.interfaces, self.policy, self.devices, self.topology)
        object.__setattr__(self, "shape", shape)

    def __hash__(self) -> int:
        """Hash the shape: few requests differ in names alone."""
        return hash(self.shape)

    def per_gpu(self, gpus: int) -> Request:
        """Replace an interface that stands for all GPUs by one for each (`InterfaceOptions.per`)."""
        if all(interface.options.per is None for interface in self.interfaces):
            return self
        interfaces: list[InterfaceRequest] = []
        for interface in self.interfaces:
            if interface.options.per is None:
                interfaces.append(interface)
                continue
            options = replace(interface.options, near=Accelerator.GPU, per=None)
            interfaces += [replace(interface, options=options)] * gpus
        return replace(self, interfaces=tuple(interfaces))

    @property
    def reserves_bandwidth(self) -> bool:
        """Report whether any interface has a reservation."""
        return any(kind.min_tx_rate_mbps for kind in self.shape.kinds)

    def __bool__(self) -> bool:
        """Report whether the pod needs any interface."""
        return bool(self.interfaces)
