"""Requests of pods: interfaces with reservations and caps, their spread, the PFs that can take them.

By annotation, and of devices by ResourceClaim, as kube-scheduler has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum, unique
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from k8s_rdma.core.options import NO_OPTIONS, InterfaceOptions, needs_of
from k8s_rdma.core.types import (
    MAX_RATE_MBPS,
    NO_NEEDS,
    Accelerator,
    Enforce,
    Needs,
    PciAddress,
    PfSelector,
    Setting,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from k8s_rdma.core.inventory import Pf

_Value = TypeVar("_Value", bound=str)

_MAX_LISTED = 3
"""Values of a selector that a clause lists; the annotation's author decides how many there are."""


class InterfaceClass(NamedTuple):
    """The properties of an interface that matter to placement; not its name, MAC or VLAN."""

    min_tx_rate_mbps: int
    max_tx_rate_mbps: int
    enforce: Enforce
    needs: Needs


def class_of(request: InterfaceRequest) -> InterfaceClass:
    """Return an interface's class."""
    return InterfaceClass(request.min_tx_rate_mbps, request.max_tx_rate_mbps, request.enforce, request.needs)


def meets(pf: Pf, needs: Needs) -> bool:
    """Report whether the PF meets the needs."""
    return needs is NO_NEEDS or (is_chosen(pf, needs) and needs.settings <= pf.supported_settings)


class PfMasks:
    """The PFs that meet needs, as a bit set (bit n: the PF at index n).

    They are found by the selector's values, which may be many, and not PF by PF: this gives the result of
    `meets` in a tenth of the time.
    """

    def __init__(self, pfs: Sequence[Pf]) -> None:
        self._pfs = pfs
        self._every = (1 << len(pfs)) - 1
        self._names = _positions((pf.name, index) for index, pf in enumerate(pfs))
        self._pcis = _positions((pf.pci, position) for position, pf in enumerate(pfs))
        self._drivers = _positions((pf.driver, position) for position, pf in enumerate(pfs))
        self._vendors = _positions(
            (vendor, position)
            for position, pf in enumerate(pfs)
            for vendor in {pf.vendor, pf.vendor.partition(":")[0]}
        )
        self._able: dict[frozenset[Setting], int] = {}

    def meeting(self, needs: Needs) -> int:
        """Return the PFs that `meets` says True of."""
        mask = self.able(needs)
        if needs.link_type is not None:
            mask &= self._mask(lambda pf: pf.link_type is needs.link_type)
        if needs.mtu:
            mask &= self._mask(lambda pf: needs.mtu <= pf.mtu)
        return mask if needs.pf is None else mask & self._selected(needs.pf)

    def able(self, needs: Needs) -> int:
        """Return the PFs whose drivers support the needed settings, whichever PFs are selected."""
        if not needs.settings:
            return self._every
        mask = self._able.get(needs.settings)
        if mask is None:
            mask = self._able[needs.settings] = self._mask(lambda pf: needs.settings <= pf.supported_settings)
        return mask

    def _selected(self, selector: PfSelector) -> int:
        mask = self._every
        if selector.names:
            mask &= _union(selector.names, self._names)
        if selector.pcis:
            mask &= _union(selector.pcis, self._pcis)
        if selector.vendors:
            mask &= _union(selector.vendors, self._vendors)
        if selector.drivers:
            mask &= _union(selector.drivers, self._drivers)
        return mask

    def _mask(self, true: Callable[[Pf], bool]) -> int:
        return sum([1 << index for index, pf in enumerate(self._pfs) if true(pf)])


def _positions(values: Iterable[tuple[_Value, int]]) -> dict[_Value, int]:
    found: dict[_Value, int] = {}
    for value, index in values:
        found[value] = found.get(value, 0) | 1 << index
    return found


def _union(values: frozenset[_Value], positions: Mapping[_Value, int]) -> int:
    """Goes through the smaller of the two."""
    mask = 0
    for value in values.intersection(positions) if len(values) > len(positions) else values:
        mask |= positions.get(value, 0)
    return mask


def has_pf_constraints(needs: Needs) -> bool:
    """Report whether the needs exclude PFs, apart from the abilities of their drivers."""
    return bool(needs.pf is not None or needs.link_type is not None or needs.mtu)


def is_chosen(pf: Pf, needs: Needs) -> bool:
    """Report whether the needs select the PF, apart from the abilities of its driver."""
    return (
        (needs.pf is None or selects(needs.pf, pf))
        and needs.link_type in (None, pf.link_type)
        and needs.mtu <= pf.mtu
    )


def unmet(pf: Pf, needs: Needs) -> str:
    """Describe in one clause, without its name, why the PF does not meet the needs; empty when it does."""
    if meets(pf, needs):
        return ""
    if needs.pf is not None and not selects(needs.pf, pf):
        return _not_selected(needs.pf)
    if needs.link_type not in (None, pf.link_type):
        return f"its link is {pf.link_type}, and link_type is {needs.link_type}"
    if needs.mtu > pf.mtu:
        return f"its MTU is {pf.mtu or 'not known'}, and mtu is {needs.mtu}"
    return _cannot(pf, needs.settings - pf.supported_settings)


def unmet_cause(pf: Pf, needs: Needs) -> str:
    """Describe the unmet need without numbers of this PF."""
    otherwise = (needs.pf is None or selects(needs.pf, pf)) and needs.link_type in (None, pf.link_type)
    if otherwise and needs.mtu > pf.mtu:
        return f"its MTU is below {needs.mtu}"
    return unmet(pf, needs)


