"""A fit of a pod's claims on a node, by ResourceSlices and ResourceClaims as the API server has them.

kube-scheduler decides; it only says "cannot allocate all claims". This finds the reason: the rules are those
of its allocator (Kubernetes 1.36, k8s.io/dynamic-resource-allocation/structured), the search is that of
`core.placement`, and constraints are searched within a budget of work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any, TypeAlias

from k8s_rdma.core.inventory import NOTHING_USED, Inventory, Pf, Used
from k8s_rdma.core.offers import room_of
from k8s_rdma.core.packing import OutOfWorkError, Room, Work
from k8s_rdma.core.placement import DEFAULT_BUDGET, PlacedInterface, Placement, Rejection, place
from k8s_rdma.core.refusal import Free, RefusalMessage, explain, is_empty
from k8s_rdma.core.request import InterfaceRequest, Request, class_of
from k8s_rdma.core.types import InterfaceOptions, NodeName, PciAddress, PfSelector
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

Attribute: TypeAlias = str | int | bool

_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": ge,
    "<=": le,
    ">": gt,
    "<": lt,
    "startsWith": str.startswith,
}

MAX_COMBINATIONS = 64
"""Combinations of alternatives (`firstAvailable`) that are tried."""

_MAX_CLAUSES = 3


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
    """A comparison with an attribute's fully qualified name; false where the device has no such attribute.

    operator: of CEL, or `startsWith`. values: one, or with `in` any number.
    """

    attribute: str
    operator: str
    values: tuple[Attribute, ...]

    def holds(self, attributes: Mapping[str, Attribute]) -> bool:
        """Report whether it holds for a device."""
        value = attributes.get(self.attribute)
        if value is None:
            return False
        equal = any(type(value) is type(operand) and value == operand for operand in self.values)
        if self.operator in ("==", "in"):
            return equal
        if self.operator == "!=":
            return not equal
        operand = self.values[0]
        return type(value) is type(operand) and _ORDERS[self.operator](value, operand)


@dataclass(frozen=True, slots=True)
class Selector:
    """A CEL selector. alternatives: all comparisons of one hold; None where the expression is not judged."""

    expression: str
    alternatives: tuple[tuple[Comparison, ...], ...] | None = None

    def accepts(self, attributes: Mapping[str, Attribute]) -> bool:
        """Report whether it selects a device; what is not judged does."""
        return self.alternatives is None or any(
            all(comparison.holds(attributes) for comparison in comparisons)
            for comparisons in self.alternatives
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """A request of a claim, or an alternative of `firstAvailable`. count: how many different PFs.

    claim, name: where it stands; constraints refer to a request whichever alternative is taken.
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

    A device without the attribute is none for them.
    """

    claim: str
    attribute: str
    distinct: bool
    requests: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """Return its words in the claim, and the requests."""
        kind = "distinctAttribute" if self.distinct else "matchAttribute"
        names = f" of requests {', '.join(sorted(self.requests))}" if self.requests else ""
        return f"{kind} {self.attribute}{names}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsRequest:
    """All that a pod asks of our driver by claims that are not allocated yet.

    requests: each with its alternatives, the preferred one first. allocated: nodes of its other claims.
    """

    requests: tuple[tuple[DeviceRequest, ...], ...]
    constraints: tuple[Constraint, ...] = ()
    allocated: Mapping[str, frozenset[NodeName]]

    def combinations(self) -> Iterator[tuple[DeviceRequest, ...]]:
        """Return one alternative of each request, the preferred ones first."""
        return product(*self.requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPf:
    """A PF of a ResourceSlice; its capacities, and what claims consume of them.

    attributes: by fully qualified name.
    """

    name: str
    mbps: int
    vfs: int
    used: Used = NOTHING_USED
    attributes: Mapping[str, Attribute]
    taints: tuple[DeviceTaint, ...] = ()

    def as_pf(self) -> Pf:
        """Return it for placement, where device names identify PFs: not every slice has PCI addresses."""
        return Pf(name=self.name, pci=PciAddress(self.name), capacity_vfs=self.vfs, link_mbps=self.mbps)

    @property
    def room(self) -> Room:
        """The free capacity."""
        return room_of(self.as_pf(), self.used)

    def objection(self, request: DeviceRequest) -> str:
        """Describe in a clause what keeps the request from this PF, whatever is free; empty for nothing."""
        for taint in self.taints:
            if taint.effect != "None" and not any(
                toleration.tolerates(taint) for toleration in request.tolerations
            ):
                return f"taint {taint.key}"
        for selector in request.selectors:
            if not selector.accepts(self.attributes):
                return f"not selected by {selector.expression}"
        return ""


@dataclass(frozen=True, kw_only=True)
class ClaimNode:
    """A node's PFs for claims.

    problem: why kube-scheduler does not use them now, empty if it does. pods: how many have claims there.
    """

    node: NodeName
    pfs: tuple[ClaimPf, ...] = ()
    problem: str = ""
    pods: int = 0

    @cached_property
    def used(self) -> Mapping[PciAddress, Used]:
        """The use of each PF."""
        return {PciAddress(pf.name): pf.used for pf in self.pfs}


def claims_fit(request: ClaimsRequest, node: ClaimNode) -> Placement | Rejection:
    """Find PFs for all that the pod asks for, or say why there are none.

    `UNDECIDED` where that takes too much work. With alternatives, a rejection tells of the last ones.
    """
    if node.problem:
        return _rejection(node, Reason.UNREADABLE_NODE, RefusalMessage.nameless(node.problem, node.problem))
    for claim, nodes in sorted(request.allocated.items()):
        if node.node not in nodes:
            why = f"claim {claim} is allocated on node {', '.join(sorted(nodes))}"
            return _rejection(node, Reason.CONFLICT, RefusalMessage.nameless(why, why))
    found: Placement | Rejection = Placement(node=node.node, interfaces=())
    for combination in islice(request.combinations(), MAX_COMBINATIONS):
        found = _Problem(combination, request.constraints, node).solve()
        if isinstance(found, Placement):
            break
    else:
        if next(islice(request.combinations(), MAX_COMBINATIONS, None), None) is not None:
            why = f"the first {MAX_COMBINATIONS} combinations of firstAvailable do not fit"
            return _rejection(node, Reason.UNDECIDED, RefusalMessage.nameless(why, why))
    return found


class _Problem:
    """The interfaces of one combination, each with the PFs that take it."""

    def __init__(
        self, requests: Sequence[DeviceRequest], constraints: Sequence[Constraint], node: ClaimNode
    ) -> None:
        self._node = node
        self._units = sorted(
            (request for request in requests for _ in range(request.count)),
            key=lambda request: -request.mbps,
        )
        self._requests = requests
        self._takers = {
            request: [index for index, pf in enumerate(node.pfs) if not pf.objection(request)]
            for request in requests
        }
        self._constraints = constraints

    def solve(self) -> Placement | Rejection:
        """Search without constraints first: what does not fit then is said with numbers."""
        placed = self._place()
        if isinstance(placed, Rejection):
            return placed
        counted = any(request.count > 1 for request in self._requests)
        if not self._constraints and not counted:
            return placed
        try:
            chosen = self._search(self._constraints)
        except OutOfWorkError:
            return self._undecided()
        return self._placement(chosen) if chosen is not None else self._constrained()

    def _place(self) -> Placement | Rejection:
        pfs = [pf for index, pf in enumerate(self._node.pfs) if self._is_taken(index)]
        interfaces = tuple(self._interface(unit, pfs) for unit in self._units)
        inventory = Inventory(node=self._node.node, pfs=tuple(pf.as_pf() for pf in pfs))
        found = place(Request(interfaces), inventory, self._node.used)
        if isinstance(found, Placement):
            return replace(found, interfaces=tuple(map(_without_options, found.interfaces)))
        return self._rejection(found.reason)

    def _is_taken(self, index: int) -> bool:
        return any(index in takers for takers in self._takers.values())

    def _interface(self, unit: DeviceRequest, pfs: Sequence[ClaimPf]) -> InterfaceRequest:
        takers = frozenset(self._node.pfs[index].name for index in self._takers[unit])
        if len(takers) == len(pfs):
            return InterfaceRequest(min_tx_rate_mbps=unit.mbps)
        # No names would select every PF.
        options = InterfaceOptions(pf=PfSelector(names=takers or frozenset({""})))
        return InterfaceRequest(min_tx_rate_mbps=unit.mbps, options=options)

    def _placement(self, chosen: Sequence[int]) -> Placement:
        return Placement(
            node=self._node.node,
            interfaces=tuple(
                PlacedInterface(pf=PciAddress(self._node.pfs[index].name), min_tx_rate_mbps=unit.mbps)
                for unit, index in zip(self._units, chosen, strict=True)
            ),
        )

    def _search(self, constraints: Sequence[Constraint]) -> list[int] | None:
        """Search depth first; None when nothing satisfies the constraints. OutOfWorkError."""
        search = _Search(self._node, self._units, [self._takers[unit] for unit in self._units], constraints)
        return search.chosen if search.run(0) else None

    def _constrained(self) -> Rejection:
        """The rejection of what fits but for constraints: those that alone exclude it, or else all."""
        excluding = [constraint for constraint in self._constraints if self._excludes(constraint)]
        counts = [f"count {request.count}" for request in self._requests if request.count > 1]
        texts = [*map(str, excluding or self._constraints), *(() if excluding else counts)]
        texts += [f"and {len(texts) - _MAX_CLAUSES} more"] if len(texts) > _MAX_CLAUSES else []
        why = f"{', '.join(texts[-_MAX_CLAUSES:])} cannot be met"
        return self._rejection(Reason.INSUFFICIENT, RefusalMessage.nameless(why, why))

    def _excludes(self, constraint: Constraint) -> bool:
        try:
            return self._search([constraint]) is None
        except OutOfWorkError:
            return False

    def _undecided(self) -> Rejection:
        why = "the search for an arrangement that meets all constraints ended at its work budget"
        return _rejection(self._node, Reason.UNDECIDED, RefusalMessage.nameless(why, why))

    def _rejection(self, reason: Reason, *causes: RefusalMessage) -> Rejection:
        """The sentence with the node's numbers, and in clauses what keeps requests from PFs."""
        pfs = [pf for index, pf in enumerate(self._node.pfs) if self._is_taken(index)]
        if not all(self._takers.values()):
            pfs = []
        used = {} if is_empty(reason) else self._node.used
        free = [
            Free(pf.as_pf(), room_of(pf.as_pf(), used.get(PciAddress(pf.name), NOTHING_USED))) for pf in pfs
        ]
        if causes and not any(unit.mbps for unit in self._units):
            free = []  # without reservations a sentence with numbers would say that VFs are missing
        classes = [class_of(InterfaceRequest(min_tx_rate_mbps=unit.mbps)) for unit in self._units]
        return _rejection(self._node, reason, explain(classes, free, reason, [*causes, *self._objections()]))

    def _objections(self) -> list[RefusalMessage]:
        clauses: dict[str, dict[str, None]] = {}
        for request in self._requests:
            for pf in self._node.pfs:
                if why := pf.objection(request):
                    clauses.setdefault(why, {})[pf.name] = None
        return [
            RefusalMessage(
                f"{', '.join(names)}: {why}",
                f"{len(names)} PF{'' if len(names) == 1 else 's'}: {why}",
                f"a PF: {why}",
            )
            for why, names in islice(clauses.items(), _MAX_CLAUSES)
        ]


