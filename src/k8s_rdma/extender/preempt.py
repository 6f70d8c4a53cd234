"""preempt: the nodes on which evictions make a pod fit, and their victims.

preempt makes no promise. A victim's interfaces count as free in this one question only. For all other
questions they count until the victim's node does not report them any more, and the waiting pod is bound no
sooner. Until then its room is held for it (`extender.scheduler_cache`).

kube-scheduler's victims are corrected by `core.preemption`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NoReturn, TypeAlias, TypeVar, cast

from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.preemption import (
    BoundGroup,
    Occupant,
    Proposal,
    Search,
    Together,
    Victims,
    correct,
    together,
)
from k8s_rdma.core.types import Gang, NodeName, PodUid
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.extender.decision_log import FIT, NOTHING_ASKED, STARTING, DecisionLog, Outcome
from k8s_rdma.extender.node_source import NodeSource
from k8s_rdma.extender.nominated_pods import NominatedRoom
from k8s_rdma.extender.scheduler_cache import SchedulerCache
from k8s_rdma.extender.search_queue import SearchQueue, Turn
from k8s_rdma.kube.informer import Changed, Deleted, Event, Listed, follow
from k8s_rdma.wire.extender import (
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    MetaPod,
    MetaVictims,
    VictimPod,
)
from k8s_rdma.wire.pod_spec import demand_of

if TYPE_CHECKING:
    from k8s_rdma.extender.node_cache import NodeSnapshot
    from k8s_rdma.extender.pod_requests import PendingPod
    from k8s_rdma.kube.api import BudgetView, ClusterApi

    Fits: TypeAlias = "Callable[[Collection[PodUid]], Awaitable[bool]]"

T = TypeVar("T")


_MAX_BUDGETS = 1000
"""The limit for a namespace's budgets, because all of them are compared with each pod of a node."""

BUDGETS_UNKNOWN = "budgets_unknown"
"""The reason for naming no node before disruption budgets have been read. They may forbid any eviction."""

WAITING = "waiting"
"""The reason for naming no node if the pod's room is being made already, or if the nodes on which room is
made for other pods are not known yet."""

PREEMPTION_POLICY = "preemption_policy"
"""The reason for naming no node to a pod whose group has `preemptionPolicy: Never`."""

_NOBODY: Collection[PodUid] = ()

_IN_VAIN = 5
"""The limit of a call that has found no node, as a multiple of `search_s`."""

_PLACING_S = 0.05
"""The limit of processor time for placing the pod on the nodes that were found."""


class Budgets:
    """The budgets of the cluster; while they cannot be read, the last known ones.

    synced: whether they have been listed or may be ignored; until then no pod may be chosen for eviction.
    awaited: whether a call chose no victims for this reason.
    """

    def __init__(self, budgets: Iterable[BudgetView] = (), *, synced: bool = True) -> None:
        self.synced = synced
        self.awaited = False
        self._list(budgets)

    def _list(self, budgets: Iterable[BudgetView]) -> None:
        self._namespaces: dict[str, dict[str, BudgetView]] = {}
        for budget in budgets:
            self._namespaces.setdefault(budget.namespace, {})[budget.name] = budget

    def on_event(self, event: Event[BudgetView]) -> None:
        """Handle an event of the watch."""
        match event:
            case Listed(budgets):
                self.synced = True
                self._list(budgets)
            case Changed(budget):
                self._namespaces.setdefault(budget.namespace, {})[budget.name] = budget
            case Deleted(budget):
                remaining = self._namespaces.get(budget.namespace, {})
                remaining.pop(budget.name, None)
                if not remaining:
                    self._namespaces.pop(budget.namespace, None)

    def spent_by(self, pod: Occupant) -> tuple[BudgetView, ...]:
        """Return the budgets that the pod's eviction spends."""
        if not pod.labels:
            return ()
        of_namespace = self._namespaces.get(pod.namespace, {}).values()
        return tuple(
            budget
            for budget in islice(of_namespace, _MAX_BUDGETS)
            if pod.name not in budget.disrupted and budget.selector(pod.labels)
        )


