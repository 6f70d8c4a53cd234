"""VFs as a counted extended resource in the Node object's capacity.

Kubernetes' documentation, "Advertise Extended Resources for a Node": kubelet makes allocatable what somebody
else wrote into the capacity, within its next status update. A kubelet that finds no devices of before after
its start sets all extended resources to 0 (`pkg/kubelet/kubelet_node_status.go`), so it is written again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.kube.api import API_ERRORS
from k8s_rdma.wire.rdma_node import status_of, vfs_for_pods

if TYPE_CHECKING:
    from typing import NoReturn

    from k8s_rdma.agent.cluster.own_node import OwnNode
    from k8s_rdma.agent.cluster.status_publisher import Reports
    from k8s_rdma.kube.published import OwnNodeView, PublishingApi
    from k8s_rdma.kube.time import Time
    from k8s_rdma.wire.rest import NodeReport

GAP_S = 1.0
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
        retry_s = 0.0
        while True:
            own, report = await self._own.known(), self._reports.now()
            try:
                await self._keep(own, report)
            except API_ERRORS as error:
                if not retry_s:
                    _log.warning("capacity_not_published", why=str(error))
                retry_s = min(max(FIRST_RETRY_S, 2 * retry_s), LAST_RETRY_S)
                await self._time.pause(retry_s)
                continue
            retry_s = 0.0
            await self._changed(own, report)
            await self._time.pause(GAP_S)

    async def _keep(self, own: OwnNodeView, report: NodeReport) -> None:
        if report.unreadable:
            return
        wanted = vfs_for_pods(status_of(report))
        if amount(own.capacity.get(self._resource)) != wanted:
            await self._api.set_capacity(self._own.name, self._resource, wanted)
            _log.info("capacity_published", resource=self._resource, vfs=wanted)

    async def _changed(self, own: OwnNodeView, report: NodeReport) -> None:
        both = [
            asyncio.ensure_future(self._own.other_than(own)),
            asyncio.ensure_future(self._reports.other_than(report)),
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
