"""The scheduler stand-in: kube-scheduler's cycle around its extenders, one pod at a time.

Filter, prioritize when there is a choice, then bind in the background, several at once. Refused pods wait
for an event, failed ones back off, twice as long after each failure, without polling. A pod that fits
nowhere may preempt others (`preemption`).

    async with scheduling("http://127.0.0.1:8080", SchedulerConfig(extenders=(...,))):
        ...

Source: `pkg/scheduler/schedule_one.go`, `eventhandlers.go`, `backend/queue`; `framework/events.go` for the
events that requeue a pod.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto, unique
from itertools import count
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma_demo.cluster.assignments import Assignments
from k8s_rdma_demo.cluster.client import ApiClient, ApiError, EventRecorder, Informer
from k8s_rdma_demo.cluster.dynamic_resources import DynamicResources
from k8s_rdma_demo.cluster.extender_client import ExtenderConfig, ExtenderError, Extenders
from k8s_rdma_demo.cluster.fit import Refusal, Unfit, node_refusal, resource_refusal
from k8s_rdma_demo.cluster.objects import (
    NODES,
    PODS,
    Clock,
    JsonObject,
    annotations_of,
    condition_of,
    is_finished,
    is_terminating,
    key_of,
    labels_of,
    metadata,
    name_of,
    namespace_of,
    node_name_of,
    spec_of,
    status_of,
    system_clock,
    timestamp,
    uid_of,
)
from k8s_rdma_demo.cluster.preemption import Preemptor
from k8s_rdma_demo.kubelet.device_manager import in_background

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The configuration of the scheduler.

    name: it takes pods whose `schedulerName` this is.
    seed: nodes of equal score are drawn from by a generator with this seed; unset: the first by name.
    """

    name: str = "default-scheduler"
    extenders: tuple[ExtenderConfig, ...] = ()
    initial_backoff_s: float = 1.0
    max_backoff_s: float = 10.0
    seed: int | None = None
    clock: Clock = system_clock


@asynccontextmanager
async def scheduling(server: str, config: SchedulerConfig, token: str = "") -> AsyncIterator[None]:
    """Schedule the pods of the API server at that URL until the block ends; entered once pods are seen.

    token: of a user with a scheduler's permissions, if the API server asks for one.
    """
    async with (
        ApiClient.connecting(server, token) as client,
        Extenders.connecting(config.extenders) as extenders,
    ):
        scheduler = Scheduler(client, config, extenders)
        async with in_background(scheduler.run()):
            await scheduler.synced()
            yield


