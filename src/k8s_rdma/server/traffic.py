"""Traffic counters of VFs in the Prometheus text format: one series a VF, with the pod that held it.

The agent is asked at a scrape when its last counters have grown old.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from k8s_rdma.http_server.exposition import family, labels, summary
from k8s_rdma.wire.state import SAMPLE_EVERY_S, SOON_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from k8s_rdma.wire.state import Counters, VfTraffic

_TRAFFIC: tuple[tuple[str, str, Callable[[VfTraffic], int]], ...] = (
    ("transmitted_bytes", "Bytes sent", lambda vf: vf.tx_bytes),
    ("received_bytes", "Bytes received", lambda vf: vf.rx_bytes),
    ("transmitted_packets", "Packets sent", lambda vf: vf.tx_packets),
    ("received_packets", "Packets received", lambda vf: vf.rx_packets),
)


def render_traffic(counters: Counters) -> bytes:
    """All but the sample's age, which changes without it."""
    return ("\n".join(_lines(counters)) + "\n").encode()


def render_age(counters: Counters, age_s: float) -> bytes:
    """How old the sample is."""
    name, node = "k8s_rdma_sample_age_seconds", labels({"node": counters.node})
    lines = family(name, "gauge", "Age of the traffic counters shown here.", [(node, round(age_s, 3))])
    return ("\n".join(lines) + "\n").encode()


def _lines(counters: Counters) -> Iterator[str]:
    node, scans = labels({"node": counters.node}), counters.scans
    help_text = "Looks of the agent at the hardware, and what they took."
    name = "k8s_rdma_scan_duration_seconds"
    yield from summary(name, help_text, node, count=scans.total, total=scans.seconds)
    help_text = "Looks at the hardware that failed or could not see everything."
    yield from family("k8s_rdma_scan_errors_total", "counter", help_text, [(node, scans.failed)])
    help_text = "Samples of traffic counters that failed."
    yield from family("k8s_rdma_sample_errors_total", "counter", help_text, [(node, counters.failed_samples)])
    help_text = "Caps kept by software that did not hold, and were put back."
    name = "k8s_rdma_software_caps_restored_total"
    yield from family(name, "counter", help_text, [(node, counters.caps.restored)])
    help_text = "Caps kept by software that do not hold, and cannot be put back."
    yield from family("k8s_rdma_software_caps_lost", "gauge", help_text, [(node, counters.caps.lost)])
    if counters.age_s is not None:
        yield from _traffic_lines(counters)


def _traffic_lines(counters: Counters) -> Iterator[str]:
    labelled = [(labels(_vf_labels(counters, vf)), vf) for vf in counters.vfs]
    for name, what, value in _TRAFFIC:
        help_text = f"{what} by a virtual function's holder since its interface was made."
        samples = [(text, value(vf)) for text, vf in labelled]
        yield from family(f"k8s_rdma_vf_{name}_total", "counter", help_text, samples)
    yield from family(
        "k8s_rdma_vf_rdma_counter_total",
        "counter",
        "Hardware counters of a virtual function's RDMA device, by the kernel's names.",
        [
            (labels({**_vf_labels(counters, vf), "counter": name}), value)
            for vf in counters.vfs
            for name, value in vf.rdma.items()
        ],
    )


def _vf_labels(counters: Counters, vf: VfTraffic) -> dict[str, str]:
    """PF and VF; of one that a pod holds also the pod, and the interface's name in it."""
    held = vf.pod and {"namespace": vf.pod.namespace, "pod": vf.pod.name, "interface": vf.ifname}
    return {"node": counters.node, "pf": vf.pf_name, "pci": vf.pf, "vf": str(vf.vf), **(held or {})}


ANSWER_TIMEOUT_S = 2.0
"""How long a scrape waits for the agent; then it gets what was told last, with its age."""


class Traffic:
    """What the agent told last. At most one question is open, whoever waits for its answer."""

    def __init__(
        self, *, now: Callable[[], float] = time.monotonic, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        """Nothing is known, and nobody there to ask."""
        self._now = now
        self._timeout_s = timeout_s
        self._request: Callable[[], None] | None = None
        self._answered: asyncio.Event | None = None
        self._sampled_at: float | None = None
        self._counters: Counters | None = None
        self._rendered: bytes | None = None

    def connected(self, request: Callable[[], None]) -> None:
        """An agent is there; `request` sends it the question."""
        self._request = request

    def disconnected(self) -> None:
        """The agent is gone, and what it told with it."""
        self._request, self._counters, self._sampled_at = None, None, None
        self._no_more_waiting()

    def received(self, counters: Counters) -> None:
        """It answered."""
        self._counters, self._rendered = counters, None
        self._sampled_at = None if counters.age_s is None else self._now() - counters.age_s
        self._no_more_waiting()

    async def exposition(self) -> bytes:
        """The counters in the Prometheus text format, as fresh as may be had; empty while there are none."""
        await self._refresh()
        if self._counters is None:
            return b""
        if self._rendered is None:
            self._rendered = render_traffic(self._counters)
        age_s = self._age_s()
        return self._rendered if age_s is None else self._rendered + render_age(self._counters, age_s)

    def _age_s(self) -> float | None:
        return None if self._sampled_at is None else self._now() - self._sampled_at

    async def _refresh(self) -> None:
        """Ask for a new sample if one is due, and wait for it, but not for long."""
        age_s = self._age_s()
        if self._request is None or (age_s is not None and age_s < SAMPLE_EVERY_S - SOON_S):
            return
        if self._answered is None:
            self._answered = asyncio.Event()
            self._request()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self._answered.wait()

    def _no_more_waiting(self) -> None:
        if self._answered is not None:
            self._answered.set()
            self._answered = None
