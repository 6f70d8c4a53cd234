"""The scheduler stand-in: kube-scheduler's cycle around its extenders, one pod at a time.

Filter, prioritize when there is a choice, then bind in the background, several at once. Refused pods wait
for an event, failed ones back off; a pod that fits nowhere may preempt others (`preemption`).

    async with scheduling("http://127.0.0.1:8080", SchedulerConfig(extenders=(...,))):
        ...

Source: `pkg/scheduler/schedule_one.go`, `eventhandlers.go`.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma_demo.cluster.background import in_background
from k8s_rdma_demo.cluster.client import ApiClient, ApiError, Informer
from k8s_rdma_demo.cluster.events import EventRecorder
from k8s_rdma_demo.cluster.extender_client import ExtenderConfig, ExtenderError
from k8s_rdma_demo.cluster.extenders import Extenders
from k8s_rdma_demo.cluster.fit import Assignments, Refusal, Unfit, node_refusal, resource_refusal
from k8s_rdma_demo.cluster.objects import (
    Clock,
    JsonObject,
    condition_of,
    is_finished,
    is_terminating,
    key_of,
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
from k8s_rdma_demo.cluster.resources import NODES, PODS
from k8s_rdma_demo.cluster.scheduling_queue import (
    SchedulingQueue,
    assigned_pod_ended,
    node_change_may_help,
    own_change_may_help,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The configuration of the scheduler.

    name: it takes pods whose `schedulerName` this is.
    seed: nodes of equal score are drawn from by a generator with this seed; None: the first by name.
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

    token: of a user that may do what a scheduler does, where the API server asks for one.
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
        """Return when all pods and nodes that there were are known."""
        await self._nodes.synced.wait()
        await self._pods.synced.wait()

    async def run(self) -> NoReturn:
        """Schedule until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            group.create_task(self._pods.run())
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
        """Why the pod does not fit on a node that has these pods, by the scheduler's own filters."""
        node = self._nodes.objects.get(("", name))
        if node is None:
            return Refusal(reasons=("node(s) not found",), unresolvable=True)
        why = node_refusal(pod, node)
        if why is not None:
            return Refusal(reasons=(why,), unresolvable=True)
        return resource_refusal(
            pod, node, (*pods, *self._assignments.nominated_rivals(pod, name)), self._ignored
        )

    async def _bind(self, pod: JsonObject, node: str) -> None:
        try:
            if not await self._extenders.bind(pod, node):
                await self._bind_here(pod, node)
        except (ExtenderError, ApiError) as error:
            if self._current(pod):
                self._assignments.fail(pod)
            else:
                self._assignments.forget(uid_of(pod))
            self._queue.fail(uid_of(pod), self._now())
            self._queue.on_event()  # what was assumed to be used is free again
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

        nominated: its nominated node; None when that stays as it is.
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
        """Return the informer's version of the pod, None once it is deleted."""
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

    def _is_ours(self, pod: JsonObject) -> bool:
        spec = spec_of(pod)
        return spec.get("schedulerName") == self._config.name and not spec.get("schedulingGates")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
