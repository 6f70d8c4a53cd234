"""Requeues refused pods: has kube-scheduler try them again when capacity or a namespace's limit came free.

RDMA capacity that comes free makes no cluster event. So a node object is touched: the change of its
annotation is an event, and the scheduler then tries refused pods again within 0.05 s. Without an event it
would wait up to 5 minutes. Schedulers before 1.30 react to labels alone (source:
`nodeSchedulingPropertiesChange`, `pkg/scheduler/eventhandlers.go`). No filter call comes during the wait, so
the nodes that refused a pod are asked for as long as it waits. Changed nodes are compared with the waiting
requests by namespace, so that one namespace does not wait for others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import structlog

from k8s_rdma.core.pf_use import NOTHING_USED
from k8s_rdma.core.pod_table import PodLimits, PodTable
from k8s_rdma.core.request import Request
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.extender.search_queue import SearchQueue, Turn
from k8s_rdma.extender.settled_pods import SettledPods
from k8s_rdma.kube.errors import ApiRefusedError, ApiUncertainError, ApiUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from k8s_rdma.extender.fit_cache import FitCache
    from k8s_rdma.extender.metrics import Reading
    from k8s_rdma.extender.node_cache import ClusterState, NodeSnapshot
    from k8s_rdma.extender.node_source import NodeSource
    from k8s_rdma.extender.pod_requests import PendingPod
    from k8s_rdma.extender.quota import Limits
    from k8s_rdma.kube.api import ClusterApi

_MAX_PODS = 10_000
MAX_INTERFACES = 100_000
"""The limit for interfaces of all waiting pods. Each takes 2 KiB at worst, and pods' owners decide their
number."""

_MAX_AGE_S = 900.0
"""kube-scheduler tries every refused pod again after 5 minutes at most. If it has not tried a pod for three
times as long, the pod waits for another reason, or its end was not seen."""


_MAX_COMPARED = 64
"""Requests that a change is compared with, those refused last. Any touch makes the scheduler try all pods."""

ANNOTATION = "k8s-rdma.io/capacity-freed"
"""The key of the annotation, and of the label. Its value is the time of the touch; only a change matters."""

NEVER = float("-inf")
_POLLED_AT_ONCE = 1000
_KEPT_NODES = 64
"""The limit for the kept candidates of a pod that a limit refused: schedulers without queueing hints try a
pod again only if the touched node fits it otherwise (source: `preCheckForNode`, `eventhandlers.go`)."""

_PAUSE_FACTOR = 4
"""The ratio of pause to work: waking pods takes at most a fifth of the processor."""
_FREE_S = 0.0002
"""Processor time of a look at a cached answer, which needs no pause."""
_FITTING_S = 0.2
"""Processor time for finding a node that fits one pod which a limit refuses no more."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """A pod that the limit of its namespace refused, and some of the nodes of its filter call."""

    namespace: str
    uid: PodUid
    request: Request
    nodes: tuple[NodeName, ...] = ()


@dataclass(frozen=True, slots=True)
class _Pod:
    """limited: whether the limit of its namespace refused it, and not nodes. together: with its gang."""

    namespace: str
    request: Request
    refused_at: float
    limited: bool = False
    together: bool = False


class UnschedulablePods:
    """Refused pods that wait, with their requests and the nodes that refused them.

    Nodes are not kept per pod, because a thousand pods may wait for five thousand nodes. A node is of
    interest if it refused any pod that may still be waiting.

    settled: the pods that wait no more; a refusal of such a pod was decided before it settled.
    """

    def __init__(self, settled: SettledPods | None = None) -> None:
        self._settled = SettledPods() if settled is None else settled
        self._pods: PodTable[_Pod] = PodTable(
            PodLimits(pods=_MAX_PODS, weight=MAX_INTERFACES, age_s=_MAX_AGE_S),
            weigh=lambda pod: len(pod.request.interfaces),
            owner=lambda pod: pod.namespace,
        )
        self._limited: dict[str, dict[PodUid, Limited]] = {}
        self._requests: dict[str, dict[Request, int]] = {}
        self._nodes: dict[NodeName, float] = {}
        self._together: Counter[tuple[str, Request]] = Counter()

    def __len__(self) -> int:
        """Return the number of waiting pods."""
        return len(self._pods.by_uid)

    def refuse(
        self, uid: PodUid, request: Request, nodes: Iterable[NodeName], now: float, namespace: str
    ) -> None:
        """Record a pod that no node fits. nodes: refused it for a reason that may pass."""
        if uid in self._settled:
            self.on_delete(uid)
            return
        self._add(uid, _Pod(namespace, request, now))
        requests = self._requests.setdefault(namespace, {})
        requests[request] = requests.pop(request, 0) + 1  # the last one refused comes last
        self._trim()
        self._nodes.update(dict.fromkeys(nodes, now))

    def gather(self, uid: PodUid) -> None:
        """Note that the pod waits for room with its gang, so that any room that comes free may help."""
        pod = self._pods.by_uid.get(uid)
        if pod is not None and not pod.together:
            self._pods.replace(uid, replace(pod, together=True))
            self._together[pod.namespace, pod.request] += 1

    def limit(self, pod: Limited, now: float) -> None:
        """Record a pod that its namespace's limit refused before any node was asked."""
        if pod.uid in self._settled:
            self.on_delete(pod.uid)
            return
        self._add(pod.uid, _Pod(pod.namespace, pod.request, now, limited=True))
        self._limited.setdefault(pod.namespace, {})[pod.uid] = pod
        self._trim()

    def on_delete(self, uid: PodUid) -> None:
        """Forget a pod that fits a node, is bound, or is gone."""
        if uid in self._pods.by_uid:
            self._remove(uid)
        if self._nodes and not self._pods.by_uid:
            self._nodes.clear()

    def pods_before(self, time: float) -> list[PodUid]:
        """Return the pods that were refused before that time, and not since."""
        return self._pods.entered_before(time)

    def expire(self, now: float) -> None:
        """Forget pods and nodes that no call has named for a long time."""
        for uid in self._pods.expired(now):
            self.on_delete(uid)
        limit = now - _MAX_AGE_S
        for node in [node for node, refused_at in self._nodes.items() if refused_at < limit]:
            del self._nodes[node]

    def nodes(self) -> list[NodeName]:
        """Return the nodes that refused a pod that may still wait."""
        return list(self._nodes)

    def interesting(self, node: NodeName) -> bool:
        """Report whether the node refused a pod that may still be waiting."""
        return node in self._nodes

    def touched(self, node: NodeName) -> None:
        """Note that the node was touched; every pod that it refuses again is recorded again."""
        self._nodes.pop(node, None)

    def requests(self) -> list[tuple[str, Request]]:
        """Return the namespaces and requests that wait for nodes; those refused last come first.

        If there are too many, each namespace has an equal number.
        """
        waiting = [
            [(namespace, request) for request in islice(reversed(requests), _MAX_COMPARED)]
            for namespace, requests in reversed(self._requests.items())
        ]
        rounds = zip_longest(*waiting[:_MAX_COMPARED])
        return list(islice(filter(None, chain.from_iterable(rounds)), _MAX_COMPARED))

    def waits(self, namespace: str, request: Request) -> bool:
        """Report whether a pod of the namespace waits with that request."""
        return request in self._requests.get(namespace, ())

    def wait_together(self, namespace: str, request: Request) -> bool:
        """Report whether a pod of a gang waits with that request."""
        return (namespace, request) in self._together

    def namespaces(self) -> list[str]:
        """Return the namespaces whose limit refused a pod that waits."""
        return list(self._limited)

    def limited(self, namespace: str) -> list[Limited]:
        """Return the pods that the namespace's limit refused; the one that waits for longest comes first."""
        return list(self._limited.get(namespace, {}).values())

    def _add(self, uid: PodUid, pod: _Pod) -> None:
        self._remove(uid)
        self._pods.put(uid, pod, pod.refused_at)

    def _trim(self) -> None:
        """Beyond the limits, drop the longest waiting pod of the namespace with most interfaces."""
        while (uid := self._pods.excess()) is not None:
            self._remove(uid)

    def _remove(self, uid: PodUid) -> None:
        pod = self._pods.pop(uid)
        if pod is None:
            return
        namespace = pod.namespace
        if pod.together:
            self._together[namespace, pod.request] -= 1
            if not self._together[namespace, pod.request]:
                del self._together[namespace, pod.request]
        if pod.limited:
            del self._limited[namespace][uid]
            if not self._limited[namespace]:
                del self._limited[namespace]
            return
        requests = self._requests[namespace]
        requests[pod.request] -= 1
        if not requests[pod.request]:
            del requests[pod.request]
        if not requests:
            del self._requests[namespace]


