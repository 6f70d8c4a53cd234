"""The server's link to the agent: the answers of each report, and traffic counters for scrapes.

Answers are rendered once for each state of the node. A VF's traffic is one series, with the pod that holds
the VF. An unknown value has no sample, because 0 would be a statement.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace
from prometheus_client.core import SummaryMetricFamily

from k8s_rdma import __version__
from k8s_rdma.core.types import BITS_PER_MEGABIT
from k8s_rdma.errors import STATUS, K8sRdmaError, Reason
from k8s_rdma.http_server.asgi import JSON, Answer, counter, error_answer, exposition, gauge
from k8s_rdma.state_reader import FIRST_REPORT_TIMEOUT_S, AgentLink
from k8s_rdma.wire.getpfs import encode_getpfs
from k8s_rdma.wire.http_error import Error
from k8s_rdma.wire.report import NodeReport, PfReport, ReportedPod, encode_report, held_vfs, without_vfs
from k8s_rdma.wire.state_socket import (
    SAMPLE_EVERY_S,
    SOON_S,
    Counters,
    MessageKind,
    PlacementVerdict,
    VfTraffic,
    encode_message,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterator
    from pathlib import Path

    from prometheus_client import Metric


if TYPE_CHECKING:
    Value = Callable[[PfReport], int | None]
    """The value of a PF, if it is known."""

RETRY = {"retry-after": "1"}
"""Header of answers that may succeed soon, in seconds (RFC 9110, section 10.2.3)."""


_TRAFFIC: tuple[tuple[str, str, Callable[[VfTraffic], int | None]], ...] = (
    ("transmitted_bytes", "Bytes sent", lambda vf: vf.tx_bytes),
    ("received_bytes", "Bytes received", lambda vf: vf.rx_bytes),
    ("transmitted_packets", "Packets sent", lambda vf: vf.tx_packets),
    ("received_packets", "Packets received", lambda vf: vf.rx_packets),
    ("transmitted_dropped", "Packets not sent, as the driver counts them,", lambda vf: vf.tx_dropped),
    ("received_dropped", "Packets not received, as the driver counts them,", lambda vf: vf.rx_dropped),
)

Scan: TypeAlias = "Callable[[], NodeReport]"

ANSWER_TIMEOUT_S = 2.0
"""Time for which a scrape waits for the agent; then it gets the last counters, with their age."""

MAX_DELIVERIES = 32
"""Placements on their way to the agent, of 8 MiB at most."""

MAX_DELIVERIES_OF_CLIENT = 16
"""The part of them that one client may have: another one finds room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answer of each path in one state.

    metrics: those of this state, without traffic.
    generation: that of `/v1/node`, if there is such a document.
    unchanged: the answer to clients that have this generation.
    """

    node: Answer
    getpfs: Answer
    healthz: Answer
    readyz: Answer
    metrics: bytes
    generation: str | None = None
    unchanged: Answer | None = None


class Shown:
    """The current answers; one event wakes all that wait for others."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self._changed = asyncio.Event()

    def show(self, answers: Answers) -> None:
        """Replace the answers."""
        self.answers = answers
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        """Return once there are other answers."""
        await self._changed.wait()


def report_answers(report: NodeReport) -> Answers:
    """Render the answers of a report; an incomplete one shows in the metrics alone."""
    agent = "answers" if report.ledger == "ok" else "does not answer; the ledger is unavailable"
    if report.unreadable:
        return _unavailable(_unreadable(report), render_metrics(report), agent)
    etag = f'"{report.generation}"'
    node = Answer(encode_report(without_vfs(report)), content_type=JSON, headers={"etag": etag})
    return Answers(
        node=node,
        getpfs=Answer(encode_getpfs(report), content_type=JSON),
        healthz=_health(agent),
        readyz=Answer(f"ok\nledger: {report.ledger}\n"),
        metrics=render_metrics(report),
        generation=report.generation,
        unchanged=Answer(status=304, headers={"etag": etag}),
    )


def outage_answers(why: str, outage_since: datetime) -> Answers:
    """Render the answers while neither the agent nor a scan of the hardware answers.

    The last state is not shown: pods may have come and gone since.
    """
    since_text = outage_since.isoformat(timespec="seconds")
    message = f"the agent has not answered since {since_text}: {why}"
    error = Error(reason=Reason.AGENT_UNREACHABLE, message=message, since=since_text)
    return _unavailable(error, render_metrics(None), f"does not answer since {since_text}: {why}")


