"""Victims: the pods to evict from a node so that another one fits there.

kube-scheduler chooses victims by its own counts, and takes the fewest: with any of them back the pod would
not fit. It does not check again after the extender. So more may be added to its victims, because a pod that
fits by its own filters still does when more pods are gone. They are chosen as it chooses: all of lower
priority, then each put back that is not needed, those first whose eviction a disruption budget does not
allow, the important ones first.

One of its own victims is dropped only if the pod surely still fits. There are two such cases. In the first,
the victim goes by itself. In the second, it takes only its resource requests of its node
(`wire.pod_spec.demand_of`), the added victims free at least as much of everything, including places for pods,
and the pending pod has no constraint on the pods beside it (no affinity, no topology spread, no claimed
device). The second is the ordinary case of VFs that are counted: the scheduler knows that one VF must go, and
not which one has the bandwidth. At least one victim stays, because a node without victims fails the whole
call.

Pods of a group that is disrupted together (`disruptionMode`) are one victim: all of them go, or all stay. A
group with a pod elsewhere cannot go, because an answer names pods of one node. If kube-scheduler chose one of
its pods, others must take that pod's place as in the second case, or the node is dropped.

Searches are generators: each yields the pods that would be evicted, and is sent whether the pod fits then. So
the caller decides which pods fit, and which other work runs in between.

Source: `SelectVictimsOnNode`, `pkg/scheduler/framework/plugins/defaultpreemption`, `MoreImportantPod`, and
`filterPodsWithPDBViolation`, `pkg/scheduler/framework/preemption`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, TypeAlias, TypeVar, cast

from k8s_rdma.core.types import NodeName, PodUid

T = TypeVar("T")

Search: TypeAlias = Generator[Collection[PodUid], bool, T]

ResourceDemand: TypeAlias = tuple[tuple[str, Fraction], ...]
"""Amounts by resource, sorted: cores, bytes, pieces. `pods` is not among them, every pod is one."""

NOT_STARTED = "~"
"""Sorts behind every time: such a pod has just come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A bound pod that may hold interfaces, and could make room for others.

    started: `status.startTime` as the API writes it, so that it sorts as text; empty before it runs.
    demand: the sum of its resource requests; None if it may take other capacity of its node as well.
    labels: the labels by which disruption budgets select it.
    """

    uid: PodUid
    namespace: str
    name: str
    priority: int
    started: str = ""
    demand: ResourceDemand | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


Violating: TypeAlias = Callable[[Iterable[Occupant]], Collection[PodUid]]
"""Finds the pods whose eviction, in this order, would violate a disruption budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundGroup:
    """A group of pods, and the node of each of its bound pods.

    disrupted_together: whether evicting one of its pods means evicting all; None if that is not known.
    priority: the group's own, which counts instead of its pods' priorities, if it has one.
    """

    homes: Mapping[PodUid, NodeName]
    disrupted_together: bool | None
    priority: int | None = None


class Together(NamedTuple):
    """The pods of a node that are evicted with others, each with all of them, and those that must stay."""

    bundles: dict[PodUid, tuple[PodUid, ...]]
    untouchable: set[PodUid]


def together(
    groups: Iterable[BoundGroup], evictable: Collection[PodUid], node: NodeName, priority: int
) -> Together:
    """Find which pods go with which, and which must stay because their group cannot go whole.

    groups: of the node's pods.
    evictable: the node's pods that may be evicted if no group is in the way.
    priority: of the pod that waits.
    """
    found, may_go = Together({}, set()), set(evictable)
    for group in groups:
        if group.disrupted_together is False:
            continue
        below = group.priority is None or group.priority < priority
        if group.disrupted_together and below and group.homes.keys() <= may_go:
            found.bundles.update(dict.fromkeys(group.homes, tuple(group.homes)))
        else:
            found.untouchable.update(uid for uid, home in group.homes.items() if home == node)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The scheduler's victims on a node.

    uids: in its order, the important ones first.
    occupants: the known ones.
    terminating: those that go by themselves.
    violations: the number of evictions that no budget allows, by the scheduler's count.
    replaceable: whether the pending pod has no constraint on the pods beside it.
    bundles: the pods that each pod goes with, including itself, if there are more.
    untouchable: pods that must stay.
    """

    uids: tuple[PodUid, ...]
    occupants: Mapping[PodUid, Occupant]
    terminating: Collection[PodUid] = ()
    violations: int = 0
    replaceable: bool = False
    bundles: Mapping[PodUid, Collection[PodUid]] = field(default_factory=dict)
    untouchable: Collection[PodUid] = frozenset()

    def bundle(self, uid: PodUid) -> Collection[PodUid]:
        """Return the pods that go if this one goes."""
        return self.bundles.get(uid, (uid,))


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods to evict, the important ones first, and the number of evictions that no budget allows."""

    uids: tuple[PodUid, ...]
    violations: int


