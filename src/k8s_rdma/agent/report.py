"""Reports of the node to the readers of `state.sock`, and counters to those who ask (`wire.sockets`).

Part of a report are the GPUs that kubelet gives pods, which is asked for them.

A sample of the counters costs as much as a scan of the hardware, so samples are few.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import structlog

from k8s_rdma import __version__
from k8s_rdma.agent.calls import AgentCall
from k8s_rdma.core.devices.near_gpus import is_gpu
from k8s_rdma.core.inventory import Gpu, in_order
from k8s_rdma.errors import K8sRdmaError, KernelError, MalformedError, Reason
from k8s_rdma.process import wait_for_first
from k8s_rdma.wire.node_report import NodeReports, Refusals, Unenforced
from k8s_rdma.wire.rest import NodeReport, Pod, encode_report
from k8s_rdma.wire.sockets import (
    HEADER,
    SAMPLE_EVERY_S,
    SOON_S,
    CapCounts,
    Counters,
    Kind,
    PfPauses,
    RateChangeCounts,
    ScanCounts,
    Verdict,
    VfTraffic,
    decode_header,
    encode_counters,
    encode_message,
    encode_verdict,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from k8s_rdma.agent.node import Holder, Node, Worker
    from k8s_rdma.core.devices.pod_devices import PodDevices
    from k8s_rdma.core.kernel import PauseFrames, VfCounters
    from k8s_rdma.kube.pod_resources import PodResources

    Device = tuple[str, str]
    """A device: its resource and its id."""

    LocateGpus = Callable[[Collection[Device]], Awaitable[Mapping[Device, Gpu]]]
    Send = Callable[[Kind, bytes], Awaitable[None]]

_log = structlog.get_logger()

QUIET_S = 0.5
"""The longest wait of a sample for a moment without calls."""

GPUS_STAND_S = 60.0
"""The time for which the last known GPUs are reported while kubelet does not answer."""

GPU_QUERY_S = 15.0
"""The longest time for all of one query of GPUs."""

SETTLE_S = 0.5
"""The time before a query of GPUs after a call: calls come in bursts, and kubelet limits queries."""

PLACEMENT_PAUSE_S = 0.05
"""The pause after each placement of a reader: anybody may send some, and to verify one takes time."""

SEND_TIMEOUT_S = 10.0
"""The longest time for one message; a slower reader is disconnected, and connects again."""


class Reporter:
    """Reports the node's state."""

    def __init__(  # noqa: PLR0913 - what a report is made of
        self,
        node: Node,
        problems: Callable[[], tuple[str, ...]] = tuple,
        gpus: Callable[[], tuple[Gpu, ...]] = tuple,
        refusals: Callable[[], Refusals] = dict,
        *,
        takes_placements: bool = False,
        further: Sequence[StatePublisher] = (),
    ) -> None:
        """Begin a new epoch.

        problems: those of the agent itself at this moment, one sentence each. gpus: those of this moment.
        refusals: the changes of running pods' rates that are not made at this moment. takes_placements: as in
        `NodeReport`.
        further: publish whenever the report is published, since they are made of the node's state, too.
        """
        self._node = node
        self._problems = problems
        self._gpus = gpus
        self._refusals = refusals
        self._last_problems: tuple[str, ...] = ()
        self._reports = NodeReports(
            node.name,
            uuid.uuid4().hex[:12],
            agent_version=__version__,
            takes_placements=takes_placements,
        )
        self._last_report: NodeReport | None = None
        self._encoded = b""
        self.publisher = StatePublisher(self._report)
        self._publishers = (self.publisher, *further)

    async def publish(self) -> None:
        """Send the state to all readers that have another one."""
        for publisher in self._publishers:
            await publisher.publish()

    async def publish_problems(self) -> None:
        """Publish, if the agent's own problems differ from the last report's."""
        if self._problems() != self._last_problems:
            await self.publish()

    def now(self) -> NodeReport:
        """Make the current report; the same object as before if nothing changed."""
        self._report()
        return cast("NodeReport", self._last_report)

    async def wait_for_change(self, previous: NodeReport | None) -> NodeReport:
        """Wait until the report differs from the previous one, and return it."""
        sent = None if previous is None else self._encoded
        while self._last_report is previous:
            sent = await self.publisher.wait_for_change(sent)
        return cast("NodeReport", self._last_report)

    def _report(self) -> bytes:
        self._last_problems = self._problems()
        node = self._node
        report = self._reports.build(
            node.hardware,
            node.ledger,
            Unenforced(caps=node.caps.failures, refusals=self._refusals()),
            self._last_problems,
            self._gpus(),
        )
        if report is not self._last_report:
            self._last_report, self._encoded = report, encode_report(report)
        return self._encoded


