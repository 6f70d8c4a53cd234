"""preempt: on which nodes evictions make a pod fit, and whose.

Nothing is promised here. What a victim frees counts as free in this one question only; for everybody else its
interfaces count until its node does not report them any more, and the pod that waits is bound no sooner. What
it is to get meanwhile is held for it (`nominating`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import NodeName, PodUid
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.extender.cluster.addresses import AddressCheck
from k8s_rdma.extender.cluster.expecting import Expecting
from k8s_rdma.extender.cluster.limits import Limits
from k8s_rdma.extender.cluster.nominating import Nominations, Room
from k8s_rdma.extender.cluster.occupants import Occupant, Occupants
from k8s_rdma.extender.cluster.state import ClusterState
from k8s_rdma.extender.sources.node_states import NodeStates
from k8s_rdma.extender.telling.outcomes import FIT, NOTHING_ASKED, STARTING, Outcome, Outcomes
from k8s_rdma.extender.verbs.budgets import Budgets
from k8s_rdma.extender.verbs.decisions import Decisions, Fit
from k8s_rdma.extender.verbs.requests import Requests
from k8s_rdma.extender.verbs.search_queue import SearchQueue
from k8s_rdma.extender.verbs.victims import Chosen, Sent, choose
from k8s_rdma.wire.extender import ExtenderPreemptionResult, MetaPod, MetaVictims
from k8s_rdma.wire.pod_spec import demand_of

if TYPE_CHECKING:
    from k8s_rdma.extender.cluster.pending import PendingPod
    from k8s_rdma.extender.cluster.state import Situation
    from k8s_rdma.extender.verbs.search_queue import Turn
    from k8s_rdma.wire.extender import ExtenderPreemptionArgs, VictimPod

BUDGETS_UNKNOWN = "budgets_unknown"
"""The reason for naming no node while disruption budgets were never read: nobody knows whose eviction they
forbid."""

WAITING = "waiting"
"""The reason for naming no node to a pod whose room is being made already."""

_NOBODY: Collection[PodUid] = ()

_IN_VAIN = 5
"""For how many times `search_s` a call goes on that has found no node."""

_PLACING_S = 0.05
"""Processor time for saying where the pod goes on the nodes that were found."""


@dataclass(slots=True, kw_only=True)
class Preempting:
    """Answers preempt.

    clock, ready, max_age_s: as in `Scheduling`. queue: as in `Verdicts`. search_s: once one call has taken so
    much processor time and found a node, the nodes that are left are not looked at.
    """

    state: ClusterState
    states: NodeStates
    decisions: Decisions
    requests: Requests
    occupants: Occupants
    budgets: Budgets
    limits: Limits
    addresses: AddressCheck
    nominations: Nominations
    expecting: Expecting
    outcomes: Outcomes
    clock: Callable[[], float]
    ready: Callable[[], bool]
    queue: SearchQueue = field(default_factory=SearchQueue)
    max_age_s: float = 1.0
    search_s: float = 1.0

    async def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        """The nodes on which evictions help, with the victims; never raises for the sake of a node."""
        began, asked = self.clock(), args.by_uid()
        try:
            pod = self.requests.ask(args.pod)
        except MalformedError as error:
            return self._answer(args, began, {}, error.reason)
        if not pod.request:
            return self._answer(args, began, asked, NOTHING_ASKED)
        await self.addresses.search(pod, self.queue)
        if obstacle := self._obstacle(pod):
            return self._answer(args, began, {}, obstacle)
        names = [NodeName(name) for name in asked]
        here = self.nominations.refused(pod.uid) - asked.keys()
        await self.states.refresh([*names, *here], since=self.clock() - self.max_age_s)
        if any(self._comes_to_fit(pod, node) for node in here):
            return self._answer(args, began, {}, WAITING)
        chosen = await self._search(pod, args)
        placed = self._places(pod, chosen)  # what was found first may be another's by now
        if placed:
            rooms = {node: Room(interfaces, chosen[node].uids) for node, interfaces in placed.items()}
            self.nominations.answered(pod, rooms)
        victims = {str(node): _meta(chosen[node]) for node in placed}
        return self._answer(args, began, victims, FIT if victims else Reason.INSUFFICIENT)

    def _obstacle(self, pod: PendingPod) -> str:
        """Why nobody may be evicted for the pod now, on whatever node; empty when somebody may."""
        if not self.ready():
            return STARTING
        if self.addresses.taken(pod):
            return Reason.ADDRESS_IN_USE
        if not self.budgets.known:
            self.budgets.awaited = True
            return BUDGETS_UNKNOWN
        return ""

    async def _search(self, pod: PendingPod, args: ExtenderPreemptionArgs) -> dict[NodeName, Chosen]:
        """Between other work: there may be a search for each pod of each node."""
        found: dict[NodeName, Chosen] = {}
        async with self.queue.turn(pod.namespace) as turn:
            for name, victims in args.by_uid().items():
                chosen = await self._on(pod, NodeName(name), self._sent(args, NodeName(name), victims), turn)
                if chosen is not None:
                    found[NodeName(name)] = chosen
                if turn.used_s > self.search_s * (1 if found else _IN_VAIN):
                    break
                await turn.give_way()
        return found

    async def _on(self, pod: PendingPod, node: NodeName, sent: Sent, turn: Turn) -> Chosen | None:
        async def fits(evicted: Collection[PodUid]) -> bool:
            await turn.give_way()
            situation = self._situation(pod, node, evicted)
            if situation is None or not self._fits(pod, situation):
                return False
            return self.limits.refusal(pod.namespace, pod.uid, pod.request, without=evicted) is None

        return await choose(sent, self._lesser(pod, node), self.budgets, fits)

    def _places(
        self, pod: PendingPod, chosen: Mapping[NodeName, Chosen]
    ) -> dict[NodeName, tuple[PlacedInterface, ...]]:
        """Where the pod fits on the nodes once the victims are gone; of the first ones if that takes long.

        Nothing else runs meanwhile: all of them are answered, and held, as they are now.
        """
        places: dict[NodeName, tuple[PlacedInterface, ...]] = {}
        began_s = self.queue.clock()
        for node, each in chosen.items():
            if places and self.queue.clock() - began_s > _PLACING_S:
                break
            situation = self._situation(pod, node, each.uids)
            found = self.decisions.place(pod.request, situation) if situation else None
            if isinstance(found, Placement):
                places[node] = found.interfaces
        self.queue.bill(pod.namespace, self.queue.clock() - began_s)
        return places

    def _lesser(self, pod: PendingPod, node: NodeName) -> list[Occupant]:
        """Who could be evicted for the pod: of lower priority, holding something, and not going anyway."""
        facts = self.state.facts(node)
        holding = self.state.reservations(node).keys() | (facts.reported.keys() if facts else set())
        going = self.occupants.going(node)
        return [
            other
            for uid, other in self.occupants.on(node).items()
            if other.priority < pod.priority and uid in holding and uid not in going
        ]

    def _situation(
        self, pod: PendingPod, node: NodeName, evicted: Collection[PodUid] = _NOBODY
    ) -> Situation | None:
        """The node once those are gone, and whoever goes by itself."""
        return self.state.situation_if(
            node,
            without={pod.uid, *evicted, *self.occupants.going(node)},
            holding={
                **self.expecting.promised(node, pod),
                **self.nominations.against(node, pod.uid, pod.priority),
            },
        )

    def _comes_to_fit(self, pod: PendingPod, node: NodeName) -> bool:
        """Whether the room made for the pod there is free by now, or comes free without anybody else going.

        A victim's object may be gone before its node has its VFs back, or before its end was heard of here;
        the scheduler, which then sees nobody going, would evict others elsewhere, also when the VFs came back
        since filter was asked.
        """
        situation = self._situation(pod, node, self.nominations.victims(node, pod.uid))
        return situation is not None and self._fits(pod, situation)

    def _fits(self, pod: PendingPod, situation: Situation) -> bool:
        return isinstance(self.decisions.verdict(pod.request, situation, pod.namespace), Fit)

    def _sent(self, args: ExtenderPreemptionArgs, node: NodeName, victims: MetaVictims) -> Sent:
        uids = tuple(map(PodUid, victims.uids))
        whole = args.node_name_to_victims or {}
        told = {PodUid(pod.metadata.uid): _occupant(pod) for pod in whole[node].pods or ()} if whole else {}
        here = self.occupants.on(node)
        return Sent(
            uids=uids,
            known={**{uid: here[uid] for uid in uids if uid in here}, **told},
            going=frozenset(self.occupants.going(node)),
            violations=victims.num_pdb_violations,
            replaceable=not args.pod.spec.minds_neighbours,
        )

    def _answer(
        self, args: ExtenderPreemptionArgs, began: float, victims: Mapping[str, MetaVictims], reason: str
    ) -> ExtenderPreemptionResult:
        asked, meta = args.by_uid(), args.pod.metadata
        kept = len(victims)
        self.outcomes.tell(
            Outcome(
                verb="preempt",
                pod=f"{meta.namespace}/{meta.name}",
                uid=meta.uid,
                candidates=len(asked),
                reason=reason,
                reasons=Counter({FIT: kept, "dropped": len(asked) - kept}),
                duration_s=self.clock() - began,
            )
        )
        return ExtenderPreemptionResult(node_name_to_meta_victims=victims)


def _meta(chosen: Chosen) -> MetaVictims:
    return MetaVictims(pods=[MetaPod(uid) for uid in chosen.uids], num_pdb_violations=chosen.violations)


def _occupant(pod: VictimPod) -> Occupant:
    meta = pod.metadata
    return Occupant(
        uid=PodUid(meta.uid),
        namespace=meta.namespace,
        name=meta.name,
        priority=pod.spec.priority or 0,
        started=pod.status.start_time,
        demand=demand_of(pod.spec),
        labels=meta.labels or {},
    )