class Scheduler:
    """Binds pods that have no node; `run` for as long as it shall."""

    def __init__(self, client: ApiClient, config: SchedulerConfig, extenders: Extenders) -> None:
        self._client = client
        self._config = config
        self._extenders = extenders
        self._queue = SchedulingQueue(
            initial_backoff_s=config.initial_backoff_s, max_backoff_s=config.max_backoff_s
        )
        self._pods = Informer(client, PODS, self._on_pod)
        self._nodes = Informer(client, NODES, self._on_node)
        self._resources = DynamicResources(client, config.clock, self._on_resources)
        self._informers = (self._nodes, *self._resources.informers, self._pods)
        self._assignments = Assignments()
        self._recorder = EventRecorder(client=client, component=config.name, clock=config.clock)
        self._preemptor = Preemptor(
            client=client,
            extenders=extenders,
            recorder=self._recorder,
            assignments=self._assignments,
            fits=self._refusal,
            component=config.name,
            clock=config.clock,
        )
        self._ignored = frozenset(
            name for extender in config.extenders for name in extender.ignored_resources
        )
        self._random = None if config.seed is None else random.Random(config.seed)
        self._wake = asyncio.Event()

    async def synced(self) -> None:
        """Return when all objects that there were are known."""
        for informer in self._informers:
            await informer.synced.wait()

    async def run(self) -> NoReturn:
        """Schedule until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())
            await self.synced()
            while True:
                pod = self._queue.pop(self._now())
                if pod is None:
                    await self._wait()
                else:
                    await self._schedule(pod, group)
        raise AssertionError

    async def _wait(self) -> None:
        due = self._queue.next_due()
        try:
            async with asyncio.timeout(None if due is None else max(0.0, due - self._now())):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _schedule(self, pod: JsonObject, binds: asyncio.TaskGroup) -> None:
        if is_terminating(pod):
            self._queue.drop(uid_of(pod))
            return
        try:
            choice = await self._choose(pod)
        except ExtenderError as error:
            self._queue.fail(uid_of(pod), self._now())
            await self._report(pod, "SchedulerError", error.message)
            return
        if isinstance(choice, Unfit):
            outcome = await self._preemptor.make_room(pod, choice.refusals, choice.nodes)
            if outcome.node is not None and self._current(pod):
                self._assignments.nominate(pod, outcome.node)
            self._queue.refuse(uid_of(pod))
            unfit = replace(choice, preemption=outcome.message)
            await self._report(pod, "Unschedulable", unfit.message, nominated=outcome.node)
        elif not self._resources.reserve(pod, self._nodes.objects.get(("", choice), {})):
            self._queue.fail(uid_of(pod), self._now())
        else:
            self._assignments.assume(pod, choice)
            binds.create_task(self._bind(pod, choice))

    async def _choose(self, pod: JsonObject) -> str | Unfit:
        """Return the node for a pod by filters and extenders; the nominated node comes first."""
        everywhere = [self._nodes.objects[key] for key in sorted(self._nodes.objects)]
        nominated = self._assignments.nominated(uid_of(pod))
        if nominated:
            choice = await self._choose_among(pod, [n for n in everywhere if name_of(n) == nominated])
            if not isinstance(choice, Unfit):
                return choice
        return await self._choose_among(pod, everywhere)

    async def _choose_among(self, pod: JsonObject, nodes: list[JsonObject]) -> str | Unfit:
        refusals = {
            name_of(node): refusal
            for node in nodes
            if (refusal := self._refusal(pod, name_of(node), self._assignments.on(name_of(node))))
        }
        candidates = [node for node in nodes if name_of(node) not in refusals]
        answer = await self._extenders.filter(pod, candidates)
        if not answer.nodes:
            extender_refusals = {
                node: Refusal(reasons=(why,), unresolvable=node in answer.unresolvable)
                for node, why in answer.refused.items()
            }
            return Unfit(nodes=len(nodes), refusals={**refusals, **extender_refusals})
        if len(answer.nodes) == 1:  # no choice: prioritize is not called
            return name_of(answer.nodes[0])
        best = await self._extenders.best(pod, answer.nodes)
        return self._random.choice(best) if self._random is not None else best[0]

    def _refusal(self, pod: JsonObject, name: str, pods: tuple[JsonObject, ...]) -> Refusal | None:
        """Return why the pod does not fit on a node with these pods, by the scheduler's own filters."""
        node = self._nodes.objects.get(("", name))
        if node is None:
            return Refusal(reasons=("node(s) not found",), unresolvable=True)
        why = node_refusal(pod, node)
        if why is not None:
            return Refusal(reasons=(why,), unresolvable=True)
        rivals = self._assignments.nominated_rivals(pod, name)
        claimed = self._resources.claimed(pod, node)
        refusal = resource_refusal(pod, node, (*pods, *rivals), self._ignored | claimed)
        if refusal is None and (why := self._resources.refusal(pod, node)):
            return Refusal(reasons=(why,), unresolvable=True)
        return refusal

    async def _bind(self, pod: JsonObject, node: str) -> None:
        try:
            await self._resources.bind(pod)
            if not await self._extenders.bind(pod, node):
                await self._bind_here(pod, node)
        except (ExtenderError, ApiError) as error:
            self._resources.unreserve(pod)
            if self._current(pod):
                self._assignments.fail(pod)
            else:
                self._assignments.forget(uid_of(pod))
            self._queue.fail(uid_of(pod), self._now())
            self._queue.on_event()  # the resources assumed to be used are free again
            self._wake.set()
            await self._report(pod, "SchedulerError", error.message)
            return
        self._queue.assume(uid_of(pod))
        assignment = f"{namespace_of(pod)}/{name_of(pod)} to {node}"
        await self._recorder.normal(pod, "Scheduled", f"Successfully assigned {assignment}")

    async def _bind_here(self, pod: JsonObject, node: str) -> None:
        namespace, name = key_of(pod)
        binding = {
            "kind": "Binding",
            "apiVersion": "v1",
            "metadata": {"name": name, "namespace": namespace, "uid": uid_of(pod)},
            "target": {"kind": "Node", "name": node},
        }
        await self._client.post(PODS.path(namespace=namespace, name=name, subresource="binding"), binding)

    async def _report(
        self, pod: JsonObject, reason: str, message: str, *, nominated: str | None = None
    ) -> None:
        """Report why a pod was not scheduled, in its status and an event, unless it is deleted or has a node.

        nominated: its nominated node; unset: it stays as it is.
        """
        current = self._current(pod)
        if current is None or node_name_of(current):
            return
        await self._recorder.warning(pod, "FailedScheduling", message)
        reported = condition_of(current, "PodScheduled") or {}
        unchanged = (reported.get("status"), reported.get("reason"), reported.get("message")) == (
            "False",
            reason,
            message,
        )
        previous_node = str(status_of(current).get("nominatedNodeName") or "")
        if unchanged and nominated in (None, previous_node):
            return
        condition = {
            "type": "PodScheduled",
            "observedGeneration": metadata(current).get("generation", 1),
            "status": "False",
            "lastTransitionTime": reported.get("lastTransitionTime") or timestamp(self._config.clock()),
            "reason": reason,
            "message": message,
        }
        try:
            status: JsonObject = {"conditions": [condition]}
            if nominated is not None:
                status["nominatedNodeName"] = nominated or None
            await self._client.patch_status(PODS, key_of(pod), status)
        except ApiError as error:
            _log.warning("pod.not_reported", pod=name_of(pod), error=error.message)

    def _current(self, pod: JsonObject) -> JsonObject | None:
        """Return the informer's version of the pod, unless it is deleted."""
        current = self._pods.objects.get(key_of(pod))
        return current if current is not None and uid_of(current) == uid_of(pod) else None

    def _on_pod(self, old: JsonObject | None, new: JsonObject | None) -> None:
        self._assignments.update(old, new)
        if new is None or node_name_of(new) or is_finished(new):
            self._queue.drop(uid_of(new or old or {}))
            if assigned_pod_ended(old, new):
                self._queue.on_event()
        elif self._is_ours(new):
            self._queue.put(new, worth_retry=old is None or own_change_may_help(old, new))
        self._wake.set()

    def _on_node(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if node_change_may_help(old, new):
            self._queue.on_event()
            self._wake.set()

    def _on_resources(self) -> None:
        """Try again pods that were refused, or that wait: devices have become free, or claims were made."""
        self._queue.on_event()
        for pod in self._pods.objects.values():
            if spec_of(pod).get("resourceClaims"):
                self._on_pod(pod, pod)
        self._wake.set()

    def _is_ours(self, pod: JsonObject) -> bool:
        spec = spec_of(pod)
        is_gated = spec.get("schedulingGates") or self._resources.waits(pod)
        return spec.get("schedulerName") == self._config.name and not is_gated

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def node_change_may_help(old: JsonObject | None, new: JsonObject | None) -> bool:
    """Report whether a change of a node may let a refused pod fit: more than a heartbeat, not a deletion."""
    if new is None:
        return False
    return old is None or _as_seen_by_filters(old) != _as_seen_by_filters(new)


def assigned_pod_ended(old: JsonObject | None, new: JsonObject | None) -> bool:
    """Report whether a pod with a node was deleted or has finished, which may free its resources."""
    had_node = old is not None and bool(node_name_of(old)) and not is_finished(old)
    return had_node and (new is None or is_finished(new))


def own_change_may_help(old: JsonObject, new: JsonObject) -> bool:
    """Report whether a waiting pod changed apart from its status, which the scheduler itself writes."""
    return _without_status(old) != _without_status(new)


def _as_seen_by_filters(node: JsonObject) -> tuple[object, ...]:
    conditions = status_of(node).get("conditions") or []
    return (
        labels_of(node),
        annotations_of(node),
        spec_of(node).get("taints"),
        spec_of(node).get("unschedulable"),
        status_of(node).get("allocatable"),
        {condition["type"]: condition["status"] for condition in conditions},
    )


def _without_status(pod: JsonObject) -> tuple[object, ...]:
    fields = {k: v for k, v in metadata(pod).items() if k not in {"resourceVersion", "managedFields"}}
    return fields, spec_of(pod)


@unique
class _State(Enum):
    ACTIVE = auto()
    IN_FLIGHT = auto()
    REFUSED = auto()
    BACKOFF = auto()
    ASSUMED = auto()


@dataclass(slots=True, kw_only=True)
class _Entry:
    pod: JsonObject
    order: int
    state: _State = _State.ACTIVE
    failures: int = 0
    ready_at: float = 0.0
    events_at_pop: int = 0


class SchedulingQueue:
    """Pods without a node, by UID. Times are of one monotonic clock, in seconds.

    A pod is popped once and then in flight, until it is refused, has failed, or is assumed to be bound.
    """

    def __init__(self, *, initial_backoff_s: float = 1.0, max_backoff_s: float = 10.0) -> None:
        self._initial_backoff_s = initial_backoff_s
        self._max_backoff_s = max_backoff_s
        self._entries: dict[str, _Entry] = {}
        self._order = count()
        self._events = 0

    def put(self, pod: JsonObject, *, worth_retry: bool) -> None:
        """A pod came, or changed; worth_retry: in a way that may let it fit now."""
        entry = self._entries.get(uid_of(pod))
        if entry is None:
            self._entries[uid_of(pod)] = _Entry(pod=pod, order=next(self._order))
            return
        entry.pod = pod
        if worth_retry and entry.state is _State.REFUSED:
            self._activate(entry)
        elif worth_retry and entry.state is _State.IN_FLIGHT:
            entry.events_at_pop = -1

    def drop(self, uid: str) -> None:
        """Forget a pod that has a node, has finished, or was deleted."""
        self._entries.pop(uid, None)

    def pop(self, now: float) -> JsonObject | None:
        """Return the next pod to try, if one is due: the highest priority first, then the first to come."""
        for entry in self._entries.values():
            if entry.state is _State.BACKOFF and entry.ready_at <= now:
                self._activate(entry)
        active = [entry for entry in self._entries.values() if entry.state is _State.ACTIVE]
        if not active:
            return None
        entry = min(active, key=lambda entry: (-spec_of(entry.pod).get("priority", 0), entry.order))
        entry.state = _State.IN_FLIGHT
        entry.events_at_pop = self._events
        return entry.pod

    def next_due(self) -> float | None:
        """Return the end of the next pod's backoff, if a pod is backing off."""
        return min((e.ready_at for e in self._entries.values() if e.state is _State.BACKOFF), default=None)

    def refuse(self, uid: str) -> None:
        """A popped pod fits nowhere: it waits for an event, unless one came since it was popped."""
        if entry := self._entries.get(uid):
            entry.failures = 0
            entry.state = _State.REFUSED
            if entry.events_at_pop != self._events:
                self._activate(entry)

    def fail(self, uid: str, now: float) -> None:
        """Back off after a failed attempt; the backoff doubles with every failure in a row."""
        if entry := self._entries.get(uid):
            backoff_s = min(self._initial_backoff_s * 2**entry.failures, self._max_backoff_s)
            entry.failures += 1
            entry.state = _State.BACKOFF
            entry.ready_at = now + backoff_s

    def assume(self, uid: str) -> None:
        """Keep a bound pod from being tried until the API server shows its node."""
        if entry := self._entries.get(uid):
            entry.state = _State.ASSUMED

    def on_event(self) -> None:
        """Try refused pods again, after something that may let them fit."""
        self._events += 1
        for entry in self._entries.values():
            if entry.state is _State.REFUSED:
                self._activate(entry)

    def _activate(self, entry: _Entry) -> None:
        entry.state = _State.ACTIVE
        entry.order = next(self._order)
