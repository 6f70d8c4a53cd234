"""Publisher of the node: its `RdmaNode`, the Lease beside it, and VFs as an extended resource.

A renewal of the Lease names the generation that was published before it and was read after the previous
renewal was answered: a reader of both knows a time after which the node was as published. Each write is
refused if the object has changed since the version that it is based on, so that a write which arrives late
undoes nothing.

Source: Kubernetes' documentation, "Advertise Extended Resources for a Node": kubelet copies a capacity that
others wrote into allocatable, within its next status update. After a start without a device checkpoint
kubelet sets all extended resources to 0 (`pkg/kubelet/kubelet_node_status.go`), so the capacity is written
again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, NoReturn, Protocol

import structlog
from msgspec.structs import replace as replaced

from k8s_rdma.agent.cluster.api_cluster import PodCluster, retry_forever
from k8s_rdma.agent.cluster.no_cluster import NoCluster
from k8s_rdma.core.backoff import Backoff
from k8s_rdma.core.types import NodeName
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.errors import API_ERRORS, ApiRefusedError
from k8s_rdma.kube.informer import REAL_TIME, Changed, Deleted, Event, Listed, Time, follow
from k8s_rdma.kube.published_api import LeaseView, OwnNodeView, PublishingApi, RdmaNodeView
from k8s_rdma.process import wait_for_first
from k8s_rdma.wire.rdma_node import RdmaNodeStatus, decode_status, encode_status, status_of, vfs_for_pods

if TYPE_CHECKING:
    from datetime import datetime

    from k8s_rdma.config.agent import AgentConfig, PublishConfig
    from k8s_rdma.wire.report import NodeReport

_log = structlog.get_logger()

RENEWALS = 3
"""Renewals within the duration of the Lease."""

HEARTBEAT_RENEWALS = 5
"""The renewals after which an unchanged status is written again, so that people see by its age whether the
agent lives. kubelet writes its node's status every 5 minutes, too (`nodeStatusReportFrequency`)."""

FREED_S = (4.0, 5.0, 15.0, 20.0)
"""Extra renewals after a pod released VFs or ended, in seconds. The extender sees its end within a second or
two; the first renewal after it confirms a read since, the second its result. The others are for one that sees
it late."""

GAP_S = 1.0
"""The least time between two writes, of the status or of the capacity."""

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 30.0
LAST_STATUS_RETRY_S = 16.0

_CONFLICT = 409
_NO_CLUSTER = NoCluster()


class Publishing:
    """Runs the publishers that are configured."""

    def __init__(
        self,
        config: AgentConfig,
        api: PublishingApi,
        reports: Reports,
        time: Time = REAL_TIME,
        *,
        cluster: PodCluster = _NO_CLUSTER,
    ) -> None:
        """Send no request until `run`. cluster: tells which pods end."""
        publish = config.publish
        self._time = time
        own = OwnNode(api, NodeName(config.node), time)
        self._work = [own.run]
        if publish.rdma_node:
            self._work.append(StatusPublisher(api, reports, own, publish, cluster, time).run)
        if publish.vf_resource is not None:
            self._work.append(CapacityPublisher(api, reports, own, publish.vf_resource, time).run)

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in self._work:
                tasks.create_task(retry_forever(work, self._time))


class OwnNode:
    """Follows the Node object; its view is None until `run`, and while the object is missing."""

    def __init__(self, api: PublishingApi, name: NodeName, time: Time) -> None:
        self.name = name
        self.view: OwnNodeView | None = None
        self._api = api
        self._time = time
        self._change = asyncio.Event()

    async def wait_for_node(self) -> OwnNodeView:
        """Wait until there is a Node, and return it."""
        return await self.wait_for_change(None)

    async def wait_for_change(self, previous: OwnNodeView | None) -> OwnNodeView:
        """Wait until the Node differs from the previous one, and return it."""
        while self.view is None or self.view == previous:
            await self._change.wait()
        return self.view

    async def run(self) -> NoReturn:
        """Follow the Node until cancelled."""
        await follow("node", lambda: self._api.follow_node(self.name), self._on_event, time=self._time)

    def _on_event(self, event: Event[OwnNodeView]) -> None:
        match event:
            case Listed(nodes):
                self.view = nodes[0] if nodes else None
            case Changed(node):
                self.view = node
            case Deleted():
                self.view = None
        change, self._change = self._change, asyncio.Event()
        change.set()


