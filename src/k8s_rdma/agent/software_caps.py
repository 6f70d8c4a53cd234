"""Caps that software enforces: checked at intervals; those that did not hold are restored and reported."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma.core.plan import software_capped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from k8s_rdma.agent.cluster.api_cluster import PodCluster
    from k8s_rdma.agent.node import Node
    from k8s_rdma.agent.observed_caps import CapFinding
    from k8s_rdma.agent.report import Reporter
    from k8s_rdma.agent.worker import Worker
    from k8s_rdma.core.ledger import Attachment, Receipt

_log = structlog.get_logger()

SLOW_S = 0.5

REST_FACTOR = 10
"""The pause after a pod's check that took longer than `SLOW_S`, as a multiple of that check's time: the pod
decides how many links it has (10,000 take more than a second), and one worker serves all."""

_Key = tuple["Attachment", str]
"""The key of an interface: its attachment and its name."""


class SoftwareCaps:
    """Restores caps that software enforces, and reports each that did not hold: in the log and to its pod.

    A cap that cannot be restored is reported once until its failure changes. Repeated losses and restorations
    are logged for the 1st, 2nd, 4th, 8th time and so on, and so is the end of each logged loss.
    """

    def __init__(
        self, node: Node, worker: Worker, cluster: PodCluster, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Wait for the first check. now: in seconds; called from several threads."""
        self._now = now
        self._node = node
        self._worker = worker
        self._cluster = cluster
        self._failed_since = _Times()
        self._restored = _Times()
        self._failing: dict[_Key, str] = {}
        self._logged_lost: set[_Key] = set()
        self._retry_at: dict[Attachment, float] = {}

    async def restore(self) -> bool:
        """Restore the caps of all complete attachments. Returns whether the failing caps changed."""
        failures = self._node.caps.failures
        receipts = dict(self._node.ledger.receipts)
        self._forget_all_but(receipts)
        for attachment, receipt in receipts.items():
            if software_capped(receipt) and self._now() >= self._retry_at.get(attachment, 0):
                findings = await self._worker.run(self._inspect, attachment)
                if findings is not None:
                    self._record(receipt, {finding.ifname: finding for finding in findings})
        return self._node.caps.failures != failures

    def _inspect(self, attachment: Attachment) -> tuple[CapFinding, ...] | None:
        """Restore an attachment's caps, timed on the worker's thread: the wait for it does not count."""
        begun = self._now()
        try:
            return self._node.restore_caps(attachment)
        finally:
            ended = self._now()
            if ended - begun > SLOW_S:
                self._retry_at[attachment] = ended + REST_FACTOR * (ended - begun)

    def _record(self, receipt: Receipt, findings: Mapping[str, CapFinding]) -> None:
        for interface in software_capped(receipt):
            key, finding = (receipt.attachment, interface.ifname), findings.get(interface.ifname)
            failed_before = self._failing.pop(key, "")
            if finding is None:
                if key in self._logged_lost:
                    _log.info("cap_holds", pod=receipt.pod.full_name, interface=interface.ifname)
                    self._logged_lost.remove(key)
            elif finding.failure:
                self._failing[key] = finding.failure
                if finding.failure != failed_before:
                    self._record_lost(receipt, finding)
            else:
                self._tell_restored(receipt, finding)

    def _tell_restored(self, receipt: Receipt, finding: CapFinding) -> None:
        key = receipt.attachment, finding.ifname
        times, seldom = self._restored.count(key)
        if seldom or key in self._logged_lost:
            _log.warning("cap_restored", **_cap_fields(receipt, finding), times=times)
        self._logged_lost.discard(key)
        message = f"{finding.found}: its cap of {finding.mbps} Mb/s was put back"
        self._cluster.cap_altered(receipt.pod, message, restored=True)

    def _record_lost(self, receipt: Receipt, finding: CapFinding) -> None:
        key = receipt.attachment, finding.ifname
        times, seldom = self._failed_since.count(key)
        if seldom:
            _log.warning("cap_lost", **_cap_fields(receipt, finding), error=finding.failure, times=times)
            self._logged_lost.add(key)
        message = f"interface {finding.ifname} is not limited to {finding.mbps} Mb/s: {finding.failure}"
        self._cluster.cap_altered(receipt.pod, message, restored=False)

    def _forget_all_but(self, receipts: Mapping[Attachment, Receipt]) -> None:
        for times in (self._failed_since, self._restored, self._failing):
            for key in [key for key in times if key[0] not in receipts]:
                times.pop(key)
        self._logged_lost = {key for key in self._logged_lost if key[0] in receipts}
        for attachment in self._retry_at.keys() - receipts.keys():
            self._retry_at.pop(attachment)


async def keep_caps(
    caps: SoftwareCaps,
    reporter: Reporter,
    *,
    every_s: float,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> NoReturn:
    """Restore the caps that software enforces, periodically, until cancelled.

    Runs apart from the reconciler: scans may pause for long, and attachments that cannot be ended wait for
    other programs. pause: as `asyncio.sleep`.
    """
    while True:
        await pause(every_s)
        if await caps.restore():
            await reporter.publish()


class _Times(dict[_Key, int]):
    """Counters of events by interface."""

    def count(self, key: _Key) -> tuple[int, bool]:
        """Count an event; return its number, and whether that is a power of two."""
        times = self[key] = self.get(key, 0) + 1
        return times, times & (times - 1) == 0


def _cap_fields(receipt: Receipt, finding: CapFinding) -> dict[str, object]:
    return {
        "pod": receipt.pod.full_name,
        "interface": finding.ifname,
        "pf": finding.vf.pf,
        "vf": finding.vf.index,
        "cap_mbps": finding.mbps,
        "found": finding.found,
    }