def covers(evicted: Iterable[ResourceDemand], required: Iterable[ResourceDemand]) -> bool:
    """Report whether evicting the former frees at least as much of everything as the latter."""
    freed, needed = list(evicted), list(required)
    if len(freed) < len(needed):
        return False
    remaining: dict[str, Fraction] = {}
    for demand, sign in ((d, s) for demands, s in ((freed, 1), (needed, -1)) for d in demands):
        for resource, amount in demand:
            remaining[resource] = remaining.get(resource, Fraction(0)) + sign * amount
    return all(amount >= 0 for amount in remaining.values())


def propose(occupants: Iterable[Occupant], violating: Violating) -> Search[tuple[PodUid, ...]]:
    """Find the fewest victims as kube-scheduler does, by its own counts.

    Without victims, the pod does not fit even when all of them are gone, or fits beside them.

    occupants: all of lower priority on the node.
    """
    ordered = _important_first(occupants)
    evicted = {pod.uid for pod in ordered}
    if not evicted or not (yield evicted):
        return ()
    for uid in _reprieve_order(ordered, violating):
        if (yield evicted - {uid}):
            evicted.discard(uid)
    return tuple(pod.uid for pod in ordered if pod.uid in evicted)


def correct(
    proposal: Proposal, occupants: Iterable[Occupant], violating: Violating
) -> Search[Victims | None]:
    """Find the victims that make the pod fit, if there are such victims.

    occupants: the pods that may be evicted as well.
    """
    going = tuple(uid for uid in proposal.uids if uid not in proposal.terminating) or proposal.uids
    spared = [uid for uid in going if uid in proposal.untouchable]
    needed = [uid for uid in going if uid not in proposal.untouchable]
    pods = {pod.uid: pod for pod in occupants if pod.uid not in proposal.untouchable}
    joined = {mate for uid in needed for mate in proposal.bundle(uid)} - set(needed)
    if not spared and (yield {*needed, *joined}):
        return _victims(proposal, needed, [pods[uid] for uid in joined], violating) if needed else None
    candidates = {uid: pod for uid, pod in pods.items() if uid not in needed and uid not in joined}
    evicted = {*needed, *joined, *candidates}
    replaced = _Replaced.by_proposal(proposal, spared, pods)
    if not candidates or not replaced.suffices(evicted) or not (yield evicted):
        return None
    order = _reprieve_order([*_occupants(proposal, needed), *candidates.values()], violating)
    yield from _reprieve(evicted, (proposal.bundle(uid) for uid in order if uid in candidates), replaced)
    added = [pod for uid, pod in pods.items() if uid in evicted and uid not in needed]
    if proposal.replaceable and not spared:
        single = [pod for pod in _occupants(proposal, needed) if pod.uid not in proposal.bundles]
        yield from _replace(evicted, single, added, violating)
    return _victims(proposal, [uid for uid in needed if uid in evicted], added, violating)