class _Search:
    """A search for PFs that meet constraints. chosen: a PF's index for each interface so far."""

    def __init__(
        self,
        node: ClaimNode,
        units: Sequence[DeviceRequest],
        takers: Sequence[Sequence[int]],
        constraints: Sequence[Constraint],
    ) -> None:
        self.chosen: list[int] = []
        self._units = units
        self._takers = takers
        self._rooms = [list(pf.room) for pf in node.pfs]
        self._attributes = [pf.attributes for pf in node.pfs]
        self._constraints = [
            [
                constraint
                for constraint in constraints
                if constraint.claim == unit.claim
                and (not constraint.requests or _request_name(unit) in constraint.requests)
            ]
            for unit in units
        ]
        self._work = Work(DEFAULT_BUDGET)

    def run(self, depth: int) -> bool:
        """Complete `chosen`; False when that is impossible. OutOfWorkError."""
        if depth == len(self._units):
            return True
        unit = self._units[depth]
        is_alike = depth > 0 and self._units[depth - 1] is unit
        for index in self._takers[depth]:
            self._work.spend(1 + depth)
            if is_alike and index <= self.chosen[-1]:
                continue  # devices of one request are different, and their order is of no account
            room = self._rooms[index]
            if room[0] < unit.mbps or room[1] < 1 or not self._meets(depth, index):
                continue
            room[0], room[1] = room[0] - unit.mbps, room[1] - 1
            self.chosen.append(index)
            if self.run(depth + 1):
                return True
            self.chosen.pop()
            room[0], room[1] = room[0] + unit.mbps, room[1] + 1
        return False

    def _meets(self, depth: int, index: int) -> bool:
        for constraint in self._constraints[depth]:
            value = self._attributes[index].get(constraint.attribute)
            if value is None:
                return False
            for earlier, chosen in enumerate(self.chosen):
                if constraint in self._constraints[earlier]:
                    equal = self._attributes[chosen].get(constraint.attribute) == value
                    if equal is constraint.distinct:
                        return False
        return True


def _request_name(unit: DeviceRequest) -> str:
    return unit.name.partition("/")[0]


def _without_options(placed: PlacedInterface) -> PlacedInterface:
    return PlacedInterface(pf=placed.pf, min_tx_rate_mbps=placed.min_tx_rate_mbps)


def _rejection(node: ClaimNode, reason: Reason, message: RefusalMessage) -> Rejection:
    return Rejection(
        node=node.node,
        reason=reason,
        message=message.full,
        numbers=message.numbers,
        cause=message.cause,
    )