def _unreadable(report: NodeReport) -> Error:
    message = f"node {report.node}: {len(report.unreadable)} of what it has could not be read, see problems"
    return Error(reason=Reason.UNREADABLE_NODE, message=message, problems=report.unreadable)


def _unavailable(error: Error, metrics: bytes, agent: str) -> Answers:
    unavailable = error_answer(STATUS[Reason(error.reason)].http, error, headers=RETRY)
    return Answers(
        node=unavailable,
        getpfs=unavailable,
        healthz=_health(agent),
        readyz=unavailable,
        metrics=metrics,
    )


def _health(agent: str) -> Answer:
    """Answer 200 always: restarting this server does not bring the agent back."""
    return Answer(f"ok\nagent: {agent}\n")


def render_metrics(report: NodeReport | None) -> bytes:
    """Render the metrics of a node; None while its state is unknown."""
    return exposition(_node_metrics(report))


def render_traffic(counters: Counters) -> bytes:
    """Render the metrics of the last sample, without its age, which changes without it."""
    return exposition(_traffic_metrics(counters))


def render_age(counters: Counters, age_s: float) -> bytes:
    """Render the metric of the sample's age."""
    name, sample = "k8s_rdma_sample_age_seconds", ({"node": counters.node}, round(age_s, 3))
    return exposition([gauge(name, "Age of the traffic counters shown here.", [sample])])


def _node_metrics(report: NodeReport | None) -> Iterator[Metric]:
    reachable = report is not None and report.ledger == "ok"
    yield gauge("k8s_rdma_agent_reachable", "Whether the node's agent answers.", [({}, reachable)])
    if report is None:
        return
    node = {"node": report.node}
    versions = {"server": __version__, "agent": report.agent_version}
    samples = [
        ({**node, "process": process, "version": version}, 1)
        for process, version in versions.items()
        if version
    ]
    yield gauge("k8s_rdma_build_info", "1, with the version of each of the node's programs.", samples)
    if report.ledger == "ok":
        help_text = "Sandboxes that hold interfaces."
        yield gauge("k8s_rdma_allocations", help_text, [(node, len(report.allocations))])
        help_text = (
            "Generation of a pod's rates that is programmed; absent while they are those of its start."
        )
        yield gauge("k8s_rdma_rates_generation", help_text, _generations(report))
    help_text = "Parts of the hardware that the last scan could not read."
    yield gauge("k8s_rdma_unreadable", help_text, [(node, len(report.unreadable))])
    help_text = "Problems of the node for its operator; /v1/node describes them."
    yield gauge("k8s_rdma_problems", help_text, [(node, len(report.problems))])
    pfs = [({**node, "pf": pf.name, "pci": pf.pci}, pf) for pf in report.pfs]
    for name, help_text, value in _pf_metrics(report):
        samples = [(labels, number) for labels, pf in pfs if (number := value(pf)) is not None]
        yield gauge(f"k8s_rdma_pf_{name}", help_text, samples)
    yield from _pool_metrics(report)
    yield from _rate_metrics(report)


def _rate_metrics(report: NodeReport) -> Iterator[Metric]:
    """Render the rates of interfaces that pods hold; a cap only if there is one."""
    names = {pf.pci: pf.name for pf in report.pfs}
    reserved, caps = [], []
    for allocation in report.allocations:
        for interface in allocation.interfaces:
            function = {"pf": names.get(interface.pf, ""), "pci": interface.pf, "vf": str(interface.vf)}
            labels = {"node": report.node, **function, **_holder_labels(allocation.pod, interface.ifname)}
            reserved.append((labels, interface.reserved_mbps * BITS_PER_MEGABIT))
            if interface.max_tx_rate:
                caps.append((labels, interface.max_tx_rate * BITS_PER_MEGABIT))
    yield gauge("k8s_rdma_vf_reserved_bits_per_second", "Bandwidth reserved for an interface.", reserved)
    help_text = "Cap of an interface; absent without one."
    yield gauge("k8s_rdma_vf_cap_bits_per_second", help_text, caps)


def _generations(report: NodeReport) -> Iterator[tuple[dict[str, str], int]]:
    """Yield the generation that all of a pod's interfaces have, by its labels."""
    generations: dict[tuple[str, str], int] = {}
    for allocation in filter(lambda allocation: allocation.interfaces, report.allocations):
        pod = (allocation.pod.namespace, allocation.pod.name)
        generations[pod] = min(allocation.generation, generations.get(pod, allocation.generation))
    for (namespace, name), generation in generations.items():
        if generation:
            yield {"node": report.node, "namespace": namespace, "pod": name}, generation


