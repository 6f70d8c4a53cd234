"""A fit of a pod's claims on a node, by ResourceSlices and ResourceClaims as the API server has them.

kube-scheduler decides; it only says "cannot allocate all claims". This finds the reason: the rules are those
of its allocator (Kubernetes 1.36, k8s.io/dynamic-resource-allocation/structured), the search is that of
`core.placement`, and constraints are searched within a budget of work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice, product, takewhile
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.devices.requests import Attribute, Constraint, DeviceRequest, DeviceTaint
from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.offers import room_of
from k8s_rdma.core.options import NO_OPTIONS, InterfaceOptions
from k8s_rdma.core.packing import NoPacking, OutOfWorkError, Room, Work
from k8s_rdma.core.pf_use import NOTHING_USED, Used
from k8s_rdma.core.placement import DEFAULT_BUDGET, PlacedInterface, Placement, Rejection
from k8s_rdma.core.placement_problem import PlacementProblem, choose
from k8s_rdma.core.refusal import Free, RefusalMessage, explain, explain_refusal, is_empty
from k8s_rdma.core.request import InterfaceRequest, Request, class_of
from k8s_rdma.core.types import NodeName, PciAddress, PfSelector
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

_MAX_CLAUSES = 3

MAX_WORK = 3_000_000
"""Work units for all nodes of an answer: about a second, see `core.packing.Work`."""

_NODE_WORK = 100
"""Work units that a node costs beside the search."""

_PROBLEM_WORK, _UNIT_WORK = 100, 10
"""Work units to pose a problem, and for each interface of it."""

_LEAST_PERCENT, _PREFERRED_PERCENT = 40, 70
"""Shares of the work; each is a share of the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsRequest:
    """All that a pod asks of our driver by claims that are not allocated yet.

    requests: each with its alternatives, the preferred one first.
    allocated: nodes of its other claims.
    """

    requests: tuple[tuple[DeviceRequest, ...], ...]
    constraints: tuple[Constraint, ...] = ()
    allocated: Mapping[str, frozenset[NodeName]]

    @property
    def attributes(self) -> frozenset[str]:
        """The attributes of PFs that matter to it."""
        return frozenset(
            comparison.attribute
            for alternatives in self.requests
            for request in alternatives
            for selector in request.selectors
            for comparisons in selector.alternatives or ()
            for comparison in comparisons
        ).union(constraint.attribute for constraint in self.constraints)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPf:
    """A PF of a ResourceSlice; its capacities, and the amounts that claims consume of them.

    least_mbps: the least that each interface consumes.
    attributes: by fully qualified name.
    """

    name: str
    mbps: int
    least_mbps: int = 0
    vfs: int
    used: Used = NOTHING_USED
    attributes: Mapping[str, Attribute]
    taints: tuple[DeviceTaint, ...] = ()

    def as_pf(self) -> Pf:
        """Return it for placement, identified by its device name: not every slice has PCI addresses."""
        return Pf(name=self.name, pci=PciAddress(self.name), capacity_vfs=self.vfs, link_mbps=self.mbps)

    @property
    def room(self) -> Room:
        """The free capacity."""
        return Room(max(0, self.mbps - self.used.mbps), max(0, self.vfs - self.used.vfs))

    def objection(self, request: DeviceRequest) -> str:
        """Describe in a clause why this PF never takes the request, even if it is free; empty if it may."""
        if self.used.mbps > self.mbps or self.used.vfs > self.vfs:
            return "claims have more than it has now"  # kube-scheduler then refuses a request of 0, too
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

    problem: why kube-scheduler does not use them now, empty if it does.
    pods: how many have claims there.
    """

    node: NodeName
    pfs: tuple[ClaimPf, ...] = ()
    problem: str = ""
    pods: int = 0

    @cached_property
    def used(self) -> Mapping[PciAddress, Used]:
        """The use of each PF."""
        return {PciAddress(pf.name): pf.used for pf in self.pfs}

    @cached_property
    def inventory(self) -> Inventory:
        """The PFs for placement."""
        return Inventory(node=self.node, pfs=tuple(pf.as_pf() for pf in self.pfs))

    def kind(self, attributes: Iterable[str]) -> Hashable:
        """Return a value that is equal for nodes that give equal answers if only these attributes matter."""
        return self.problem, tuple(
            (
                pf.name,
                pf.mbps,
                pf.least_mbps,
                pf.vfs,
                pf.used,
                pf.taints,
                *(repr(pf.attributes.get(name)) for name in attributes),
            )
            for pf in self.pfs
        )


def judge(
    request: ClaimsRequest, nodes: Iterable[ClaimNode], max_work: int = MAX_WORK
) -> Iterator[tuple[ClaimNode, Placement | Rejection]]:
    """Judge nodes by `claims_fit`, equal ones once; they are `UNDECIDED` after the work is used up."""
    attributes = sorted(request.attributes)
    answers: dict[Hashable, Placement | Rejection] = {}
    for node in nodes:
        kind = node.node if request.allocated else node.kind(attributes)
        if kind not in answers and max_work > 0:
            work = Work(DEFAULT_BUDGET)
            answers[kind] = claims_fit(request, node, work)
            max_work -= _NODE_WORK + DEFAULT_BUDGET - max(0, work.remaining)
        found = answers.get(kind) or _undecided(node, "the work for this answer was used up before it")
        yield node, replace(found, node=node.node)


def claims_fit(request: ClaimsRequest, node: ClaimNode, work: Work | None = None) -> Placement | Rejection:
    """Find PFs for all that the pod asks for, or say why there are no such PFs.

    `UNDECIDED` if that takes more than the work. If a request has alternatives, a rejection is of the least
    that they ask for, and a placement is of the preferred ones that the work allows.
    """
    if node.problem:
        return _rejection(node, Reason.UNREADABLE_NODE, RefusalMessage.nameless(node.problem, node.problem))
    for claim, nodes in sorted(request.allocated.items()):
        if node.node not in nodes:
            why = f"claim {claim} is allocated on node {', '.join(sorted(nodes))}"
            return _rejection(node, Reason.CONFLICT, RefusalMessage.nameless(why, why))
    work = Work(DEFAULT_BUDGET) if work is None else work
    requests = _candidates(request, node)
    if any(len(alternatives) > 1 for alternatives in requests):
        return _Alternatives(requests, request.constraints, node, work).solve()
    problem = _Problem([only for [only] in requests], request.constraints, node, work)
    found = problem.solve()
    return problem.rejection(found) if isinstance(found, _Failure) else found


class _Candidate(NamedTuple):
    """A request, and the indexes of PFs that take it."""

    request: DeviceRequest
    takers: tuple[int, ...]


def _candidates(request: ClaimsRequest, node: ClaimNode) -> list[tuple[_Candidate, ...]]:
    takers: dict[Hashable, tuple[int, ...]] = {}

    def candidate(request: DeviceRequest) -> _Candidate:
        terms = request.selectors, request.tolerations
        if terms not in takers:
            takers[terms] = tuple(index for index, pf in enumerate(node.pfs) if not pf.objection(request))
        least = min((node.pfs[index].least_mbps for index in takers[terms]), default=0)
        return _Candidate(replace(request, mbps=max(request.mbps, least)), takers[terms])

    return [tuple(map(candidate, alternatives)) for alternatives in request.requests]


class _Failure(NamedTuple):
    """PFs were not found. why: the fault of the constraints, if PFs would do without them."""

    verdict: NoPacking
    why: str = ""


class _Alternatives:
    """Requests with alternatives (`firstAvailable`); any combination will do."""

    def __init__(
        self,
        requests: Sequence[Sequence[_Candidate]],
        constraints: Sequence[Constraint],
        node: ClaimNode,
        work: Work,
    ) -> None:
        self._requests = requests
        self._constraints = constraints
        self._node = node
        self._work = work
        self._free_mbps = sum(pf.room.mbps for pf in node.pfs)

    def solve(self) -> Placement | Rejection:
        """Refuse if even the least alternatives do not fit; else look for the preferred combination.

        The last combination, usually the least one, is tried before the work ends.
        """
        least = list(map(_least, self._requests))
        with self._work.share(_LEAST_PERCENT) as share:
            problem = _Problem(least, self._constraints, self._node, share)
            found = problem.solve()
        if isinstance(found, _Failure) and found.verdict is NoPacking.IMPOSSIBLE:
            return problem.rejection(found, "with the least alternatives of firstAvailable: ")
        with suppress(OutOfWorkError), self._work.share(_PREFERRED_PERCENT) as share:
            return self._preferred(least, share) or self._any(share)
        with suppress(OutOfWorkError):
            found = self._solve([alternatives[-1] for alternatives in self._requests], self._work)
            if isinstance(found, Placement):
                return found
        return _undecided(self._node, "the search for alternatives of firstAvailable that fit together ended")

    def _preferred(self, least: list[_Candidate], work: Work) -> Placement | None:
        """Choose one alternative after the other: the first that leaves room for the least of the others.

        It fails if each choice seemed possible, but all together are not.
        OutOfWorkError if the work ends first.
        """
        chosen = list(least)
        for index, alternatives in enumerate(self._requests):
            for candidate in alternatives:
                chosen[index] = candidate
                if self._equals(candidate, least[index]) or isinstance(self._solve(chosen, work), Placement):
                    break
            else:
                return None
        found = self._solve(chosen, work)
        return found if isinstance(found, Placement) else None

    def _equals(self, candidate: _Candidate, least: _Candidate) -> bool:
        """Report whether an alternative is the least one, for which there is room."""
        renamed = replace(candidate.request, name=least.request.name)
        return not self._constraints and candidate._replace(request=renamed) == least

    def _any(self, work: Work) -> Placement | Rejection:
        """Try all combinations. OutOfWorkError."""
        for combination in product(*self._requests):
            found = self._solve(combination, work)
            if isinstance(found, Placement):
                return found
        why = "no combination of the alternatives of firstAvailable fits"
        return _rejection(self._node, Reason.INSUFFICIENT, RefusalMessage.nameless(why, why))

    def _solve(self, candidates: Sequence[_Candidate], work: Work) -> Placement | _Failure:
        work.spend(len(candidates))
        if sum(request.mbps * request.count for request, _ in candidates) > self._free_mbps:
            return _Failure(NoPacking.IMPOSSIBLE)
        found = _Problem(candidates, self._constraints, self._node, work).solve()
        if isinstance(found, _Failure) and found.verdict is NoPacking.UNDECIDED:
            raise OutOfWorkError
        return found


def _least(alternatives: Sequence[_Candidate]) -> _Candidate:
    """Return the least that any of a request's alternatives asks for, of all PFs that any of them takes.

    Constraints never name a certain alternative. So if the least does not fit, no alternative fits.
    """
    requests = [candidate.request for candidate in alternatives]
    request = replace(
        requests[-1],
        name=requests[-1].name.partition("/")[0],
        mbps=min(request.mbps for request in requests),
        count=min(request.count for request in requests),
    )
    takers = {index for candidate in alternatives for index in candidate.takers}
    return _Candidate(request, tuple(sorted(takers)))


class _Rule(NamedTuple):
    """A condition on the PFs of some interfaces: different values of an attribute, or one value for all.

    PFs have one value for all if their lists have a value in common, and different values if not.

    units: indexes of interfaces.
    values: of each PF, one or a list; None if it has no such attribute and is excluded.
    """

    text: str
    units: tuple[int, ...]
    values: tuple[frozenset[Hashable] | None, ...]
    distinct: bool

    def is_partition(self) -> bool:
        """Report whether any two PFs have either the same values or no value in common."""
        found = {value for value in self.values if value is not None}
        return sum(map(len, found)) == len(frozenset().union(*found))


class _Problem:
    """The interfaces of one combination, the largest first, each with the PFs that take it."""

    def __init__(
        self,
        candidates: Sequence[_Candidate],
        constraints: Sequence[Constraint],
        node: ClaimNode,
        work: Work,
    ) -> None:
        self._node = node
        self._work = work
        self._candidates = candidates
        self._units = sorted(
            (candidate for candidate in candidates for _ in range(candidate.request.count)),
            key=lambda candidate: -candidate.request.mbps,
        )
        self._usable_pfs = sorted({index for candidate in candidates for index in candidate.takers})
        self._rules = [
            *(self._rule_of(constraint) for constraint in constraints),
            *(self._rule_of_count(candidate) for candidate in candidates if candidate.request.count > 1),
        ]

    def solve(self) -> Placement | _Failure:
        """Search without rules, then by each rule alone, then by all of them.

        A search with fewer rules that fails gives the better reason.
        """
        try:
            self._work.spend(_PROBLEM_WORK + _UNIT_WORK * len(self._units))
            placed = self._place(range(len(self._units)), self._usable_pfs)
            if isinstance(placed, NoPacking):
                return _Failure(placed)
            chosen = self._meet_all(placed)
        except OutOfWorkError:
            why = "the search for an arrangement that meets all constraints ended at its work budget"
            return _Failure(NoPacking.UNDECIDED, why)
        if isinstance(chosen, str):
            return _Failure(NoPacking.IMPOSSIBLE, chosen)
        return Placement(
            node=self._node.node,
            interfaces=tuple(
                PlacedInterface(pf=PciAddress(self._node.pfs[index].name), min_tx_rate_mbps=unit.request.mbps)
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
        search = _Search(self._units, list(met), self._node, self._work)
        return search.chosen if search.run(0) else f"{_texts(list(met))} cannot be met together"

    def _rule_of(self, constraint: Constraint) -> _Rule:
        return _Rule(
            str(constraint),
            tuple(index for index, unit in enumerate(self._units) if constraint.includes(unit.request)),
            tuple(_values(pf.attributes.get(constraint.attribute)) for pf in self._node.pfs),
            constraint.distinct,
        )

    def _rule_of_count(self, candidate: _Candidate) -> _Rule:
        units = tuple(index for index, unit in enumerate(self._units) if unit is candidate)
        text = f"count {candidate.request.count}"
        return _Rule(text, units, tuple(frozenset({pf.name}) for pf in self._node.pfs), distinct=True)

    def _place(self, units: Sequence[int], pfs: Sequence[int]) -> list[int] | NoPacking:
        """Find a PF of these for each of these interfaces, without regard to rules."""
        task, order = self._task(units, pfs)
        chosen = choose(task, self._node.used, self._work)
        if isinstance(chosen, NoPacking):
            return chosen
        placed = dict(zip(order, chosen, strict=True))
        return [pfs[placed[position]] for position in range(len(units))]

    def _task(self, units: Sequence[int], pfs: Sequence[int]) -> tuple[PlacementProblem, list[int]]:
        """Pose the problem of these interfaces on these PFs; with their order in it."""
        shape = self._request(units, pfs).shape
        order = sorted(range(len(units)), key=shape.kind_at.__getitem__)
        inventory = tuple(self._node.inventory.pfs[index] for index in pfs)
        task = PlacementProblem(
            shape.kinds,
            [shape.kind_at[position] for position in order],
            Inventory(node=self._node.node, pfs=inventory),
        )
        return task, order

    def _request(self, units: Sequence[int], pfs: Sequence[int]) -> Request:
        interfaces: dict[Hashable, InterfaceRequest] = {}

        def interface(unit: _Candidate) -> InterfaceRequest:
            key = unit.request.mbps, unit.takers
            if key not in interfaces:
                names = frozenset(self._node.pfs[index].name for index in set(unit.takers).intersection(pfs))
                # No names would select every PF.
                selector = PfSelector(names=names or frozenset({""}))
                options = NO_OPTIONS if len(names) == len(pfs) else InterfaceOptions(pf=selector)
                interfaces[key] = InterfaceRequest(min_tx_rate_mbps=unit.request.mbps, options=options)
            return interfaces[key]

        return Request(tuple(interface(self._units[unit]) for unit in units))

    def _meet(self, rule: _Rule) -> list[int] | None:
        """Find a PF for each interface of a rule, as if there were no other rules and interfaces.

        Return None if there are no such PFs, and an empty list if only the search by all rules can decide.
        OutOfWorkError if that is not known.
        """
        if rule.distinct:
            return self._match(rule) if rule.is_partition() else []
        undecided = False
        for value in dict.fromkeys(
            chain.from_iterable(rule.values[index] or () for index in self._usable_pfs)
        ):
            pfs = [index for index in self._usable_pfs if value in (rule.values[index] or ())]
            found = self._place(rule.units, pfs)
            if not isinstance(found, NoPacking):
                return found
            undecided = undecided or found is NoPacking.UNDECIDED
        if undecided:
            raise OutOfWorkError
        return None

    def _match(self, rule: _Rule) -> list[int] | None:
        """Match interfaces with values, each of them once: bipartite matching (Kuhn 1955)."""
        self._work.spend(2 * sum(len(self._units[unit].takers) for unit in rule.units))
        candidates = [
            {
                value: index
                for index in reversed(self._units[unit].takers)
                if (value := rule.values[index]) is not None and self._has_room(index, self._units[unit])
            }
            for unit in rule.units
        ]
        owners: dict[frozenset[Hashable], int] = {}

        def augment(position: int, visited: set[frozenset[Hashable]]) -> bool:
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

    def _has_room(self, index: int, unit: _Candidate) -> bool:
        room = self._node.pfs[index].room
        return room.vfs > 0 and room.mbps >= unit.request.mbps

    def rejection(self, failure: _Failure, condition: str = "") -> Rejection:
        """Return the sentence with the node's numbers, and a clause for each reason why PFs refuse requests.

        condition: the beginning of the sentence.
        """
        if failure.why:
            reason = Reason.INSUFFICIENT if failure.verdict is NoPacking.IMPOSSIBLE else Reason.UNDECIDED
        else:
            task, _ = self._task(range(len(self._units)), self._usable_pfs)
            reason, _ = explain_refusal(task, self._node.used, failure.verdict, self._work)
        used = {} if is_empty(reason) else self._node.used
        pfs = self._node.inventory.pfs
        free = [
            Free(pfs[index], room_of(pfs[index], used.get(pfs[index].pci, NOTHING_USED)))
            for index in self._usable_pfs
        ]
        if not all(candidate.takers for candidate in self._candidates) or (
            failure.why and not any(unit.request.mbps for unit in self._units)
        ):
            free = []  # without reservations a sentence with numbers would say that VFs are missing
        classes = [class_of(InterfaceRequest(min_tx_rate_mbps=unit.request.mbps)) for unit in self._units]
        causes = [RefusalMessage.nameless(failure.why, failure.why)] if failure.why else []
        message = explain(classes, free, reason, [*causes, *self._objections()])
        return _rejection(self._node, reason, RefusalMessage(*(condition + text for text in message)))

    def _objections(self) -> list[RefusalMessage]:
        clauses: dict[str, dict[str, None]] = {}
        for request, takers in self._candidates:
            for index, pf in enumerate(self._node.pfs):
                if index not in takers:
                    clauses.setdefault(pf.objection(request), {})[pf.name] = None
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
        self, units: Sequence[_Candidate], rules: Sequence[_Rule], node: ClaimNode, work: Work
    ) -> None:
        self.chosen: list[int] = []
        self._units = units
        self._rooms = [list(pf.room) for pf in node.pfs]
        self._rules = [[rule for rule in rules if index in rule.units] for index in range(len(units))]
        self._work = work

    def run(self, depth: int) -> bool:
        """Complete `chosen`, depth first; False when that is impossible. OutOfWorkError."""
        if depth == len(self._units):
            return True
        mbps = self._units[depth].request.mbps
        first = self.chosen[-1] if depth and self._is_alike(depth) else 0
        for index in self._units[depth].takers:
            self._work.spend(1 + len(self._rules[depth]))
            room = self._rooms[index]
            if index < first or room[0] < mbps or room[1] < 1 or not self._meets(depth, index):
                continue
            room[0], room[1] = room[0] - mbps, room[1] - 1
            self.chosen.append(index)
            if self.run(depth + 1):
                return True
            self.chosen.pop()
            room[0], room[1] = room[0] + mbps, room[1] + 1
        return False

    def _is_alike(self, depth: int) -> bool:
        """Report whether an interface and the one before it may change places."""
        unit, previous = self._units[depth], self._units[depth - 1]
        return (
            unit.request.mbps == previous.request.mbps
            and unit.takers == previous.takers
            and self._rules[depth] == self._rules[depth - 1]
        )

    def _meets(self, depth: int, index: int) -> bool:
        for rule in self._rules[depth]:
            values = common = rule.values[index] or frozenset()
            for earlier in takewhile(lambda unit: unit < depth, rule.units):
                rival = rule.values[self.chosen[earlier]] or frozenset()
                if rule.distinct and not values.isdisjoint(rival):
                    return False
                common = common if rule.distinct else common & rival
            if not common:
                return False
        return True


def _values(attribute: Attribute | None) -> frozenset[Hashable] | None:
    """Return the values of an attribute, which may be a list."""
    if attribute is None or isinstance(attribute, frozenset):
        return attribute
    return frozenset({attribute})


def _undecided(node: ClaimNode, why: str) -> Rejection:
    return _rejection(node, Reason.UNDECIDED, RefusalMessage.nameless(why, why))


def _rejection(node: ClaimNode, reason: Reason, message: RefusalMessage) -> Rejection:
    return Rejection(
        node=node.node,
        reason=reason,
        message=message.full,
        numbers=message.numbers,
        cause=message.cause,
    )
