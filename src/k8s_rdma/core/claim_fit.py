"""A fit of a pod's claims on a node, by ResourceSlices and ResourceClaims as the API server has them.

kube-scheduler decides; it only says "cannot allocate all claims". This finds the reason: the rules are those
of its allocator (Kubernetes 1.36, k8s.io/dynamic-resource-allocation/structured), the search is that of
`core.placement`, and constraints are searched within a budget of work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

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

    def includes(self, unit: DeviceRequest) -> bool:
        """Report whether it is for a request, which it may name by an alternative, too."""
        names = {unit.name, unit.name.partition("/")[0]}
        return unit.claim == self.claim and (not self.requests or not names.isdisjoint(self.requests))

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


class _Rule(NamedTuple):
    """A condition on the PFs of some interfaces: different values of an attribute, or one for all.

    units: indexes of interfaces. values: of each PF, None where it has no such attribute and is excluded.
    """

    text: str
    units: tuple[int, ...]
    values: tuple[Attribute | None, ...]
    distinct: bool


class _Problem:
    """The interfaces of one combination, the largest first, each with the PFs that take it."""

    def __init__(
        self, requests: Sequence[DeviceRequest], constraints: Sequence[Constraint], node: ClaimNode
    ) -> None:
        self._node = node
        self._requests = requests
        self._units = sorted(
            (request for request in requests for _ in range(request.count)),
            key=lambda request: -request.mbps,
        )
        self._takers = {
            request: [index for index, pf in enumerate(node.pfs) if not pf.objection(request)]
            for request in requests
        }
        self._usable_pfs = sorted({index for takers in self._takers.values() for index in takers})
        self._rules = [
            *(self._rule_of(constraint) for constraint in constraints),
            *(self._rule_of_count(request) for request in requests if request.count > 1),
        ]

    def solve(self) -> Placement | Rejection:
        """Search without rules, then by each rule alone, then by all of them.

        What fails sooner has the better reason.
        """
        all_units = range(len(self._units))
        placed = self._place(all_units, self._usable_pfs)
        if isinstance(placed, Reason):
            return self._rejection(placed)
        try:
            chosen = self._meet_all(placed)
        except OutOfWorkError:
            why = "the search for an arrangement that meets all constraints ended at its work budget"
            return _rejection(self._node, Reason.UNDECIDED, RefusalMessage.nameless(why, why))
        if isinstance(chosen, str):
            return self._rejection(Reason.INSUFFICIENT, RefusalMessage.nameless(chosen, chosen))
        return Placement(
            node=self._node.node,
            interfaces=tuple(
                PlacedInterface(pf=PciAddress(self._node.pfs[index].name), min_tx_rate_mbps=unit.mbps)
                for unit, index in zip(self._units, chosen, strict=True)
            ),
        )

    def _meet_all(self, chosen: list[int]) -> list[int] | str:
        """Find PFs by all rules, or say which ones cannot be met. OutOfWorkError. chosen: without rules."""
        met = {rule: self._meet(rule) for rule in self._rules if rule.units}
        if unmet := [rule for rule, found in met.items() if found is None]:
            return f"{_texts(unmet)} cannot be met"
        if not met:
            return chosen
        complete = next((found for found in met.values() if found and len(found) == len(chosen)), None)
        if complete and len(met) == 1:
            return complete
        search = _Search(self._units, [self._takers[unit] for unit in self._units], list(met), self._node)
        return search.chosen if search.run(0) else f"{_texts(list(met))} cannot be met together"

    def _rule_of(self, constraint: Constraint) -> _Rule:
        return _Rule(
            str(constraint),
            tuple(index for index, unit in enumerate(self._units) if constraint.includes(unit)),
            tuple(pf.attributes.get(constraint.attribute) for pf in self._node.pfs),
            constraint.distinct,
        )

    def _rule_of_count(self, request: DeviceRequest) -> _Rule:
        units = tuple(index for index, unit in enumerate(self._units) if unit is request)
        return _Rule(f"count {request.count}", units, tuple(pf.name for pf in self._node.pfs), distinct=True)

    def _place(self, units: Sequence[int], pfs: Sequence[int]) -> list[int] | Reason:
        """Find a PF of these for each of these interfaces, whatever the rules; or the reason for none."""
        chosen = [self._node.pfs[index] for index in pfs]
        interfaces = tuple(self._interface(self._units[unit], chosen) for unit in units)
        inventory = Inventory(node=self._node.node, pfs=tuple(pf.as_pf() for pf in chosen))
        found = place(Request(interfaces), inventory, self._node.used)
        if isinstance(found, Rejection):
            return found.reason
        indexes = {pf.name: index for index, pf in enumerate(self._node.pfs)}
        return [indexes[interface.pf] for interface in found.interfaces]

    def _interface(self, unit: DeviceRequest, pfs: Sequence[ClaimPf]) -> InterfaceRequest:
        takers = {self._node.pfs[index].name for index in self._takers[unit]}
        names = frozenset(pf.name for pf in pfs if pf.name in takers)
        if len(names) == len(pfs):
            return InterfaceRequest(min_tx_rate_mbps=unit.mbps)
        # No names would select every PF.
        options = InterfaceOptions(pf=PfSelector(names=names or frozenset({""})))
        return InterfaceRequest(min_tx_rate_mbps=unit.mbps, options=options)

    def _meet(self, rule: _Rule) -> list[int] | None:
        """Find a PF for each interface of a rule, as if there were no other rules and interfaces.

        OutOfWorkError where that is not known.
        """
        if rule.distinct:
            return self._match(rule)
        undecided = False
        for value in dict.fromkeys(rule.values[index] for index in self._usable_pfs):
            pfs = [index for index in self._usable_pfs if value is not None and rule.values[index] == value]
            found = self._place(rule.units, pfs) if pfs else Reason.NO_SUCH_PF
            if not isinstance(found, Reason):
                return found
            undecided = undecided or found is Reason.UNDECIDED
        if undecided:
            raise OutOfWorkError
        return None

    def _match(self, rule: _Rule) -> list[int] | None:
        """Match interfaces with values, each of them once: bipartite matching (Kuhn 1955)."""
        candidates = [
            {
                value: index
                for index in reversed(self._takers[self._units[unit]])
                if (value := rule.values[index]) is not None and self._has_room(index, self._units[unit])
            }
            for unit in rule.units
        ]
        owners: dict[Attribute, int] = {}

        def augment(position: int, visited: set[Attribute]) -> bool:
            for value in candidates[position]:
                if value in visited:
                    continue
                visited.add(value)
                if value not in owners or augment(owners[value], visited):
                    owners[value] = position
                    return True
            return False

        if not all(augment(position, set()) for position in range(len(candidates))):
            return None
        matched = {position: candidates[position][value] for value, position in owners.items()}
        return [matched[position] for position in range(len(candidates))]

    def _has_room(self, index: int, unit: DeviceRequest) -> bool:
        room = self._node.pfs[index].room
        return room.vfs > 0 and room.mbps >= unit.mbps

    def _rejection(self, reason: Reason, *causes: RefusalMessage) -> Rejection:
        """The sentence with the node's numbers, and in clauses what keeps requests from PFs."""
        used = {} if is_empty(reason) else self._node.used
        pfs = (
            [self._node.pfs[index].as_pf() for index in self._usable_pfs]
            if all(self._takers.values())
            else []
        )
        free = [Free(pf, room_of(pf, used.get(pf.pci, NOTHING_USED))) for pf in pfs]
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