def _pool_metrics(report: NodeReport) -> Iterator[Metric]:
    counts, _ = _vf_counts(report)
    vfs, used_vfs = [], []
    for pf in report.pfs:
        for resource, count in pf.pools.items():
            labels = {"node": report.node, "pf": pf.name, "pci": pf.pci, "resource": resource}
            vfs.append((labels, count))
            used_vfs.append((labels, counts[pf.pci, resource]))
    yield gauge("k8s_rdma_pool_vfs", "Virtual functions of an exclusive resource.", vfs)
    help_text = "Virtual functions of an exclusive resource that are in use, by pods or others."
    yield gauge("k8s_rdma_pool_vfs_used", help_text, used_vfs)


def _pf_metrics(report: NodeReport) -> tuple[tuple[str, str, Value], ...]:
    """Return name, explanation and value of every metric of a PF."""
    vfs, mbps = _vf_counts(report)

    def bandwidth(mbps_of: Callable[[PfReport, int], int]) -> Value:
        """Build the value of a PF whose link speed is known."""
        return lambda pf: None if pf.link_mbps is None else mbps_of(pf, pf.link_mbps) * BITS_PER_MEGABIT

    return (
        ("vfs", "Virtual functions of no exclusive resource.", lambda pf: pf.capacity_vfs),
        ("vfs_used", "Of these, those in use, by pods or others.", lambda pf: vfs[pf.pci, ""]),
        (
            "vfs_free",
            "Of these, those that are free.",
            lambda pf: max(0, pf.capacity_vfs - vfs[pf.pci, ""]),
        ),
        ("link_bits_per_second", "Link speed; absent while it is unknown.", bandwidth(lambda _, link: link)),
        (
            "reserved_bits_per_second",
            "Bandwidth reserved by pods or others.",
            lambda pf: mbps[pf.pci] * BITS_PER_MEGABIT,
        ),
        (
            "free_bits_per_second",
            "Bandwidth of the link that is not reserved; absent while its speed is unknown.",
            bandwidth(lambda pf, link: max(0, link - mbps[pf.pci])),
        ),
        (
            "overcommitted_bits_per_second",
            "Reserved bandwidth beyond what the link has now; absent while its speed is unknown.",
            bandwidth(lambda pf, link: max(0, mbps[pf.pci] - link)),
        ),
    )


def _vf_counts(report: NodeReport) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """Count VFs by PF and pool, and Mb/s by PF: of pods, as programmed if that is more, and of others.

    The pool of VFs that pods request by annotation is the empty one.
    """
    vfs: Counter[tuple[str, str]] = Counter()
    mbps: Counter[str] = Counter()
    for pci, pool, reserved_mbps in held_vfs(report):
        vfs[pci, pool] += 1
        mbps[pci] += reserved_mbps
    return vfs, mbps


def _traffic_metrics(counters: Counters) -> Iterator[Metric]:
    node, scans = {"node": counters.node}, counters.scans
    help_text = "Scans of the hardware by the agent, and their duration."
    summary = SummaryMetricFamily("k8s_rdma_scan_duration_seconds", help_text, labels=("node",))
    summary.add_metric((counters.node,), scans.total, scans.seconds)
    yield summary
    help_text = "Scans of the hardware that failed or were incomplete."
    yield counter("k8s_rdma_scan_errors_total", help_text, [(node, scans.failed)])
    help_text = "Samples of traffic counters that failed."
    yield counter("k8s_rdma_sample_errors_total", help_text, [(node, counters.failed_samples)])
    help_text = "Software caps that were lost and restored."
    yield counter("k8s_rdma_software_caps_restored_total", help_text, [(node, counters.caps.restored)])
    help_text = "Software caps that are lost and cannot be restored."
    yield gauge("k8s_rdma_software_caps_lost", help_text, [(node, counters.caps.lost)])
    changes = counters.rate_changes
    help_text = "Changes of running pods' rates that were programmed."
    yield counter("k8s_rdma_rate_changes_total", help_text, [(node, changes.made)])
    help_text = "Attempts to change running pods' rates that were refused or failed."
    yield counter("k8s_rdma_rate_change_errors_total", help_text, [(node, changes.refused)])
    help_text = "Changes of running pods' rates that were refused or failed and are tried again."
    yield gauge("k8s_rdma_rate_changes_waiting", help_text, [(node, changes.waiting)])
    if counters.age_s is not None:
        yield from _vf_metrics(counters)
        yield from _pause_metrics(counters)