def violating(pods: Iterable[Occupant], spent: Mapping[PodUid, Iterable[BudgetView]]) -> Collection[PodUid]:
    """Return the pods whose eviction, in this order, would violate a budget.

    spent: the budgets that each pod's eviction spends.
    """
    evictions: Counter[tuple[str, str]] = Counter()
    beyond: dict[PodUid, None] = {}
    for pod in pods:
        for budget in spent.get(pod.uid, ()):
            evictions[budget.namespace, budget.name] += 1
            if evictions[budget.namespace, budget.name] > budget.allowed:
                beyond[pod.uid] = None
    return beyond.keys()


async def follow_budgets(api: ClusterApi, budgets: Budgets, on_synced: Callable[[], None]) -> NoReturn:
    """Keep the budgets up to date. on_synced: called when they become known after `Budgets.awaited` was set.

    A refused request is repeated within 1 to 30 s, because an API server that has just started refuses every
    client (403) until it has read its roles.
    """

    def on_event(event: Event[BudgetView]) -> None:
        budgets.on_event(event)
        if budgets.synced and budgets.awaited:
            budgets.awaited = False
            on_synced()

    await follow("disruption budgets", api.follow_budgets, on_event, first_retry_s=1.0)


async def _run(search: Search[T], fits: Fits) -> T:
    """Run a search. fits: whether the pod fits without those pods; it lets others run in between."""
    try:
        evicted = next(search)
        while True:
            evicted = search.send(await fits(evicted))
    except StopIteration as end:
        return cast("T", end.value)