NOT_BY_SOFTWARE = "its node caps nothing by software: the kernel lacks sch_tbf, or the agent is too old"


def selects(selector: PfSelector, pf: Pf) -> bool:
    """Report whether a PF is one of these."""
    vendor, _, _ = pf.vendor.partition(":")
    return (
        (not selector.names or pf.name in selector.names)
        and (not selector.pcis or pf.pci in selector.pcis)
        and (not selector.vendors or not selector.vendors.isdisjoint((vendor, pf.vendor)))
        and (not selector.drivers or pf.driver in selector.drivers)
    )


def _cannot(pf: Pf, missing: Collection[Setting]) -> str:
    if Setting.VFIO_PCI in missing:
        return "its VFs cannot be given to vfio-pci"
    if Setting.PKEY in missing:
        # No kernel sets one by netlink; see docs/drivers.md.
        return "no driver sets pkey of a VF, as the subnet manager does that by GUID (ask for guid)"
    if Setting.SOFTWARE_CAPS in missing:
        return NOT_BY_SOFTWARE
    names = ", ".join(sorted(missing))
    return f"{pf.driver or 'its driver'} cannot set {names} of a VF"


@lru_cache(maxsize=256)
def _not_selected(selector: PfSelector) -> str:
    """Said of many PFs, and selectors may be long."""
    return f"not what pf selects ({', '.join(_sets(selector))})"


def _sets(selector: PfSelector) -> Iterator[str]:
    """Yield the selector in words: `driver ice or mlx5_core`."""
    sets = {
        "name": selector.names,
        "pci": selector.pcis,
        "vendor": selector.vendors,
        "driver": selector.drivers,
    }
    for key, found in sets.items():
        if found:
            omitted = [f"{len(found) - _MAX_LISTED} more"] if len(found) > _MAX_LISTED else []
            yield f"{key} {' or '.join([*sorted(found)[:_MAX_LISTED], *omitted])}"


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


MAX_INTERFACES = 1024
"""More than any node has: 8 PFs of 128 VFs (the most that today's drivers create on a PF)."""
_SOFTWARE = Enforce.SOFTWARE
"""A copy of the member: a lookup in the enumeration takes longer than the comparison, and interfaces are made
by the thousand."""


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


Attribute: TypeAlias = str | int | bool | frozenset[int]
"""Lists of numbers have no order here; other lists are unknown."""

_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": ge,
    "<=": le,
    ">": gt,
    "<": lt,
    "startsWith": str.startswith,
}

_MAX_NAMES = 8


@dataclass(frozen=True, slots=True)
class DeviceTaint:
    """A taint of a device; new pods need a toleration unless its effect is `None`."""

    key: str
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A toleration of a request; an empty key or effect tolerates every one."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: DeviceTaint) -> bool:
        """Report whether the taint is no obstacle."""
        return (
            self.effect in ("", taint.effect)
            and self.key in ("", taint.key)
            and (self.operator == "Exists" or self.value == taint.value)
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison with an attribute's fully qualified name; false if the device has no such attribute.

    operator: of CEL, or `startsWith`.
    values: one, or with `in` any number.
    """

    attribute: str
    operator: str
    values: tuple[Attribute, ...]

    def holds(self, attributes: Mapping[str, Attribute]) -> bool:
        """Report whether it holds for a device."""
        value = attributes.get(self.attribute)
        if value is None or isinstance(value, frozenset):
            return False  # CEL refuses to compare a list with one value
        equal = any(type(value) is type(operand) and value == operand for operand in self.values)
        if self.operator in ("==", "in"):
            return equal
        if self.operator == "!=":
            return not equal
        operand = self.values[0]
        return type(value) is type(operand) and _ORDERS[self.operator](value, operand)


@dataclass(frozen=True, slots=True)
class Selector:
    """A CEL selector. alternatives: all comparisons of one hold; None if the expression is not judged."""

    expression: str
    alternatives: tuple[tuple[Comparison, ...], ...] | None = None

    def accepts(self, attributes: Mapping[str, Attribute]) -> bool:
        """Report whether it selects a device; an expression that is not judged does."""
        return self.alternatives is None or any(
            all(comparison.holds(attributes) for comparison in comparisons)
            for comparisons in self.alternatives
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """A request of a claim, or an alternative of `firstAvailable`. count: how many different PFs.

    claim, name: its place; constraints refer to a request whichever alternative is taken.
    """

    claim: str
    name: str
    mbps: int = 0
    count: int = 1
    selectors: tuple[Selector, ...] = ()
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Devices of these requests of a claim (all if empty) have one value of the attribute, or all different.

    A device without the attribute does not satisfy it.
    """

    claim: str
    attribute: str
    distinct: bool
    requests: frozenset[str] = frozenset()

    def includes(self, unit: DeviceRequest) -> bool:
        """Report whether it is for a request, which it may name by an alternative, too."""
        names = {unit.name, unit.name.partition("/")[0]}
        return unit.claim == self.claim and (not self.requests or not names.isdisjoint(self.requests))

    def __str__(self) -> str:
        """Return its words in the claim, and the requests."""
        kind = "distinctAttribute" if self.distinct else "matchAttribute"
        names = sorted(self.requests)
        omitted = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        requests = f" of requests {', '.join(names[:_MAX_NAMES])}{omitted}" if names else ""
        return f"{kind} {self.attribute}{requests}"