class GpuMonitor:
    """Follows the node's GPUs: kubelet says which there are and which pods have, the machine where they are.

    pods_changed: to be set when a pod may have got devices or given some back. Kubelet takes them back when
        a pod is over, after its DEL: the next query of the interval shows that.
    """

    def __init__(  # noqa: PLR0913 - where GPUs are, who says so, and the pace
        self,
        kubelet: PodResources | None,
        locate: LocateGpus,
        *,
        present: Callable[[], Awaitable[bool]] | None = None,
        own_resources: Collection[str] = (),
        every_s: float = 10.0,
        timeout_s: float = GPU_QUERY_S,
    ) -> None:
        """Ask nothing until `run`.

        kubelet: None where its socket is not known: then there are no GPUs. locate: as
        `linux.gpus.Gpus.by_device`. own_resources: of our device plugin; none are GPUs.
        present: whether the machine has GPUs. Kubelet is not asked where it has none: the first question
            loads gRPC, of 13 MiB. None to ask always.
        """
        self._kubelet = kubelet
        self._locate = locate
        self._present = present
        self._own_resources = frozenset(own_resources)
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._gpus: tuple[Gpu, ...] = ()
        self._silent_since_s: float | None = None
        self.pods_changed = asyncio.Event()

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs by the last answer, ordered; none once kubelet has been silent for `GPUS_STAND_S`."""
        return self._gpus

    async def run(self, publish: Callable[[], Awaitable[None]]) -> None:
        """Follow until cancelled. publish: awaited after each change."""
        while self._kubelet is not None:
            previous = self._gpus
            await self._refresh(self._kubelet)
            if self._gpus != previous:
                await publish()
            await self._wait()

    async def _refresh(self, kubelet: PodResources) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                self._gpus = await self._query(kubelet)
        except (K8sRdmaError, TimeoutError) as error:
            self._fail(str(error) or f"no answer in {self._timeout_s:g} s")
        else:
            self._silent_since_s = None

    async def _query(self, kubelet: PodResources) -> tuple[Gpu, ...]:
        if self._present is not None and not await self._present():
            return ()
        allocatable = {device for device in await kubelet.allocatable() if self._is_gpu(device)}
        if not allocatable:
            return ()
        pods = await kubelet.all()
        if not pods and any(gpu.in_use for gpu in self._gpus):
            msg = "kubelet knows no pods, as just after its start"
            raise K8sRdmaError(msg, reason=Reason.KUBELET_FAILURE)
        allocated = {device for device in _devices(pods) if self._is_gpu(device)}
        located = await self._locate(allocatable | allocated)
        in_use = {located[device] for device in allocated & located.keys()}
        devices = Counter(located[device] for device in allocatable & located.keys())
        return in_order(replace(gpu, in_use=gpu in in_use, devices=number) for gpu, number in devices.items())

    def _is_gpu(self, device: Device) -> bool:
        resource, _ = device
        return is_gpu(resource) and resource not in self._own_resources

    def _fail(self, error: str) -> None:
        """Forget the GPUs when they have stood long enough; log the first failure."""
        now_s = asyncio.get_running_loop().time()
        if self._silent_since_s is None:
            self._silent_since_s = now_s
            _log.warning("gpus_unknown", error=error)
        if now_s >= self._silent_since_s + GPUS_STAND_S:
            self._gpus = ()

    async def _wait(self) -> None:
        """Wait until the next query is due: after a change of pods, or when known GPUs stand no longer."""
        timeout_s = self._every_s
        if self._gpus and self._silent_since_s is not None:
            stand_s = self._silent_since_s + GPUS_STAND_S - asyncio.get_running_loop().time()
            timeout_s = min(timeout_s, stand_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.pods_changed.wait()
                await asyncio.sleep(SETTLE_S)
        self.pods_changed.clear()


def _devices(pods: Iterable[PodDevices]) -> set[Device]:
    return {
        (devices.resource, device_id) for pod in pods for devices in pod.devices for device_id in devices.ids
    }


class StatePublisher:
    """Holds the latest report and wakes readers of a new one. A report is made when somebody reads it."""

    def __init__(self, render: Callable[[], bytes]) -> None:
        """render: makes the current report, the same bytes while nothing differs."""
        self._render = render
        self._report: bytes | None = None
        self._change = asyncio.Condition()

    async def publish(self) -> None:
        """Wake readers: the report may have changed."""
        async with self._change:
            self._report = None
            self._change.notify_all()

    async def wait_for_change(self, previous: bytes | None) -> bytes:
        """Wait until the report differs from the previous one, and return it."""
        async with self._change:
            while (report := self._latest()) == previous:
                await self._change.wait()
            return report

    def _latest(self) -> bytes:
        if self._report is None:
            self._report = self._render()
        return self._report


class StateSocket:
    """Speaks `wire.sockets`: sends each reader every report that is new to it, and answers its requests."""

    def __init__(
        self,
        publisher: StatePublisher,
        sample: Callable[[], Awaitable[bytes]],
        deliver: Callable[[bytes], None],
    ) -> None:
        """sample: makes the body of a COUNTERS message. deliver: as `Cluster.deliver`."""
        self._publisher = publisher
        self._sample = sample
        self._deliver = deliver

    async def talk(self, connection: socket.socket) -> None:
        """Serve one reader until it hangs up or breaks the protocol."""
        send = _sender(connection)
        await wait_for_first(self._stream(send), self._answer(connection, send))

    async def _stream(self, send: Send) -> None:
        sent = None
        while True:
            sent = await self._publisher.wait_for_change(sent)
            await send(Kind.REPORT, sent)

    async def _answer(self, connection: socket.socket, send: Send) -> None:
        """Answer each request until the reader hangs up."""
        while header := await _receive(connection, HEADER.size):
            try:
                kind, length = decode_header(header)
            except MalformedError:
                return
            if kind is Kind.SAMPLE:
                await send(Kind.COUNTERS, await self._sample())
            elif kind is Kind.PLACEMENT and (text := await _receive(connection, length)):
                await send(Kind.VERDICT, encode_verdict(await self._verdict(text)))
                await asyncio.sleep(PLACEMENT_PAUSE_S)
            else:
                return

    async def _verdict(self, text: bytes) -> Verdict:
        """Take a placement; a fault is an answer, too, because any reader may send one."""

        async def deliver() -> Verdict:
            self._deliver(text)
            return Verdict()

        return await AgentCall(
            name="placement_delivery",
            perform=deliver,
            failed=_refusing,
            logs_success=False,
            logs_refusal=False,
        ).answer()


def _refusing(error: K8sRdmaError) -> Verdict:
    return Verdict(reason=error.reason, message=error.message)


def _sender(connection: socket.socket) -> Send:
    """Make a sender of whole messages, one at a time for several tasks."""
    turn = asyncio.Lock()

    async def send(kind: Kind, body: bytes) -> None:
        async with turn, asyncio.timeout(SEND_TIMEOUT_S):
            await asyncio.get_running_loop().sock_sendall(connection, encode_message(kind, body))

    return send


async def _receive(connection: socket.socket, size: int) -> bytes:
    """Receive so many bytes; none where the peer hangs up before."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        chunk = await loop.sock_recv(connection, size - len(data))
        if not chunk:
            return b""
        data += chunk
    return data


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


def _traffic(counters: VfCounters, holder: Holder | None, pf_name: str) -> VfTraffic:
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
        pod=Pod(namespace=holder.pod.namespace, name=holder.pod.name, uid=holder.pod.uid) if holder else None,
        ifname=holder.ifname if holder else "",
    )