@dataclass(frozen=True, slots=True)
class _Replaced:
    """The proposal's victims that must stay: others must free at least as much. None: no pods can."""

    required: Sequence[ResourceDemand] | None
    pods: Mapping[PodUid, Occupant]

    @classmethod
    def by_proposal(
        cls, proposal: Proposal, spared: Sequence[PodUid], pods: Mapping[PodUid, Occupant]
    ) -> _Replaced:
        demands = [pod.demand for pod in _occupants(proposal, spared) if pod.demand is not None]
        comparable = not spared or (proposal.replaceable and len(demands) == len(spared))
        added = {uid: pod for uid, pod in pods.items() if uid not in proposal.uids}
        return cls(demands if comparable else None, added)

    def suffices(self, evicted: Collection[PodUid]) -> bool:
        """Report whether the added pods among the evicted ones free as much as the replaced victims."""
        if self.required is None:
            return False
        freed = [pod.demand for uid, pod in self.pods.items() if uid in evicted and pod.demand is not None]
        return not self.required or covers(freed, self.required)


def conclude(search: Search[T], fits: Callable[[Collection[PodUid]], bool]) -> T:
    """Run a search to its end. fits: whether the pod fits without those pods."""
    try:
        evicted = next(search)
        while True:
            evicted = search.send(fits(evicted))
    except StopIteration as end:
        return cast("T", end.value)


def _important_first(pods: Iterable[Occupant]) -> list[Occupant]:
    """Sort by priority, the higher first, then by start, the earlier first; by UID to be the same always."""
    return sorted(pods, key=_rank)


def _reprieve(
    evicted: set[PodUid], bundles: Iterable[Collection[PodUid]], replaced: _Replaced
) -> Search[None]:
    """Put back each pod without which the others suffice, with those that it goes with."""
    for bundle in bundles:
        remaining = evicted.difference(bundle)
        if evicted.isdisjoint(bundle) or not replaced.suffices(remaining):
            continue
        if (yield remaining):
            evicted.difference_update(bundle)


def _replace(
    evicted: set[PodUid], victims: Iterable[Occupant], added: Iterable[Occupant], violating: Violating
) -> Search[None]:
    """Put back the victims whose place those that were added take."""
    demands = {pod.uid: pod.demand for pod in victims if pod.demand is not None}
    freed = [pod.demand for pod in added if pod.demand is not None]
    kept_pods: set[PodUid] = set()
    for uid in _reprieve_order(victims, violating):
        tried = {*kept_pods, uid}
        if (
            uid in demands
            and covers(freed, [demands[victim] for victim in tried])
            and (yield evicted - {uid})
        ):
            evicted.discard(uid)
            kept_pods = tried


def _victims(
    proposal: Proposal, remaining: Iterable[PodUid], added: Iterable[Occupant], violating: Violating
) -> Victims:
    """Return the victims, with the scheduler's count of violations changed by the difference in victims.

    The scheduler's own count is the base, because it knows more pods and budgets.
    """
    uids = _in_order(proposal, remaining, added)
    violations_before = violating(_important_first(proposal.occupants.values()))
    after = violating(_important_first([*_occupants(proposal, uids), *added]))
    return Victims(uids, max(0, proposal.violations + len(after) - len(violations_before)))


def _occupants(proposal: Proposal, uids: Iterable[PodUid]) -> list[Occupant]:
    return [proposal.occupants[uid] for uid in uids if uid in proposal.occupants]


def _reprieve_order(pods: Iterable[Occupant], violating: Violating) -> list[PodUid]:
    ordered = _important_first(pods)
    protected = violating(ordered)
    return [pod.uid for pod in sorted(ordered, key=lambda pod: pod.uid not in protected)]


def _rank(pod: Occupant) -> tuple[int, str, str]:
    return -pod.priority, pod.started or NOT_STARTED, pod.uid


def _in_order(
    proposal: Proposal, remaining: Iterable[PodUid], added: Iterable[Occupant]
) -> tuple[PodUid, ...]:
    """Return the victims in order. The scheduler's order stands: it takes the first priority as highest.

    An unknown pod holds no interfaces, and is taken to be the lesser.
    """
    ordered, occupants = list(remaining), dict(proposal.occupants)
    for pod in _important_first(added):
        lesser = (
            index
            for index, uid in enumerate(ordered)
            if uid not in occupants or _rank(pod) < _rank(occupants[uid])
        )
        ordered.insert(next(lesser, len(ordered)), pod.uid)
        occupants[pod.uid] = pod
    return tuple(ordered)
