"""Counters of VFs and PFs for the readers of `state.sock`.

A sample costs as much as a scan of the hardware, so samples are few.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.errors import KernelError
from k8s_rdma.wire.report import ReportedPod
from k8s_rdma.wire.state_socket import (
    SAMPLE_EVERY_S,
    SOON_S,
    CapCounts,
    Counters,
    PfPauses,
    RateChangeCounts,
    ScanCounts,
    VfTraffic,
    encode_counters,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from k8s_rdma.agent.node import InterfaceHolder, Node
    from k8s_rdma.agent.worker import Worker
    from k8s_rdma.core.kernel import PauseFrames, VfCounters


_log = structlog.get_logger()

QUIET_S = 0.5
"""The longest wait of a sample for a moment without calls."""


class Sampler:
    """Samples counters for all concurrent readers; at most once in `SAMPLE_EVERY_S`, failures included."""

    def __init__(  # noqa: PLR0913 - what is sampled, and the pace
        self,
        *,
        node: Node,
        worker: Worker,
        quiet: Callable[[], Awaitable[None]],
        rate_changes: Callable[[], RateChangeCounts] = RateChangeCounts,
        pause_frames: Callable[[str], Mapping[int, PauseFrames]] = lambda _: {},
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """quiet: awaited before a sample, `QUIET_S` at most; returns when no call is under way.

        rate_changes: counts changes of running pods' rates. pause_frames: as `Kernel.pause_frames`, called on
            the worker's thread.
        """
        self._node = node
        self._worker = worker
        self._quiet = quiet
        self._rate_changes = rate_changes
        self._pause_frames = pause_frames
        self._now = now
        self._pause = pause
        self._turn = asyncio.Lock()
        self._tried_at: float | None = None
        self._sampled_at: float | None = None
        self._vfs: tuple[VfTraffic, ...] = ()
        self._pauses: tuple[PfPauses, ...] = ()
        self._failed = 0

    async def counters(self) -> bytes:
        """Encode the body of a COUNTERS message, with a new sample if one is due."""
        async with self._turn:
            if self._due_in_s() <= SOON_S:
                await self._pause(self._due_in_s())
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUIET_S):
                        await self._quiet()
                await self._worker.run(self._sample)
        return encode_counters(self._counters())

    def _due_in_s(self) -> float:
        if self._tried_at is None:
            return 0
        return max(0.0, self._tried_at + SAMPLE_EVERY_S - self._now())

    def _sample(self) -> None:
        """Take a sample, on the worker's thread."""
        if self._due_in_s() > SOON_S:
            return  # the client of the previous request disconnected while that request was queued
        self._tried_at = self._now()
        try:
            names = {pf.pci: pf.name for pf in self._node.hardware.pfs}
            self._vfs = tuple(
                _traffic(counters, holder, names.get(counters.vf.pf, ""))
                for counters, holder in self._node.traffic()
            )
            self._pauses = tuple(
                PfPauses(
                    pf=pf,
                    pf_name=name,
                    priority=priority,
                    tx_frames=frames.sent,
                    rx_frames=frames.received,
                )
                for pf, name in names.items()
                for priority, frames in sorted(self._pause_frames(name).items())
            )
            self._sampled_at = self._now()
        except KernelError as error:
            self._failed += 1
            _log.warning("sample_failed", error=str(error))

    def _counters(self) -> Counters:
        scans, caps = self._node.scanner.scans, self._node.caps
        return Counters(
            node=self._node.name,
            age_s=None if self._sampled_at is None else round(self._now() - self._sampled_at, 3),
            failed_samples=self._failed,
            scans=ScanCounts(total=scans.total, failed=scans.failed, seconds=round(scans.seconds, 6)),
            caps=CapCounts(restored=caps.restored, lost=len(caps.failures)),
            rate_changes=self._rate_changes(),
            vfs=self._vfs,
            pauses=self._pauses,
        )


def _traffic(counters: VfCounters, holder: InterfaceHolder | None, pf_name: str) -> VfTraffic:
    return VfTraffic(
        pf=counters.vf.pf,
        pf_name=pf_name,
        vf=counters.vf.index,
        tx_bytes=counters.tx_bytes,
        rx_bytes=counters.rx_bytes,
        tx_packets=counters.tx_packets,
        rx_packets=counters.rx_packets,
        tx_dropped=counters.tx_dropped,
        rx_dropped=counters.rx_dropped,
        rdma=dict(counters.rdma),
        pod=ReportedPod(namespace=holder.pod.namespace, name=holder.pod.name, uid=holder.pod.uid)
        if holder
        else None,
        ifname=holder.ifname if holder else "",
    )
