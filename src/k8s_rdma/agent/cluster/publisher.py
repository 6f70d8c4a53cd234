"""Publisher of the node: its `RdmaNode`, the Lease beside it, and VFs as an extended resource.

A renewal of the Lease names the generation that was published before it, and was looked up after the
renewal before it was answered: a reader of both knows of a time after which the node was as it is
published. Each write is refused if anybody wrote since the version that it is made of, so that one which
gets no answer and comes late undoes nothing.

Kubernetes' documentation, "Advertise Extended Resources for a Node": kubelet makes allocatable what
somebody else wrote into the capacity, within its next status update. A kubelet that finds no devices of
before after its start sets all extended resources to 0 (`pkg/kubelet/kubelet_node_status.go`), so it is
written again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Protocol

import structlog
from msgspec.structs import replace as replaced

from k8s_rdma.agent.cluster.informers import OwnNode, retry_forever
from k8s_rdma.core.backoff import Backoff
from k8s_rdma.core.ids import NodeName
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.api import API_ERRORS, ApiRefusedError, LeaseView
from k8s_rdma.kube.published import RdmaNodeView
from k8s_rdma.kube.time import REAL_TIME
from k8s_rdma.wire.rdma_node import decode_status, encode_status, status_of, vfs_for_pods

if TYPE_CHECKING:
    from datetime import datetime
    from typing import NoReturn

    from k8s_rdma.agent.config import AgentConfig, PublishConfig
    from k8s_rdma.kube.published import OwnNodeView, PublishingApi
    from k8s_rdma.kube.time import Time
    from k8s_rdma.wire.rdma_node import RdmaNodeStatus
    from k8s_rdma.wire.rest import NodeReport

RENEWALS = 4
"""In the time that the Lease says it lasts, as in kubelet's; who reads it has its own limit."""

FREED_S = (4.0, 5.0)
"""Renewals after a pod gave something back. Its object goes within a second or two of that; the first renewal
after it says that the agent was asked since, the second what it found."""

GAP_S = 1.0
"""The least time between two writes, of the status or of the capacity."""

LAST_STATUS_RETRY_S = 16.0
REDISCOVERY_INTERVAL_S = 60.0
"""The time between two reads of the published objects: somebody may have deleted them."""

_CONFLICT = 409