@dataclass(slots=True, kw_only=True)
class Preempting:
    """Answers preempt.

    clock, ready, max_age_s: as in `Scheduling`.
    queue: as in `FeasibilityChecker`.
    search_s: if a call has taken so much processor time and found a node, it does not search the rest.
    choice_s: how long a call waits for the scheduler's choice among nodes that were answered for other pods.
    gang_s: how long a call waits for PodGroups that are not known yet.
    """

    cache: SchedulerCache
    states: NodeSource
    budgets: Budgets
    decision_log: DecisionLog
    clock: Callable[[], float]
    ready: Callable[[], bool]
    queue: SearchQueue = field(default_factory=SearchQueue)
    max_age_s: float = 1.0
    search_s: float = 1.0
    choice_s: float = 1.0
    gang_s: float = 0.5

    async def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        """Return the nodes on which evictions help, with the victims; a single node causes no exception."""
        began, victims_by_node = self.clock(), args.by_uid()
        try:
            pod = self.cache.requests.parse(args.pod)
        except MalformedError as error:
            return self._answer(args, began, {}, error.reason)
        if not pod.request:
            return self._answer(args, began, victims_by_node, NOTHING_ASKED)
        pod = await self._with_gang(pod)
        await self.cache.addresses.search(pod, self.queue)
        if obstacle := self._obstacle(pod):
            return self._answer(args, began, {}, obstacle)
        nominated_nodes = self.cache.nominations.refused(pod.uid) - victims_by_node.keys()
        names = [NodeName(name) for name in victims_by_node]
        await self.states.refresh([*names, *nominated_nodes], newer_than=self.clock() - self.max_age_s)
        if any(self._comes_to_fit(pod, node) for node in nominated_nodes):
            return self._answer(args, began, {}, WAITING)
        readable = [*filter(self.cache.state.snapshots.__contains__, names)]
        await self.cache.nominations.wait_for_choices(pod, readable, self.choice_s)
        undecided = self.cache.nominations.undecided(pod)
        candidates = {node: victims_by_node[node] for node in readable if node not in undecided}
        if readable and not candidates:
            return self._answer(args, began, {}, WAITING)
        await self._know_gangs(candidates)
        chosen = await self._search(pod, args, candidates)
        placed = self._places(pod, chosen)  # the first nodes that were found may be taken by now
        if placed:
            rooms = {
                node: NominatedRoom(interfaces, chosen[node].uids) for node, interfaces in placed.items()
            }
            self.cache.nominations.answered(pod, rooms)
        victims = {str(node): _meta(chosen[node]) for node in placed}
        return self._answer(args, began, victims, FIT if victims else Reason.INSUFFICIENT)

    def _obstacle(self, pod: PendingPod) -> str:
        """Return the reason why no pod may be evicted for this one now; empty if one may."""
        if not self.ready():
            return STARTING
        if pod.gang is not None and not self.cache.gangs.may_preempt(pod.gang):
            return PREEMPTION_POLICY
        if self.cache.addresses.conflict(pod):
            return Reason.ADDRESS_IN_USE
        if not self.budgets.synced:
            self.budgets.awaited = True
            return BUDGETS_UNKNOWN
        return ""

    async def _with_gang(self, pod: PendingPod) -> PendingPod:
        """Read the pod's PodGroup, whose priority counts; without a PodGroup the pod's own does."""
        if pod.gang is not None:
            await self.cache.gangs.know([pod.gang], self.gang_s)
        return self.cache.gangs.judge(pod)

    async def _know_gangs(self, nodes: Iterable[NodeName]) -> None:
        """Read the PodGroups of the pods on the nodes, because the pods of a group may go together."""
        pods = self.cache.pods
        gangs = (pods.gang_of(uid) for node in nodes for uid in pods.occupant_uids(node))
        await self.cache.gangs.know(filter(None, gangs), self.gang_s)

    def _together(self, pod: PendingPod, node: NodeName, lesser: Iterable[Occupant]) -> Together:
        """Return the pods that go together, and those that must stay because their gang cannot go whole."""
        gangs = map(self.cache.pods.gang_of, self.cache.pods.occupant_uids(node))
        groups = map(self._bound_group, dict.fromkeys(filter(None, gangs)))
        return together(groups, [occupant.uid for occupant in lesser], node, pod.priority)

    def _bound_group(self, gang: Gang) -> BoundGroup:
        group = self.cache.gangs.group(gang)
        return BoundGroup(
            homes=self.cache.pods.homes(gang),
            disrupted_together=self.cache.gangs.disrupted_together(gang),
            priority=group.priority if group is not None else None,
        )

    async def _search(
        self, pod: PendingPod, args: ExtenderPreemptionArgs, victims_by_node: Mapping[NodeName, MetaVictims]
    ) -> dict[NodeName, Victims]:
        """Search node by node, between other work, because each pod of each node may take a search.

        victims_by_node: only nodes that can be read, because evictions do not help on others.
        """
        found: dict[NodeName, Victims] = {}
        async with self.queue.turn(pod.namespace) as turn:
            for node, victims in victims_by_node.items():
                lesser = self._lesser(pod, node)
                proposal = self._proposal(args, node, victims, self._together(pod, node, lesser))
                chosen = await self._choose_on(pod, node, proposal, lesser, turn)
                if chosen is not None:
                    found[node] = chosen
                if turn.used_s > self.search_s * (1 if found else _IN_VAIN):
                    break
                await turn.give_way()
        return found

    async def _choose_on(
        self, pod: PendingPod, node: NodeName, proposal: Proposal, lesser: Sequence[Occupant], turn: Turn
    ) -> Victims | None:
        spent: dict[PodUid, tuple[BudgetView, ...]] = {}
        for occupant in (*lesser, *proposal.occupants.values()):
            spent[occupant.uid] = self.budgets.spent_by(occupant)
            await turn.give_way()

        async def fits(evicted: Collection[PodUid]) -> bool:
            await turn.give_way()
            snapshot = self._snapshot(pod, node, evicted)
            if snapshot is None or not self._fits(pod, snapshot):
                return False
            return self.cache.limits.refusal(pod.namespace, pod.uid, pod.request, excluded=evicted) is None

        return await _run(correct(proposal, lesser, partial(violating, spent=spent)), fits)

    def _places(
        self, pod: PendingPod, chosen: Mapping[NodeName, Victims]
    ) -> dict[NodeName, tuple[PlacedInterface, ...]]:
        """Place the pod on the nodes without the victims; only on the first ones if that takes long.

        No other code runs in between. So the answer and the holds have the nodes' state of now.
        """
        places: dict[NodeName, tuple[PlacedInterface, ...]] = {}
        began_s = self.queue.clock()
        for node, choice in chosen.items():
            if places and self.queue.clock() - began_s > _PLACING_S:
                break
            snapshot = self._snapshot(pod, node, choice.uids)
            found = self.cache.fit_cache.place(pod.request, snapshot) if snapshot else None
            if isinstance(found, Placement):
                places[node] = found.interfaces
        self.queue.bill(pod.namespace, self.queue.clock() - began_s)
        return places

    def _lesser(self, pod: PendingPod, node: NodeName) -> list[Occupant]:
        """Return the pods that could be evicted: of lower priority, with interfaces, and not terminating."""
        facts = self.cache.state.facts(node)
        holding = self.cache.state.reservations(node).keys() | (facts.reported.keys() if facts else set())
        terminating = self.cache.pods.terminating(node)
        return [
            occupant
            for uid, occupant in self.cache.pods.occupants(node).items()
            if occupant.priority < pod.priority and uid in holding and uid not in terminating
        ]

    def _snapshot(
        self, pod: PendingPod, node: NodeName, evicted: Collection[PodUid] = _NOBODY
    ) -> NodeSnapshot | None:
        """Return the node without those pods and without the pods that are terminating anyway."""
        return self.cache.snapshot(
            pod,
            node,
            assumed=self.cache.assumed_pods.promised(node, pod),
            excluded={pod.uid, *evicted, *self.cache.pods.terminating(node)},
        )

    def _comes_to_fit(self, pod: PendingPod, node: NodeName) -> bool:
        """Report whether the room made for the pod there is free, or comes free without other evictions.

        A victim's object may be gone before its node has the VFs back, or before this process has heard of
        the victim's end. The scheduler then sees no terminating pod, and would evict other pods elsewhere. It
        would do the same if the VFs came back after the filter call.
        """
        snapshot = self._snapshot(pod, node, self.cache.nominations.victims(node, pod.uid))
        return snapshot is not None and self._fits(pod, snapshot)

    def _fits(self, pod: PendingPod, snapshot: NodeSnapshot) -> bool:
        return self.cache.fit_cache.fits(pod.request, snapshot, pod.namespace)

    def _proposal(
        self, args: ExtenderPreemptionArgs, node: NodeName, victims: MetaVictims, together: Together
    ) -> Proposal:
        uids = tuple(map(PodUid, victims.uids))
        whole = (args.node_name_to_victims or {}).get(node)
        pods = whole.pods or () if whole else ()
        known_occupants = {PodUid(pod.metadata.uid): _occupant(pod) for pod in pods}
        occupants = self.cache.pods.occupants(node)
        return Proposal(
            uids=uids,
            occupants={**{uid: occupants[uid] for uid in uids if uid in occupants}, **known_occupants},
            terminating=frozenset(self.cache.pods.terminating(node)),
            violations=victims.num_pdb_violations,
            replaceable=not args.pod.spec.depends_on_neighbours,
            bundles=together.bundles,
            untouchable=together.untouchable,
        )

    def _answer(
        self, args: ExtenderPreemptionArgs, began: float, victims: Mapping[str, MetaVictims], reason: str
    ) -> ExtenderPreemptionResult:
        meta, count, candidates = args.pod.metadata, len(victims), args.count
        self.decision_log.record(
            Outcome(
                verb="preempt",
                pod=f"{meta.namespace}/{meta.name}",
                uid=meta.uid,
                candidates=candidates,
                reason=reason,
                reasons=Counter({FIT: count, "dropped": candidates - count}),
                duration_s=self.clock() - began,
            )
        )
        return ExtenderPreemptionResult(node_name_to_meta_victims=victims)


def _meta(chosen: Victims) -> MetaVictims:
    return MetaVictims(pods=[MetaPod(uid) for uid in chosen.uids], num_pdb_violations=chosen.violations)


def _occupant(pod: VictimPod) -> Occupant:
    meta = pod.metadata
    return Occupant(
        uid=PodUid(meta.uid),
        namespace=meta.namespace or "",
        name=meta.name,
        priority=pod.spec.priority or 0,
        started=pod.status.start_time or "",
        demand=demand_of(pod.spec),
        labels=meta.labels or {},
    )