def _texts(rules: Sequence[_Rule]) -> str:
    texts = [rule.text for rule in rules[:_MAX_CLAUSES]]
    texts += [f"{len(rules) - _MAX_CLAUSES} more"] if len(rules) > _MAX_CLAUSES else []
    return " and ".join(texts)


class _Search:
    """A search for PFs that meet all rules. chosen: a PF's index for each interface so far."""

    def __init__(
        self,
        units: Sequence[DeviceRequest],
        takers: Sequence[Sequence[int]],
        rules: Sequence[_Rule],
        node: ClaimNode,
    ) -> None:
        self.chosen: list[int] = []
        self._units = units
        self._takers = takers
        self._rooms = [list(pf.room) for pf in node.pfs]
        self._rules = [[rule for rule in rules if index in rule.units] for index in range(len(units))]
        self._work = Work(DEFAULT_BUDGET)

    def run(self, depth: int) -> bool:
        """Complete `chosen`, depth first; False when that is impossible. OutOfWorkError."""
        if depth == len(self._units):
            return True
        unit = self._units[depth]
        first = self.chosen[-1] if depth and self._is_alike(depth) else 0
        for index in self._takers[depth]:
            self._work.spend(1 + len(self._rules[depth]))
            room = self._rooms[index]
            if index < first or room[0] < unit.mbps or room[1] < 1 or not self._meets(depth, index):
                continue
            room[0], room[1] = room[0] - unit.mbps, room[1] - 1
            self.chosen.append(index)
            if self.run(depth + 1):
                return True
            self.chosen.pop()
            room[0], room[1] = room[0] + unit.mbps, room[1] + 1
        return False

    def _is_alike(self, depth: int) -> bool:
        """Report whether an interface and the one before it may change places."""
        return (
            self._units[depth].mbps == self._units[depth - 1].mbps
            and self._takers[depth] == self._takers[depth - 1]
            and self._rules[depth] == self._rules[depth - 1]
        )

    def _meets(self, depth: int, index: int) -> bool:
        for rule in self._rules[depth]:
            value = rule.values[index]
            if value is None:
                return False
            for earlier in rule.units:
                if earlier >= depth:
                    break
                if (rule.values[self.chosen[earlier]] == value) is rule.distinct:
                    return False
        return True


def _rejection(node: ClaimNode, reason: Reason, message: RefusalMessage) -> Rejection:
    return Rejection(
        node=node.node,
        reason=reason,
        message=message.full,
        numbers=message.numbers,
        cause=message.cause,
    )
