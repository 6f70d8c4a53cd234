"""Tell kube-scheduler that capacity or a namespace's limit came free, by touching a node object.

An annotation that changes is a cluster event, upon which the scheduler tries refused pods again within
0.05 s; without one it would wait up to 5 minutes. Schedulers before 1.30 heed labels alone (source:
`nodeSchedulingPropertiesChange`, `pkg/scheduler/eventhandlers.go`). Nobody filters in the meantime, so the
nodes that refused somebody are asked for as long as somebody waits.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma.extender.verbs.decisions import Fit
from k8s_rdma.extender.waking.waiting import Limited
from k8s_rdma.kube.api import ApiRefusedError, ApiUncertainError, ApiUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from k8s_rdma.core.ids import NodeName, PodUid
    from k8s_rdma.core.request import Request
    from k8s_rdma.extender.cluster.limits import Limits
    from k8s_rdma.extender.cluster.pending import PendingPod
    from k8s_rdma.extender.cluster.state import ClusterState, Situation
    from k8s_rdma.extender.sources.node_states import NodeStates
    from k8s_rdma.extender.verbs.decisions import Decisions
    from k8s_rdma.extender.waking.waiting import Waiting
    from k8s_rdma.kube.api import ClusterApi

ANNOTATION = "k8s-rdma.io/capacity-freed"
"""Its value is the time of the touch; only that it changes matters. Of the label, too."""

NEVER = float("-inf")
_POLLED_AT_ONCE = 1000
_KEPT_NODES = 64
"""Of those that a pod was asked about when a limit refused it: schedulers without queueing hints try a pod
again only if the touched node fits it otherwise (source: `preCheckForNode`, `eventhandlers.go`)."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often, in seconds, and how.

    poll_s: a node of interest is asked. touch_s: the same node is touched at most, and five times that
    after a failure. gap_s: between any two touches. by_label: a label is changed, and no annotation.
    """

    poll_s: float = 1.0
    touch_s: float = 1.0
    gap_s: float = 0.1
    by_label: bool = False


def touch_time(at: datetime) -> str:
    """Write the value of annotation or label; deploy/policies/extender.yaml holds it to this form."""
    return at.strftime("%Y%m%dT%H%M%S.%fZ")


class Toucher:
    """Notices what helps waiting pods, and touches those nodes.

    `changed` is to be told of every change of a situation, `freed` of every namespace that holds less; `poll`
    and `touch` run for as long as the process does.
    """

    def __init__(
        self,
        waiting: Waiting,
        decisions: Decisions,
        api: ClusterApi,
        clock: Callable[[], float],
        pace: Pace | None = None,
    ) -> None:
        self.touches = 0
        self._waiting = waiting
        self._decisions = decisions
        self._api = api
        self._clock = clock
        self._pace = pace or Pace()
        self._somebody_waits = asyncio.Event()
        self._something_changed = asyncio.Event()
        self._changed: dict[NodeName, Situation | None] = {}
        self._due: dict[NodeName, float] = {}
        self._touched: dict[NodeName, float] = {}
        self._freed: dict[str, None] = {}
        self._unknown: Callable[[], Collection[NodeName]] | None = None

    def refused(self, uid: PodUid, request: Request, nodes: Iterable[NodeName]) -> None:
        """No node fits the pod; these refused it for a reason that may pass."""
        self._waiting.refuse(uid, request, nodes, self._clock())
        self._somebody_waits.set()

    def limited(self, pod: PendingPod, nodes: Sequence[NodeName]) -> None:
        """The limit of its namespace refused the pod, for now, which may go to these nodes otherwise."""
        some = tuple(nodes[:: -(-len(nodes) // _KEPT_NODES) or 1])
        refused = Limited(namespace=pod.namespace, uid=pod.uid, request=pod.request, nodes=some)
        self._waiting.limit(refused, self._clock())
        self._somebody_waits.set()

    def settled(self, uid: PodUid) -> None:
        """The pod fits somewhere, is bound, or is gone."""
        self._waiting.settle(uid)

    def settle_missing(self, listed: Collection[PodUid], since: float) -> None:
        """The pods that wait since before that time and are not listed are gone."""
        for uid in self._waiting.pods_before(since):
            if uid not in listed:
                self.settled(uid)

    def changed(self, node: NodeName, before: Situation | None, _after: Situation | None) -> None:
        """The node's situation is another one."""
        if self._waiting.interesting(node):
            self._changed.setdefault(node, before)
            self._something_changed.set()

    def released(self, node: NodeName) -> None:
        """What was held on the node for a pod that is not bound is not held any more."""
        if self._waiting.interesting(node):
            self._changed[node] = None
            self._something_changed.set()

    def try_all(self, nodes: Callable[[], Collection[NodeName]]) -> None:
        """Touch one of these nodes, once they are known: pods may wait of whom nothing is known here."""
        self._unknown = nodes
        self._something_changed.set()

    def freed(self, namespace: str) -> None:
        """The namespace's pods hold less."""
        if self._waiting.limited(namespace):
            self._freed[namespace] = None
            self._something_changed.set()

    async def poll(self, states: NodeStates, limits: Limits) -> NoReturn:
        """Keep asking the nodes of interest while somebody waits, and those that say what limits are for."""
        while True:
            await self._somebody_waits.wait()
            self._waiting.expire(self._clock())
            limited = (limits.nodes(namespace) for namespace in self._waiting.namespaces())
            nodes = list(dict.fromkeys(chain(self._waiting.nodes(), *limited)))
            for start in range(0, len(nodes), _POLLED_AT_ONCE):
                await asyncio.sleep(self._pace.poll_s)
                some = nodes[start : start + _POLLED_AT_ONCE]
                await states.refresh(some, since=self._clock() - self._pace.poll_s / 2)
            if self._waiting.namespaces() and not nodes:
                await asyncio.sleep(self._pace.poll_s)
            elif not nodes:
                self._somebody_waits.clear()

    async def touch(self, state: ClusterState, limits: Limits, leads: Callable[[], bool]) -> NoReturn:
        """Touch the nodes whose change helps, at the pace; none while this replica does not lead."""
        while True:
            await self._wait_for_something()
            for node in list(self._changed):
                if await self._helps(self._changed.pop(node), state.situations.get(node)):
                    self._want(node)
            while self._freed:
                await self._serve(self._freed.popitem()[0], state, limits)
            if not leads():
                if self._due or self._unknown:
                    self._something_changed.set()
                    await asyncio.sleep(self._pace.touch_s)
                continue
            if self._unknown:
                for node in _likeliest(self._unknown(), state):
                    self._want(node)
                self._unknown = None
            now = self._clock()
            for node in [node for node, not_before in self._due.items() if not_before <= now]:
                await self._touch(node)
                await asyncio.sleep(self._pace.gap_s)

    def _want(self, node: NodeName) -> None:
        self._due.setdefault(node, self._touched.get(node, NEVER) + self._pace.touch_s)

    async def _serve(self, namespace: str, state: ClusterState, limits: Limits) -> None:
        """Touch a node that fits a pod which the limit refuses no more; where none does, it waits for one."""
        for pod in self._waiting.limited(namespace):
            if limits.refusal(namespace, pod.uid, pod.request):
                continue
            node = await self._fitting(pod, state)
            if node is not None:
                self._want(node)
                return
            self._waiting.refuse(pod.uid, pod.request, state.situations, self._clock())

    async def _fitting(self, pod: Limited, state: ClusterState) -> NodeName | None:
        """If possible one that the scheduler thinks of. Looks between other work, as `_helps`."""
        situations = state.situations
        one_of = {situations[node]: node for node in pod.nodes if node in situations}
        one_of |= {each: node for node, each in situations.items() if each not in one_of}
        for situation, node in one_of.items():
            if self._fits(pod.request, situation):
                return node
            await asyncio.sleep(0)
        return None

    async def _helps(self, before: Situation | None, after: Situation | None) -> bool:
        """Whether a pod that waits may fit a node that went from one situation to the other.

        None is a node that could not be read, which refuses everyone. Looks between other work: each
        verdict may have to be searched for.
        """
        if after is None:
            return False
        for request in self._waiting.requests():
            if self._fits(request, after) and not (before and self._fits(request, before)):
                return True
            await asyncio.sleep(0)
        return False

    def _fits(self, request: Request, situation: Situation) -> bool:
        return isinstance(self._decisions.verdict(request, situation), Fit)

    async def _wait_for_something(self) -> None:
        next_due = min(self._due.values(), default=None)
        try:
            async with asyncio.timeout(None if next_due is None else max(0.0, next_due - self._clock())):
                await self._something_changed.wait()
        except TimeoutError:
            return
        self._something_changed.clear()

    async def _touch(self, node: NodeName) -> None:
        del self._due[node]
        now = self._clock()
        # Before the write: whoever the node refuses from here on may have been tried before the event came.
        self._waiting.touched(node)
        try:
            await self._mark(node, touch_time(datetime.now(UTC)))
        except ApiRefusedError as error:
            _log.warning("touch_refused", node=node, error=error.message)
            return
        except (ApiUnreachableError, ApiUncertainError) as error:
            _log.warning("touch_failed", node=node, error=error.message)
            self._due[node] = now + 5 * self._pace.touch_s
            return
        self.touches += 1
        self._touched = {n: at for n, at in self._touched.items() if at + self._pace.touch_s > now}
        self._touched[node] = now
        _log.info("touch", node=node, waiting=len(self._waiting), duration_s=round(self._clock() - now, 6))

    async def _mark(self, node: NodeName, when: str) -> None:
        mark = self._api.label_node if self._pace.by_label else self._api.annotate_node
        await mark(node, ANNOTATION, when)


def _likeliest(nodes: Collection[NodeName], state: ClusterState) -> list[NodeName]:
    """The one of the nodes that pods of whom nothing is known would rather go to: it has PFs.

    Schedulers without queueing hints try a pod again only if it may go to the touched node, as to one of the
    control plane it may not as a rule.
    """
    known = state.situations

    def has_none(node: NodeName) -> bool:
        return node not in known or not known[node].inventory.pfs

    return sorted(nodes, key=lambda node: (has_none(node), node))[:1]