def _pause_metrics(counters: Counters) -> Iterator[Metric]:
    pauses = [
        ({"node": counters.node, "pf": pf.pf_name, "pci": pf.pf, "priority": str(pf.priority)}, pf)
        for pf in counters.pauses
    ]
    help_text = "Pause frames that a physical function sent, by priority: it was too slow to receive."
    sent = [(labels, pause.tx_frames) for labels, pause in pauses]
    yield counter("k8s_rdma_pf_transmitted_pause_frames_total", help_text, sent)
    help_text = "Pause frames that a physical function received, by priority: it had to wait."
    received = [(labels, pause.rx_frames) for labels, pause in pauses]
    yield counter("k8s_rdma_pf_received_pause_frames_total", help_text, received)


def _vf_metrics(counters: Counters) -> Iterator[Metric]:
    """Render the counters of VFs that pods hold: a node may have a thousand others."""
    vfs = [
        (
            {
                "node": counters.node,
                "pf": vf.pf_name,
                "pci": vf.pf,
                "vf": str(vf.vf),
                **_holder_labels(vf.pod, vf.ifname),
            },
            vf,
        )
        for vf in counters.vfs
        if vf.pod
    ]
    for name, unit, value in _TRAFFIC:
        help_text = f"{unit} by a virtual function's holder since its interface was made."
        samples = [(labels, count) for labels, vf in vfs if (count := value(vf)) is not None]
        yield counter(f"k8s_rdma_vf_{name}_total", help_text, samples)
    yield counter(
        "k8s_rdma_vf_rdma_counter_total",
        "Hardware counters of a virtual function's RDMA device, by the kernel's names.",
        [({**labels, "counter": name}, count) for labels, vf in vfs for name, count in vf.rdma.items()],
    )


def _holder_labels(pod: ReportedPod, ifname: str) -> dict[str, str]:
    """Return the labels of an interface that a pod holds, by its name there."""
    return {"namespace": pod.namespace, "pod": pod.name, "interface": ifname}


class AnswersLink(AgentLink):
    """The current answers; `run` keeps them up to date.

    A report counts only until the connection that brought it ends.
    """

    def __init__(
        self,
        socket: Path,
        *,
        scan: Scan | None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        first_report_timeout_s: float = FIRST_REPORT_TIMEOUT_S,
    ) -> None:
        """Begin without a report. scan: scans the hardware while the agent is away, if that is possible.

        It runs in a thread of its own at every attempt to reach the agent. It reports everything in use as
        foreign, returns the same object for equal states and another generation for different ones, and
        raises K8sRdmaError.
        """
        super().__init__(socket, pause=pause, first_report_timeout_s=first_report_timeout_s)
        self._scan = scan
        self._clock = clock
        self._away_since: datetime | None = clock()
        self.shown = Shown(outage_answers("not contacted yet", clock()))
        self._shown_scan: NodeReport | None = None
        self.traffic = TrafficReader()
        self.deliveries = Deliveries()

    def reported(self, report: NodeReport) -> None:
        """Answer from this report."""
        self.deliveries.takes_placements = report.takes_placements
        self.shown.show(report_answers(report))

    def connected(self, send: Callable[[bytes], None]) -> None:
        """Request counters and deliver placements by `send` from now on."""
        self._away_since = None
        self.traffic.connected(lambda: send(encode_message(MessageKind.SAMPLE)))
        self.deliveries.connected(send)

    def counted(self, counters: Counters) -> None:
        """Pass counters to the scrapes that wait for them."""
        self.traffic.received(counters)

    def judged(self, verdict: PlacementVerdict) -> None:
        """Pass the verdict to the delivery that waits for it."""
        self.deliveries.judged(verdict)

    def disconnected(self) -> None:
        """Drop the counters, and end deliveries."""
        self.traffic.disconnected()
        self.deliveries.disconnected()

    async def away(self, why: str) -> None:
        """Answer without a ledger, from a scan of the hardware if there is one."""
        if self._away_since is None:
            self._away_since = self._clock()
            # At once, so that no client reads a state that may have changed during the scan.
            self._show_outage(why, self._away_since)
        if self._scan is None:
            self._show_outage(why, self._away_since)
            return
        try:
            hardware = await asyncio.to_thread(self._scan)
        except K8sRdmaError as error:
            self._show_outage(f"{why}; and the hardware: {error}", self._away_since)
        else:
            if hardware is not self._shown_scan:
                self._shown_scan = hardware
                self.shown.show(report_answers(replace(hardware, ledger="unavailable", allocations=())))

    def _show_outage(self, why: str, outage_since: datetime) -> None:
        self._shown_scan = None
        self.shown.show(outage_answers(why, outage_since))