class Reports(Protocol):
    """Where the reports come from."""

    def now(self) -> NodeReport:
        """Of this moment; the same object as before if nothing changed."""
        ...

    async def wait_for_change(self, previous: NodeReport | None) -> NodeReport:
        """As soon as it is not the known one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Versions:
    """What the next writes are made of."""

    published: RdmaNodeView
    lease: LeaseView


class StatusPublisher:
    """Publishes every report, the latest where several come within `GAP_S`, and renews the Lease."""

    def __init__(
        self, api: PublishingApi, reports: Reports, own: OwnNode, terms: PublishConfig, time: Time
    ) -> None:
        """Nothing is published until `run`."""
        self._api = api
        self._reports = reports
        self._own = own
        self._namespace = terms.lease_namespace
        self._renew_s = terms.renew_s
        self._time = time
        self._versions: _Versions | None = None
        self._published: NodeReport | None = None
        self._written_version = ""
        self._next_write = self._renew_at = self._discover_at = float("-inf")
        self._renew_soon: list[float] = []
        self._backoff = Backoff(FIRST_RETRY_S, LAST_STATUS_RETRY_S)

    async def run(self) -> NoReturn:
        """Publish until cancelled; what is published then goes stale."""
        while True:
            try:
                await self._publish()
            except API_ERRORS as error:
                await self._back_off(error)
            else:
                self._backoff.reset()
                await self._until_due()

    async def _publish(self) -> None:
        versions = self._versions
        if versions is None or self._time.monotonic() >= self._discover_at:
            versions = await self._discover_versions()
        # What is in doubt from here on is of an older version, and refused when it comes.
        report = self._reports.now()
        if report is not self._published:
            versions = await self._write(versions, report)
        if self._time.monotonic() >= self._due():
            versions = await self._renew(versions, report.generation)
        self._versions = versions

    async def _discover_versions(self) -> _Versions:
        """What is there, made if it is not: a Node that was made anew takes what went with it along."""
        uid = (await self._own.wait_for_node()).uid
        published = await self._api.get_rdma_node(self._own.name)
        if published is None:
            published = await self._api.create_rdma_node(self._own.name, uid)
        if published.version != self._written_version:
            self._published = None
        lease = await self._api.get_lease(self._namespace, self._own.name)
        if lease is None:
            lease = LeaseView(
                namespace=self._namespace, name=self._own.name, holder="", duration_s=0, owner=uid
            )
        self._discover_at = self._time.monotonic() + REDISCOVERY_INTERVAL_S
        return _Versions(published=published, lease=lease)

    async def _write(self, versions: _Versions, report: NodeReport) -> _Versions:
        before = versions.published
        status = encode_status(timed(status_of(report), before.status, self._time.now()))
        self._versions = None  # not known until there is an answer
        published = await self._api.write_status(replace(before, status=status))
        now = self._time.monotonic()
        self._next_write = now + GAP_S
        if self._published is not None and _released_vfs(self._published, report):
            self._renew_soon = [now + after_s for after_s in FREED_S]
        self._published, self._written_version = report, published.version
        return replace(versions, published=published)

    async def _renew(self, versions: _Versions, generation: str) -> _Versions:
        self._versions = None
        lasts_s = ceil(RENEWALS * self._renew_s)
        lease = await self._api.write_lease(replace(versions.lease, holder=generation, duration_s=lasts_s))
        now = self._time.monotonic()
        self._renew_at = now + self._renew_s
        self._renew_soon = [at for at in self._renew_soon if at > now]
        return replace(versions, lease=lease)

    def _due(self) -> float:
        return min(self._renew_at, *self._renew_soon) if self._renew_soon else self._renew_at

    async def _until_due(self) -> None:
        """Until there is another report, and `GAP_S` have passed, or the Lease is to be renewed."""
        both = [
            asyncio.ensure_future(self._reports.wait_for_change(self._published)),
            asyncio.ensure_future(self._time.pause(max(0.0, self._due() - self._time.monotonic()))),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()
        gap_s = self._next_write - self._time.monotonic()
        if gap_s > 0:
            await self._time.pause(gap_s)

    async def _back_off(self, error: Exception) -> None:
        """Let a pause pass, one that grows; that somebody else wrote is nothing to tell of."""
        conflict = isinstance(error, ApiRefusedError) and error.status == _CONFLICT
        if not self._backoff.failing and not conflict:
            _log.warning("node_not_published", why=str(error))
        await self._time.pause(self._backoff.fail())


def timed(status: RdmaNodeStatus, previous: bytes, now: datetime) -> RdmaNodeStatus:
    """The status with the time since when its condition is what it is, by the status that it replaces."""
    try:
        was = decode_status(previous).ready() if previous else None
    except MalformedError:
        was = None
    since = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = tuple(
        replaced(
            condition,
            last_transition_time=was.last_transition_time
            if was is not None and was.status == condition.status and was.last_transition_time
            else since,
        )
        for condition in status.conditions
    )
    return replaced(status, conditions=conditions)


def _released_vfs(previous: NodeReport, current: NodeReport) -> bool:
    holding = {allocation.container_id for allocation in current.allocations}
    return any(allocation.container_id not in holding for allocation in previous.allocations)


FIRST_RETRY_S = 1.0
LAST_RETRY_S = 30.0
_log = structlog.get_logger()


class CapacityPublisher:
    """Keeps the resource at the number of VFs that pods can have; while that is not known it stays."""

    def __init__(self, api: PublishingApi, reports: Reports, own: OwnNode, resource: str, time: Time) -> None:
        """Nothing is written until `run`."""
        self._api = api
        self._reports = reports
        self._own = own
        self._resource = resource
        self._time = time

    async def run(self) -> NoReturn:
        """Write it where it differs, until cancelled; it stays then."""
        backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S)
        while True:
            own, report = await self._own.wait_for_node(), self._reports.now()
            try:
                await self._reconcile(own, report)
            except API_ERRORS as error:
                if not backoff.failing:
                    _log.warning("capacity_not_published", why=str(error))
                await self._time.pause(backoff.fail())
                continue
            backoff.reset()
            await self._changed(own, report)
            await self._time.pause(GAP_S)

    async def _reconcile(self, own: OwnNodeView, report: NodeReport) -> None:
        if report.unreadable:
            return
        wanted = vfs_for_pods(status_of(report))
        if amount(own.capacity.get(self._resource)) != wanted:
            await self._api.set_capacity(self._own.name, self._resource, wanted)
            _log.info("capacity_published", resource=self._resource, vfs=wanted)

    async def _changed(self, own: OwnNodeView, report: NodeReport) -> None:
        both = [
            asyncio.ensure_future(self._own.wait_for_change(own)),
            asyncio.ensure_future(self._reports.wait_for_change(report)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()


def amount(quantity: str | None) -> int | None:
    """A whole quantity, as the API server writes them: thousands may be `k`; None where there is none."""
    if quantity is None:
        return None
    digits, thousand = (quantity[:-1], 1000) if quantity.endswith("k") else (quantity, 1)
    return int(digits) * thousand if digits.isdecimal() else None


class Publishing:
    """Runs the publishers that are configured."""

    def __init__(
        self, config: AgentConfig, api: PublishingApi, reports: Reports, time: Time = REAL_TIME
    ) -> None:
        """The API server is not asked for anything until `run`."""
        publish = config.publish
        self._time = time
        own = OwnNode(api, NodeName(config.node), time)
        self._work = [own.run]
        if publish.rdma_node:
            self._work.append(StatusPublisher(api, reports, own, publish, time).run)
        if publish.vf_resource is not None:
            self._work.append(CapacityPublisher(api, reports, own, publish.vf_resource, time).run)

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in self._work:
                tasks.create_task(retry_forever(work, self._time))
