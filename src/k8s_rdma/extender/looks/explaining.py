"""Why each node takes a pod or does not: what filter would answer now, and what that is made of.

One explanation at a time, in between other work: none of its slices holds up a filter for longer than one
search does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from k8s_rdma.core.ids import NodeName
from k8s_rdma.core.request import PfPolicy
from k8s_rdma.extender.cluster.limits import Limits
from k8s_rdma.extender.cluster.state import ClusterState, Situation
from k8s_rdma.extender.looks.node_look import Groups, Seen, look_at
from k8s_rdma.extender.looks.pod_look import KnownPod, PodLook, asked_of
from k8s_rdma.extender.sources.node_states import NodeStates
from k8s_rdma.extender.verbs.verdicts import Verdicts
from k8s_rdma.wire.explain import Explanation, ExtenderState, Group, Limit, NodeLook, Refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from k8s_rdma.core.request import Request

    PodState: TypeAlias = Literal[
        "bound", "binding", "finished", "nominated", "refused", "waiting", "no-rdma"
    ]

_SLICE_S = 0.001
_SEARCH_S = 5.0
_ASK_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which nodes are to be shown one by one: these, or every one; else all in groups."""

    nodes: tuple[NodeName, ...] = ()
    every: bool = False


GROUPS = Wanted()


@dataclass(slots=True, kw_only=True)
class Explaining:
    """Explains.

    nodes: the names of all that are known. role: what to say of this process. clock: seconds, monotonic.
    max_age_s: a node's state that is younger is not asked for again.
    """

    pods: PodLook
    state: ClusterState
    states: NodeStates
    verdicts: Verdicts
    limits: Limits
    nodes: Callable[[], Collection[NodeName]]
    role: Callable[[], ExtenderState]
    clock: Callable[[], float]
    max_age_s: float
    _turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    async def explain(self, namespace: str, name: str, wanted: Wanted = GROUPS) -> Explanation | str:
        """The document; or why there is none."""
        async with self._turn:
            pod = await self.pods.find(namespace, name)
            return pod if isinstance(pod, str) else await self._explain(pod, wanted)

    async def _explain(self, pod: KnownPod, wanted: Wanted) -> Explanation:
        names = sorted(self.nodes())
        groups: tuple[Group, ...] = ()
        looks: tuple[NodeLook, ...] = ()
        if pod.request and not (pod.view and pod.view.finished):
            shown = wanted.nodes or names
            await self._refresh(shown)
            seen = self._see(pod, pod.request, shown)
            if wanted.nodes or wanted.every:
                decisions = self.verdicts.decisions
                looks = tuple([look_at(each, pod.request, decisions) async for each in seen])
            else:
                groups = await self._grouped(seen, pod.request)
        return self._document(pod, len(names), groups, looks)

    def _document(
        self, pod: KnownPod, known: int, groups: tuple[Group, ...], looks: tuple[NodeLook, ...]
    ) -> Explanation:
        refused = self._refused(pod)
        interfaces = pod.request.interfaces if pod.request else ()
        return Explanation(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            extender=self.role(),
            state=self._state_of(pod, refused=refused is not None),
            priority=pod.priority,
            interfaces=asked_of(pod.request) if pod.request else (),
            reserved_mbps=sum(each.min_tx_rate_mbps for each in interfaces),
            policy=pod.request.policy if pod.request else PfPolicy.ANY,
            malformed=pod.malformed,
            not_allowed=pod.not_allowed,
            places=self.pods.places(pod),
            nominated="" if self._stale(pod) else self._nominated(pod),
            refused=refused,
            limit=self._limit(pod),
            limit_refusal=self._beyond(pod),
            nodes_known=known,
            groups=groups,
            nodes=looks,
            notes=(*pod.notes, *self.pods.skipped(pod), *self._stale(pod)),
        )

    def _nominated(self, pod: KnownPod) -> str:
        return (pod.view.nominated or "") if pod.view else ""

    def _stale(self, pod: KnownPod) -> tuple[str, ...]:
        """What to know of a nomination for which nothing is held any more."""
        node = self._nominated(pod)
        if not node or not self.verdicts.nominations.expired(pod.uid):
            return ()
        note = (
            f"its status.nominatedNodeName is {node} still, where nothing is held for it any more, while "
            "kube-scheduler counts what it requests there against pods of no higher priority: if it does not "
            "come to be bound, clear that, see extender.md#preemption"
        )
        return (note,)

    def _refused(self, pod: KnownPod) -> Refused | None:
        attempt = self.pods.attempts.of(pod.uid)
        if attempt is None:
            return None
        return Refused(verb=attempt.outcome.verb, ago_s=round(self.clock() - attempt.at, 3), text=attempt.why)

    def _limit(self, pod: KnownPod) -> Limit | None:
        limit, held = self.limits.limit(pod.namespace), self.limits.held(pod.namespace)
        if limit is None:
            return None
        return Limit(
            used_mbps=held.mbps, limit_mbps=limit.reserved_mbps, used_vfs=held.vfs, limit_vfs=limit.vfs
        )

    def _beyond(self, pod: KnownPod) -> str:
        """What of the limit it does not keep to; of a bound pod that does not matter any more."""
        if not pod.request or (pod.view and pod.view.node):
            return ""
        return self.limits.refusal(pod.namespace, pod.uid, pod.request) or ""

    def _state_of(self, pod: KnownPod, *, refused: bool) -> PodState:
        if pod.view and pod.view.finished:
            return "finished"
        if pod.view and pod.view.node:
            return "bound"
        if pod.request is not None and not pod.request:
            return "no-rdma"
        if self.state.nodes_of(pod.uid):
            return "binding"
        if self._nominated(pod) and not self._stale(pod):
            return "nominated"
        return "refused" if refused or pod.malformed else "waiting"

    async def _refresh(self, names: Collection[NodeName]) -> None:
        """Have states that are young enough for a look; nobody waits long for a node that does not answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ASK_S):
                await self.states.refresh(names, since=self.clock() - self.max_age_s)

    async def _see(self, pod: KnownPod, request: Request, names: Iterable[NodeName]) -> AsyncIterator[Seen]:
        """What filter would say of each node, in slices."""
        decisions, began = self.verdicts.decisions, self.clock()
        sliced = began
        for node in names:
            if self.clock() - sliced > _SLICE_S:
                await asyncio.sleep(0)
                sliced = self.clock()
            situation = self._situation(pod, node)
            if situation is None:
                yield Seen(node, None, None, self.state.why_unreadable(node))
                continue
            verdict = decisions.known(request, pod.namespace).get(situation)
            if verdict is None and sliced - began < _SEARCH_S:
                verdict = decisions.verdict(request, situation, pod.namespace)
            yield Seen(node, situation, verdict)

    def _situation(self, pod: KnownPod, node: NodeName) -> Situation | None:
        """The node's for this pod: without what it holds itself, with what preemption made room for."""
        holding = self.verdicts.nominations.against(node, pod.uid, pod.priority)
        if holding or node in self.state.nodes_of(pod.uid):
            return self.state.situation_if(node, without=[pod.uid], holding=holding)
        return self.state.situations.get(node)

    async def _grouped(self, seen: AsyncIterator[Seen], request: Request) -> tuple[Group, ...]:
        groups = Groups()
        async for each in seen:
            groups.add(each)
        return await groups.documents(request, self.verdicts.decisions)
