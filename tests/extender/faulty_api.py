"""A cluster's API whose writes go wrong in the ways that writes do."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from k8s_rdma.core.types import Gang, NodeName
from k8s_rdma.kube.api import BudgetView, NodeView, ObjectEvent, PodBinding, PodView
from k8s_rdma.kube.client import Client
from k8s_rdma.kube.errors import ApiRefusedError, ApiUncertainError, ApiUnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping

    from k8s_rdma.core.ledger import Pod
    from k8s_rdma.core.pod_group import PodGroup
    from k8s_rdma.kube.informer import Event


class Fault(Enum):
    """Outcomes of a bind.

    REFUSED: 403, not written. UNREACHABLE: no connection. DROPPED: no answer, not written.
    LOST: written, no answer. LATE: no answer, written when `late` is set.
    """

    REFUSED = auto()
    UNREACHABLE = auto()
    DROPPED = auto()
    LOST = auto()
    LATE = auto()


def open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


@dataclass(slots=True)
class FaultyApi:
    """`ClusterApi` that hands on to another one.

    faults: of the binds to come, in order. rate_faults: of changes of rates. unread: that many reads of a
    pod fail. touchable: whether pods may be touched (else 403); labelled: whether pods may be labelled.
    untouched: that many touches fail. writing: binds wait for it before they are handed on. answering,
    reading: binds wait before they are answered, reads of a pod before they are. started, begun: binds that
    began, and an event for the first. watching: cleared to hold back the lists of pods; streaming: their
    events, too. budgets_refused: so
    are disruption budgets (403), each watch of them after its next event. pod_groups_refused: they may not
    be read (403).
    """

    real: Client
    faults: list[Fault] = field(default_factory=list)
    unread: int = 0
    reads: int = 0
    touchable: bool = True
    labelled: bool = True
    untouched: int = 0
    fenced: list[str] = field(default_factory=list)
    touch_faults: list[Exception] = field(default_factory=list)
    touched: list[NodeName] = field(default_factory=list)
    started: list[PodBinding] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    writing: asyncio.Event = field(default_factory=open_gate)
    answering: asyncio.Event = field(default_factory=open_gate)
    reading: asyncio.Event = field(default_factory=open_gate)
    watching: asyncio.Event = field(default_factory=open_gate)
    streaming: asyncio.Event = field(default_factory=open_gate)
    budgets_refused: bool = False
    pod_groups_refused: bool = False
    pod_group_reads: int = 0
    rate_faults: list[Fault] = field(default_factory=list)
    late: asyncio.Event = field(default_factory=asyncio.Event)
    late_writes: list[asyncio.Task[None]] = field(default_factory=list)

    async def get_pod(self, namespace: str, name: str) -> PodView | None:
        self.reads += 1
        if self.unread:
            self.unread -= 1
            message = "get pod: no answer"
            raise ApiUncertainError(message)
        pod = await self.real.get_pod(namespace, name)
        await self.reading.wait()
        return pod

    async def get_pod_group(self, gang: Gang) -> PodGroup:
        self.pod_group_reads += 1
        if self.pod_groups_refused:
            raise ApiRefusedError("get podgroup: forbidden", status=403)
        return await self.real.get_pod_group(gang)

    async def bind_pod(self, binding: PodBinding) -> None:
        self.started.append(binding)
        self.begun.set()
        await self.writing.wait()
        fault = self.faults.pop(0) if self.faults else None
        if fault is Fault.REFUSED:
            raise ApiRefusedError("bind pod: forbidden", status=403)
        if fault is Fault.UNREACHABLE:
            raise ApiUnreachableError("bind pod: no connection")
        if fault is Fault.LATE:
            self.late_writes.append(
                asyncio.create_task(self._write_late(lambda: self.real.bind_pod(binding)))
            )
        elif fault is not Fault.DROPPED:
            await self.real.bind_pod(binding)
        await self.answering.wait()
        if fault:
            raise ApiUncertainError("bind pod: no answer")

    async def touch_pod(self, pod: Pod, key: str, value: str) -> PodView:
        if not self.touchable:
            raise ApiRefusedError("touch pod: forbidden", status=403)
        if self.untouched:
            self.untouched -= 1
            raise ApiUncertainError("touch pod: no answer")
        seen = await self.real.touch_pod(pod, key, value)
        self.fenced.append(pod.name)
        return seen

    async def annotate_version(self, pod: Pod, version: str, annotations: Mapping[str, str]) -> None:
        fault = self.rate_faults.pop(0) if self.rate_faults else None
        if fault is Fault.REFUSED:
            raise ApiRefusedError("annotate pod: forbidden", status=403)
        if fault is Fault.UNREACHABLE:
            raise ApiUnreachableError("annotate pod: no connection")
        if fault is Fault.LATE:
            late = self._write_late(lambda: self.real.annotate_version(pod, version, annotations))
            self.late_writes.append(asyncio.create_task(late))
        elif fault is not Fault.DROPPED:
            await self.real.annotate_version(pod, version, annotations)
        if fault:
            raise ApiUncertainError("annotate pod: no answer")

    async def label_pod(self, pod: Pod, key: str, value: str) -> PodView:
        if not self.labelled:
            raise ApiRefusedError("label pod: forbidden", status=403)
        seen = await self.real.label_pod(pod, key, value)
        self.fenced.append(pod.name)
        return seen

    async def create_event(self, event: ObjectEvent) -> None:
        await self.real.create_event(event)

    async def repeat_event(self, event: ObjectEvent) -> None:
        await self.real.repeat_event(event)

    async def annotate_node(self, node: NodeName, key: str, value: str) -> None:
        if self.touch_faults:
            raise self.touch_faults.pop(0)
        await self.real.annotate_node(node, key, value)
        self.touched.append(node)

    async def label_node(self, node: NodeName, key: str, value: str) -> None:
        await self.real.label_node(node, key, value)
        self.touched.append(node)

    async def follow_pods(self) -> AsyncIterator[Event[PodView]]:
        await self.watching.wait()
        async for event in self.real.follow_pods():
            await self.streaming.wait()
            yield event

    async def follow_budgets(self) -> AsyncIterator[Event[BudgetView]]:
        async for event in self.real.follow_budgets():
            if self.budgets_refused:
                raise ApiRefusedError("list disruption budgets: forbidden", status=403)
            yield event

    async def follow_nodes(self) -> AsyncIterator[Event[NodeView]]:
        async for event in self.real.follow_nodes():
            yield event

    async def _write_late(self, write: Callable[[], Coroutine[None, None, None]]) -> None:
        await self.late.wait()
        with contextlib.suppress(ApiRefusedError):  # its caller has gone
            await write()