class Comparison(NamedTuple):
    """A namespace's waiting request, and a node.

    previous: the node's snapshot before its change; None if the node may help every pod that fits it now.
    """

    namespace: str
    node: NodeName
    previous: NodeSnapshot | None
    request: Request


class Backlog:
    """Comparisons still to be made. Each namespace has its nodes in the order in which they changed."""

    def __init__(self) -> None:
        self._requests: dict[str, dict[NodeName, list[Request]]] = {}
        self._previous: dict[NodeName, NodeSnapshot | None] = {}
        self._begun: set[NodeName] = set()

    def __bool__(self) -> bool:
        """Report whether comparisons are left."""
        return bool(self._requests)

    def put(
        self, node: NodeName, previous: NodeSnapshot | None, requests: Iterable[tuple[str, Request]]
    ) -> None:
        """Compare the node with these requests; they replace the node's outstanding comparisons.

        If no comparison of the earlier change has begun, both changes count as one.
        """
        if node in self._begun:
            previous = None
        elif previous is not None:
            previous = self._previous.get(node, previous)
        self.drop(node)
        for namespace, request in requests:
            self._previous[node] = previous
            self._requests.setdefault(namespace, {}).setdefault(node, []).append(request)

    def pop(self, used: Callable[[str], float]) -> Comparison:
        """Return the next comparison of the namespace that has used least; there must be one."""
        namespace = min(self._requests, key=used)
        node, requests = next(iter(self._requests[namespace].items()))
        self._begun.add(node)
        found = Comparison(namespace, node, self._previous[node], requests.pop(0))
        if not requests:
            self._end(namespace, node)
            if not any(node in nodes for nodes in self._requests.values()):
                self.drop(node)
        return found

    def drop(self, node: NodeName) -> None:
        """Drop the node's outstanding comparisons."""
        for namespace in [space for space, nodes in self._requests.items() if node in nodes]:
            self._end(namespace, node)
        self._previous.pop(node, None)
        self._begun.discard(node)

    def _end(self, namespace: str, node: NodeName) -> None:
        nodes = self._requests[namespace]
        del nodes[node]
        if not nodes:
            del self._requests[namespace]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The intervals of polling and touching, in seconds.

    poll_s: between two questions to a node of interest.
    requeue_s: at least between two touches of the same node; five times that after a failure.
    gap_s: between any two touches.
    by_label: whether a touch changes a label instead of an annotation.
    """

    poll_s: float = 1.0
    requeue_s: float = 1.0
    gap_s: float = 0.1
    by_label: bool = False


def touch_time(time: datetime) -> str:
    """Write the value of annotation or label; deploy/policies/extender.yaml holds it to this form."""
    return time.strftime("%Y%m%dT%H%M%S.%fZ")


class Requeuer:
    """Finds the nodes whose changes help waiting pods, and touches them.

    Call `on_node_change` at every change of a node's snapshot, and `freed` for every namespace that holds
    less; `poll` and `touch` run for as long as the process does.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what it knows, and whom it tells
        self,
        waiting: UnschedulablePods,
        fit_cache: FitCache,
        api: ClusterApi,
        clock: Callable[[], float],
        pace: Pace | None = None,
        queue: SearchQueue | None = None,
    ) -> None:
        self.touches = 0
        self._queue = queue or SearchQueue()
        self._waiting = waiting
        self._fit_cache = fit_cache
        self._api = api
        self._clock = clock
        self._pace = pace or Pace()
        self._somebody_waits = asyncio.Event()
        self._something_changed = asyncio.Event()
        self._nodes_changed = asyncio.Event()
        self._limits_freed = asyncio.Event()
        self._backlog = Backlog()
        self._due: dict[NodeName, float] = {}
        self._touched: dict[NodeName, float] = {}
        self._freed: dict[str, None] = {}
        self._unknown: Callable[[], Collection[NodeName]] | None = None

    def readings(self) -> dict[str, Reading]:
        """Return readings for metrics."""
        return {
            "pods_waiting": ("Pods that no node fitted.", "gauge", lambda: len(self._waiting)),
            "requeues_total": ("Nodes touched since capacity came free.", "counter", lambda: self.touches),
        }

    def refused(
        self,
        uid: PodUid,
        request: Request,
        nodes: Iterable[NodeName],
        namespace: str,
        *,
        together: bool = False,
    ) -> None:
        """Record a pod that no node fits.

        nodes: refused it for a reason that may pass.
        together: whether it waits with its gang.
        """
        self._waiting.refuse(uid, request, nodes, self._clock(), namespace)
        if together:
            self._waiting.gather(uid)
        self._somebody_waits.set()

    def limited(self, pod: PendingPod, nodes: Sequence[NodeName]) -> None:
        """Record a pod that the limit of its namespace refused. nodes: may fit it otherwise."""
        sample = tuple(nodes[:: -(-len(nodes) // _KEPT_NODES) or 1])
        refused = Limited(namespace=pod.namespace, uid=pod.uid, request=pod.request, nodes=sample)
        self._waiting.limit(refused, self._clock())
        self._somebody_waits.set()

    def on_delete(self, uid: PodUid) -> None:
        """Forget a pod that fits a node, is bound, or is gone."""
        self._waiting.on_delete(uid)

    def retain(self, listed: Collection[PodUid], listed_at: float) -> None:
        """Forget pods that have waited since before that time and are not listed, because they are gone."""
        for uid in self._waiting.pods_before(listed_at):
            if uid not in listed:
                self.on_delete(uid)

    def on_node_change(
        self, node: NodeName, previous: NodeSnapshot | None, _current: NodeSnapshot | None
    ) -> None:
        """Compare the node with waiting requests, because its snapshot has changed."""
        if self._waiting.interesting(node):
            self._backlog.put(node, previous, self._waiting.requests())
            self._nodes_changed.set()

    def released(self, node: NodeName) -> None:
        """Note that room held on the node for an unbound pod came free."""
        self.on_node_change(node, None, None)

    def freed_address(self, node: NodeName) -> None:
        """Touch the node if it refused a pod, because a MAC or GUID of the node may be free now.

        The pod may then fit there or on any other node.
        """
        if self._waiting.interesting(node):
            self._enqueue(node)
            self._something_changed.set()

    def try_all(self, nodes: Callable[[], Collection[NodeName]]) -> None:
        """Touch one of these nodes, once they are known: pods unknown to this process may wait."""
        self._unknown = nodes
        self._something_changed.set()

    def freed(self, namespace: str) -> None:
        """Note that the namespace's pods hold less."""
        if self._waiting.limited(namespace):
            self._freed[namespace] = None
            self._limits_freed.set()

    async def poll(self, states: NodeSource, limits: Limits) -> NoReturn:
        """Keep asking the nodes of interest while pods wait, and the nodes that limited namespaces use."""
        while True:
            await self._somebody_waits.wait()
            self._waiting.expire(self._clock())
            limited = limits.nodes(self._waiting.namespaces())
            nodes = list(dict.fromkeys(chain(self._waiting.nodes(), limited)))
            for start in range(0, len(nodes), _POLLED_AT_ONCE):
                await asyncio.sleep(self._pace.poll_s)
                batch = nodes[start : start + _POLLED_AT_ONCE]
                await states.refresh(batch, newer_than=self._clock() - self._pace.poll_s / 2)
            if self._waiting.namespaces() and not nodes:
                await asyncio.sleep(self._pace.poll_s)
            elif not nodes:
                self._somebody_waits.clear()

    async def touch(self, state: ClusterState, limits: Limits, leads: Callable[[], bool]) -> NoReturn:
        """Touch the nodes whose change helps, at the pace, while this replica leads."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._compare(state))
            group.create_task(self._serve_freed(state, limits))
            await self._touch_wanted(state, leads)

    async def _compare(self, state: ClusterState) -> NoReturn:
        """Compare nodes that changed with requests that wait."""
        while True:
            await self._nodes_changed.wait()
            self._nodes_changed.clear()
            while self._backlog:
                comparison = self._backlog.pop(self._queue.used)
                if await self._helps(comparison, state):
                    self._backlog.drop(comparison.node)
                    self._enqueue(comparison.node)

    async def _serve_freed(self, state: ClusterState, limits: Limits) -> NoReturn:
        """Look for nodes for the pods of namespaces whose limits came free."""
        while True:
            await self._limits_freed.wait()
            self._limits_freed.clear()
            while self._freed:
                await self._serve(self._freed.popitem()[0], state, limits)

    async def _touch_wanted(self, state: ClusterState, leads: Callable[[], bool]) -> NoReturn:
        while True:
            await self._wait_for_something()
            if not leads():
                if self._due or self._unknown:
                    self._something_changed.set()
                    await asyncio.sleep(self._pace.requeue_s)
                continue
            if self._unknown:
                for node in _likeliest(self._unknown(), state):
                    self._enqueue(node)
                self._unknown = None
            now = self._clock()
            for node in [node for node, not_before in self._due.items() if not_before <= now]:
                await self._touch(node)
                await asyncio.sleep(self._pace.gap_s)

    def _enqueue(self, node: NodeName) -> None:
        self._due.setdefault(node, self._touched.get(node, NEVER) + self._pace.requeue_s)
        self._something_changed.set()

    async def _serve(self, namespace: str, state: ClusterState, limits: Limits) -> None:
        """Touch a node that fits a pod which the limit refuses no more; without one, the pod waits."""
        for pod in self._waiting.limited(namespace):
            if limits.refusal(namespace, pod.uid, pod.request):
                continue
            node = await self._fitting(pod, state)
            if node is not None:
                self._enqueue(node)
                return
            self._waiting.refuse(pod.uid, pod.request, state.snapshots, self._clock(), namespace)
            self._somebody_waits.set()  # the pod may be the first one that waits

    async def _fitting(self, pod: Limited, state: ClusterState) -> NodeName | None:
        """Find a node that fits, preferably a candidate of the pod; the first of many if that takes too long.

        A needless touch costs a scheduling attempt of the waiting pods; a missing touch leaves them waiting.
        """
        snapshots = state.snapshots
        node_by_snapshot = {snapshots[node]: node for node in pod.nodes if node in snapshots}
        node_by_snapshot |= {
            node_snapshot: node
            for node, node_snapshot in snapshots.items()
            if node_snapshot not in node_by_snapshot
        }
        used_s = 0.0
        for snapshot, node in node_by_snapshot.items():
            async with self._queue.turn(pod.namespace, background=True) as turn:
                fits = self._fits(pod.request, snapshot, pod.namespace)
            used_s += turn.used_s
            if fits or used_s > _FITTING_S:
                return node
            await self._pause(turn)
        return None

    async def _helps(self, comparison: Comparison, state: ClusterState) -> bool:
        """Report whether a pod that waits may fit a node whose snapshot has changed.

        If the node has no snapshot, it cannot be read and refuses every pod.
        """
        namespace, node, previous, request = comparison
        async with self._queue.turn(namespace, background=True) as turn:
            after = state.snapshots.get(node)
            if after is None or not self._waiting.waits(namespace, request):
                return False
            helps = self._fits(request, after, namespace) and not (
                previous and self._fits(request, previous, namespace)
            )
            if previous and not helps and self._waiting.wait_together(namespace, request):
                helps = _freed(previous, after) and self._fits(request, after, namespace)
        await self._pause(turn)
        return helps

    async def _pause(self, turn: Turn) -> None:
        """Leave the processor to other work for several times as long as the turn used it."""
        await asyncio.sleep(turn.used_s * _PAUSE_FACTOR if turn.used_s > _FREE_S else 0)

    def _fits(self, request: Request, snapshot: NodeSnapshot, namespace: str) -> bool:
        return self._fit_cache.fits(request, snapshot, namespace)

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
        # Before the write: a pod that the node refuses from here on may have been tried before the event.
        self._waiting.touched(node)
        try:
            await self._mark(node, touch_time(datetime.now(UTC)))
        except ApiRefusedError as error:
            _log.warning("touch_refused", node=node, error=error.message)
            return
        except (ApiUnreachableError, ApiUncertainError) as error:
            _log.warning("touch_failed", node=node, error=error.message)
            self._due[node] = now + 5 * self._pace.requeue_s
            return
        self.touches += 1
        self._touched = {
            n: touched_at
            for n, touched_at in self._touched.items()
            if touched_at + self._pace.requeue_s > now
        }
        self._touched[node] = now
        _log.info("touch", node=node, waiting=len(self._waiting), duration_s=round(self._clock() - now, 6))

    async def _mark(self, node: NodeName, when: str) -> None:
        mark = self._api.label_node if self._pace.by_label else self._api.annotate_node
        await mark(node, ANNOTATION, when)


def _freed(previous: NodeSnapshot, current: NodeSnapshot) -> bool:
    """Report whether less is used of any PF than before, or PFs or GPUs are others or free."""
    if current.inventory.hardware != previous.inventory.hardware:
        return True
    pfs = current.inventory.pfs
    pairs = ((current.used.get(pf.pci, NOTHING_USED), previous.used.get(pf.pci, NOTHING_USED)) for pf in pfs)
    return any(
        current_use.vfs < earlier.vfs or current_use.mbps < earlier.mbps for current_use, earlier in pairs
    )


def _likeliest(nodes: Collection[NodeName], state: ClusterState) -> list[NodeName]:
    """Return the node, as a list, that unknown pods are most likely to fit on: one with PFs.

    Schedulers without queueing hints try a pod again only if it may go to the touched node, as to one of the
    control plane it may not as a rule.
    """
    snapshots = state.snapshots

    def has_none(node: NodeName) -> bool:
        return node not in snapshots or not snapshots[node].inventory.pfs

    return sorted(nodes, key=lambda node: (has_none(node), node))[:1]