class Deliveries:
    """Placements on their way to the agent, which answers them one after the other.

    takes_placements: whether the agent does; an older one would end the connection.
    """

    def __init__(self, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Start without an agent. timeout_s: the longest wait for a verdict."""
        self.takes_placements = False
        self._timeout_s = timeout_s
        self._send: Callable[[bytes], None] | None = None
        self._verdicts: deque[asyncio.Future[PlacementVerdict | None]] = deque()
        self._clients: deque[Hashable] = deque()

    def connected(self, send: Callable[[bytes], None]) -> None:
        """Take `send`, which sends the agent a message."""
        self._send = send

    def disconnected(self) -> None:
        """Forget the agent; its verdicts will not come."""
        self._send, self.takes_placements = None, False
        while self._verdicts:
            self.judged(None)

    def judged(self, verdict: PlacementVerdict | None) -> None:
        """Take the verdict on the oldest placement; its sender may have given up."""
        if not self._verdicts:
            return
        waiting = self._verdicts.popleft()
        self._clients.popleft()
        if not waiting.done():
            waiting.set_result(verdict)

    async def deliver(self, text: bytes, *, client: Hashable) -> PlacementVerdict | None:
        """Send the agent a placement; None if it does not answer, or has not answered others.

        client: it has a bounded number of them on their way.
        """
        if self._send is None or len(self._verdicts) >= MAX_DELIVERIES:
            return None
        if self._clients.count(client) >= MAX_DELIVERIES_OF_CLIENT:
            return None
        if not self.takes_placements:
            message = "the node's agent takes no placements from elsewhere: it has credentials, or is older"
            return PlacementVerdict(reason=Reason.NOT_ALLOWED, message=message)
        verdict: asyncio.Future[PlacementVerdict | None] = asyncio.get_running_loop().create_future()
        self._verdicts.append(verdict)
        self._clients.append(client)
        self._send(encode_message(MessageKind.PLACEMENT, text))
        try:
            async with asyncio.timeout(self._timeout_s):
                return await verdict
        except TimeoutError:
            return None


class TrafficReader:
    """The last traffic counters. At most one request is under way, however many scrapes wait for it."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        """Start without counters and without an agent."""
        self._clock = clock
        self._timeout_s = timeout_s
        self._request: Callable[[], None] | None = None
        self._answered: asyncio.Event | None = None
        self._sampled_at: float | None = None
        self._counters: Counters | None = None
        self._rendered: bytes | None = None

    def connected(self, request: Callable[[], None]) -> None:
        """Take `request`, which requests counters of the agent."""
        self._request = request

    def disconnected(self) -> None:
        """Forget the agent and its counters."""
        self._request, self._counters, self._sampled_at = None, None, None
        self._release_waiters()

    def received(self, counters: Counters) -> None:
        """Take the agent's answer."""
        self._counters, self._rendered = counters, None
        self._sampled_at = None if counters.age_s is None else self._clock() - counters.age_s
        self._release_waiters()

    async def exposition(self) -> bytes:
        """Return the counters in the Prometheus text format, as fresh as possible; empty without any."""
        await self._refresh()
        if self._counters is None:
            return b""
        if self._rendered is None:
            self._rendered = render_traffic(self._counters)
        age_s = self._age_s()
        return self._rendered if age_s is None else self._rendered + render_age(self._counters, age_s)

    def _age_s(self) -> float | None:
        return None if self._sampled_at is None else self._clock() - self._sampled_at

    async def _refresh(self) -> None:
        """Request a new sample if one is due, and wait for it for a limited time."""
        age_s = self._age_s()
        if self._request is None or (age_s is not None and age_s < SAMPLE_EVERY_S - SOON_S):
            return
        if self._answered is None:
            self._answered = asyncio.Event()
            self._request()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self._answered.wait()

    def _release_waiters(self) -> None:
        if self._answered is not None:
            self._answered.set()
            self._answered = None