class StatusPublisher:
    """Publishes every report, the latest if several come within `GAP_S`, and renews the Lease.

    An unchanged report is published again now and then, beside a renewal.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what is published, where, and how often
        self,
        api: PublishingApi,
        reports: Reports,
        own: OwnNode,
        terms: PublishConfig,
        cluster: PodCluster,
        time: Time,
    ) -> None:
        """Publish in `run` alone."""
        self._api = api
        self._reports = reports
        self._cluster = cluster
        self._placements = cluster.placements()
        self._own = own
        self._namespace = terms.lease_namespace
        self._renew_s = terms.renew_s
        self._time = time
        self._versions: _Versions | None = None
        self._published: NodeReport | None = None
        self._written_version = ""
        self._next_write = self._renew_at = self._discover_at = self._heartbeat_at = float("-inf")
        self._renew_soon: list[float] = []
        self._backoff = Backoff(FIRST_RETRY_S, LAST_STATUS_RETRY_S)

    async def run(self) -> NoReturn:
        """Publish until cancelled; the published status then goes stale."""
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
        if report is not self._published or self._time.monotonic() >= self._heartbeat_at:
            versions = await self._write(versions, report)
        if self._time.monotonic() >= self._due():
            versions = await self._renew(versions, report.generation)
        self._versions = versions

    async def _discover_versions(self) -> _Versions:
        """Read the published objects, and create missing ones: they are deleted with their Node.

        They are read before each renewal of the Lease, since somebody may have deleted the RdmaNode alone. A
        known Lease needs no read: if somebody else wrote or deleted it, its next renewal is refused.
        """
        uid = (await self._own.wait_for_node()).uid
        published = await self._api.get_rdma_node(self._own.name)
        if published is None:
            published = await self._api.create_rdma_node(self._own.name, uid)
        if published.version != self._written_version:
            self._published = None
        lease = self._versions.lease if self._versions is not None else await self._find_lease(uid)
        self._discover_at = self._time.monotonic() + self._renew_s
        return _Versions(published=published, lease=lease)

    async def _find_lease(self, uid: str) -> LeaseView:
        lease = await self._api.get_lease(self._namespace, self._own.name)
        if lease is not None:
            return lease
        return LeaseView(namespace=self._namespace, name=self._own.name, holder="", duration_s=0, owner=uid)

    async def _write(self, versions: _Versions, report: NodeReport) -> _Versions:
        published_before = versions.published
        status = encode_status(timed(status_of(report), published_before.status, self._time.now()))
        self._versions = None  # not known until there is an answer
        published = await self._api.write_status(replace(published_before, status=status))
        self._next_write = self._time.monotonic() + GAP_S
        self._heartbeat_at = self._time.monotonic() + HEARTBEAT_RENEWALS * self._renew_s
        if self._published is not None and _released_vfs(self._published, report):
            self._schedule_renewals()
        self._published, self._written_version = report, published.version
        return replace(versions, published=published)

    async def _renew(self, versions: _Versions, generation: str) -> _Versions:
        self._versions = None
        lasts_s = ceil(RENEWALS * self._renew_s)
        lease = await self._api.write_lease(replace(versions.lease, holder=generation, duration_s=lasts_s))
        now = self._time.monotonic()
        self._renew_at = now + self._renew_s
        self._renew_soon = [renewal for renewal in self._renew_soon if renewal > now]
        return replace(versions, lease=lease)

    def _schedule_renewals(self) -> None:
        now = self._time.monotonic()
        self._renew_soon = [now + after_s for after_s in FREED_S]

    def _due(self) -> float:
        return min(self._renew_at, *self._renew_soon) if self._renew_soon else self._renew_at

    async def _until_due(self) -> None:
        """Wait until there is another report and `GAP_S` have passed, the Lease is due, or a pod ended."""
        await wait_for_first(
            self._reports.wait_for_change(self._published),
            self._time.pause(max(0.0, self._due() - self._time.monotonic())),
            self._cluster.wait_for_placements(self._placements),
        )
        placements = self._cluster.placements()
        if self._placements.keys() - placements.keys():
            self._schedule_renewals()
        self._placements = placements
        gap_s = self._next_write - self._time.monotonic()
        if gap_s > 0:
            await self._time.pause(gap_s)

    async def _back_off(self, error: Exception) -> None:
        """Wait with exponential backoff; a conflict with another writer is not logged."""
        conflict = isinstance(error, ApiRefusedError) and error.status == _CONFLICT
        if not self._backoff.failing and not conflict:
            _log.warning("node_not_published", why=str(error))
        await self._time.pause(self._backoff.fail())


class CapacityPublisher:
    """Keeps the resource at the number of VFs that pods can have; unchanged while that is unknown."""

    def __init__(self, api: PublishingApi, reports: Reports, own: OwnNode, resource: str, time: Time) -> None:
        """Write in `run` alone."""
        self._api = api
        self._reports = reports
        self._own = own
        self._resource = resource
        self._time = time

    async def run(self) -> NoReturn:
        """Write the capacity if it differs, until cancelled; it is not removed."""
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
            await wait_for_first(self._own.wait_for_change(own), self._reports.wait_for_change(report))
            await self._time.pause(GAP_S)

    async def _reconcile(self, own: OwnNodeView, report: NodeReport) -> None:
        if report.unreadable:
            return
        desired = vfs_for_pods(status_of(report))
        if amount(own.capacity.get(self._resource)) != desired:
            await self._api.set_capacity(self._own.name, self._resource, desired)
            _log.info("capacity_published", resource=self._resource, vfs=desired)


class Reports(Protocol):
    """The source of reports."""

    def now(self) -> NodeReport:
        """Return the current report; the same object as before if it says the same."""
        ...

    async def wait_for_change(self, previous: NodeReport | None) -> NodeReport:
        """Wait until the report differs from the previous one, and return it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Versions:
    """The versions of the objects that the next writes are based on."""

    published: RdmaNodeView
    lease: LeaseView


def timed(status: RdmaNodeStatus, previous: bytes, now: datetime) -> RdmaNodeStatus:
    """Set the heartbeat of a status's condition, and its transition time by the status that it replaces."""
    try:
        ready = decode_status(previous).ready() if previous else None
    except MalformedError:
        ready = None
    written_at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = tuple(
        replaced(
            condition,
            last_transition_time=ready.last_transition_time
            if ready is not None and ready.status == condition.status and ready.last_transition_time
            else written_at,
            last_heartbeat_time=written_at,
        )
        for condition in status.conditions
    )
    return replaced(status, conditions=conditions)


def amount(quantity: str | None) -> int | None:
    """Parse a whole quantity of the API server, with or without `k` for thousands; None for other text."""
    if quantity is None:
        return None
    digits, thousand = (quantity[:-1], 1000) if quantity.endswith("k") else (quantity, 1)
    return int(digits) * thousand if digits.isdecimal() else None


def _released_vfs(previous: NodeReport, current: NodeReport) -> bool:
    holding = {allocation.container_id for allocation in current.allocations}
    return any(allocation.container_id not in holding for allocation in previous.allocations)
