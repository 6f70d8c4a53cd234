"""Traffic counters on demand: a sample is as dear as a look at the hardware, so they are few."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.errors import KernelError
from k8s_rdma.wire.rest import Pod
from k8s_rdma.wire.state import (
    SAMPLE_EVERY_S,
    SOON_S,
    CapCounts,
    Counters,
    ScanCounts,
    VfTraffic,
    encode_counters,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from k8s_rdma.agent.node import Holder, Node
    from k8s_rdma.agent.worker import Worker
    from k8s_rdma.core.kernel import VfCounters

_log = structlog.get_logger()

QUIET_S = 0.5
"""How long a sample waits for a moment in which no pod does."""


class Sampler:
    """Samples for all who ask together; at most one in `SAMPLE_EVERY_S`, a failed one included."""

    def __init__(
        self,
        *,
        node: Node,
        worker: Worker,
        quiet: Callable[[], Awaitable[None]],
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """quiet: awaited before a sample is taken, `QUIET_S` at most; returns when no pod waits."""
        self._node = node
        self._worker = worker
        self._quiet = quiet
        self._now = now
        self._pause = pause
        self._turn = asyncio.Lock()
        self._tried_at: float | None = None
        self._sampled_at: float | None = None
        self._vfs: tuple[VfTraffic, ...] = ()
        self._failed = 0

    async def counters(self) -> bytes:
        """The body of a COUNTERS message, with a new sample if one is due."""
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
        """On the worker's thread."""
        if self._due_in_s() > SOON_S:
            return  # whoever asked for the one before went away while it waited for its turn
        self._tried_at = self._now()
        try:
            names = {pf.pci: pf.name for pf in self._node.hardware.pfs}
            self._vfs = tuple(
                _traffic(counters, holder, names.get(counters.vf.pf, ""))
                for counters, holder in self._node.traffic()
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
            vfs=self._vfs,
        )


def _traffic(counters: VfCounters, holder: Holder | None, pf_name: str) -> VfTraffic:
    return VfTraffic(
        pf=counters.vf.pf,
        pf_name=pf_name,
        vf=counters.vf.index,
        tx_bytes=counters.tx_bytes,
        rx_bytes=counters.rx_bytes,
        tx_packets=counters.tx_packets,
        rx_packets=counters.rx_packets,
        rdma=dict(counters.rdma),
        pod=Pod(namespace=holder.pod.namespace, name=holder.pod.name, uid=holder.pod.uid) if holder else None,
        ifname=holder.ifname if holder else "",
    )
