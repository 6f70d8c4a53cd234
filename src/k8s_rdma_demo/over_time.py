"""Throughput of pods on one link over time, while a neighbour floods the link and reservations change.

The receiving interfaces' counters are read twice a second, by one clock for all pods.
"""

from __future__ import annotations

import os
import platform
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.linux.netlink.rtnl import Rtnl, counters_of_all
from k8s_rdma_demo.launch import IPERF3
from k8s_rdma_demo.traffic import BASE_PORT, Flow, Server, in_pod

if TYPE_CHECKING:
    from types import TracebackType

PERIOD_S = 0.5
LONGEST_S = 600
CONGESTION_CONTROL = "cubic"
"""TCP's, whatever this machine's is: BBR ceases to send every ten seconds, and others have its part then."""

FLOODING_STREAMS = 16
"""The TCP connections of a neighbour that floods, beside one of each other pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """A pod's part of the link: Mb/s that arrived, and its reservation, each with seconds from the start.

    measured: at the end of each period. reserved: from then on.
    """

    name: str
    measured: tuple[tuple[float, float], ...]
    reserved: tuple[tuple[float, int], ...]

    def steady(self, begin_s: float, end_s: float) -> float:
        """Return the mean rate of arrival between two moments; K8sRdmaError without a sample."""
        if arrived := [mbps for at_s, mbps in self.measured if begin_s < at_s <= end_s]:
            return fmean(arrived)
        msg = f"{self.name}: nothing was measured between {begin_s:.1f} and {end_s:.1f} s"
        raise K8sRdmaError(msg)

    def reserved_at(self, at_s: float) -> int:
        """Return the reservation at a moment."""
        return [mbps for from_s, mbps in self.reserved if from_s <= at_s][-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverTime:
    """A recording: the pods, the events with their times, the machine and the date."""

    link_mbps: int
    pods: tuple[Throughput, ...]
    events: tuple[tuple[float, str], ...]
    machine: str
    date: str

    def document(self) -> dict[str, Any]:
        """Return the recording as it is written: with seconds and Mb/s to one decimal or two."""
        return {
            "machine": self.machine,
            "date": self.date,
            "linkMbps": self.link_mbps,
            "events": [[round(at_s, 2), text] for at_s, text in self.events],
            "pods": [
                {
                    "name": pod.name,
                    "reserved": [[round(at_s, 2), mbps] for at_s, mbps in pod.reserved],
                    "measured": [[round(at_s, 2), round(mbps, 1)] for at_s, mbps in pod.measured],
                }
                for pod in self.pods
            ],
        }


@dataclass
class Recording:
    """Samples the destinations' counters while entered; `sending`, `reserve` and `happened` note the rest."""

    flows: Sequence[Flow]
    link_mbps: int
    _samples: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    _reserved: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    _events: list[tuple[float, str]] = field(default_factory=list)
    _loads: list[Load] = field(default_factory=list)

    def __enter__(self) -> Recording:
        """Start to sample."""
        self._end = threading.Event()
        self._start_s = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="throughput")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the traffic and the samples."""
        self._end.set()
        self._thread.join()
        failures = [failure for load in self._loads if (failure := load.end())]
        if failures and error is None:
            raise K8sRdmaError("; ".join(failures))

    @property
    def now_s(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._start_s

    def send(self, flow: Flow, *, streams: int = 1) -> None:
        """Have a flow send as much as it can until the end, in as many TCP connections."""
        self._loads.append(Load(flow, BASE_PORT + self.flows.index(flow), streams))

    def reserve(self, name: str, mbps: int) -> None:
        """Note that a pod's reservation is in force from now on."""
        self._reserved.setdefault(name, []).append((self.now_s, mbps))

    def happened(self, text: str) -> None:
        """Note an event."""
        self._events.append((self.now_s, text))

    def finished(self) -> OverTime:
        """Return everything; the recording has ended."""
        return OverTime(
            link_mbps=self.link_mbps,
            pods=tuple(
                Throughput(
                    name=flow.name,
                    measured=tuple(
                        (end_s, 8e-6 * (last[index] - first[index]) / (end_s - begin_s))
                        for (begin_s, first), (end_s, last) in pairwise(self._samples)
                    ),
                    reserved=tuple(self._reserved[flow.name]),
                )
                for index, flow in enumerate(self.flows)
            ),
            events=tuple(self._events),
            machine=machine(),
            date=datetime.now(UTC).date().isoformat(),
        )

    def _watch(self) -> None:
        [netns] = {flow.destination.netns for flow in self.flows}
        with netns.open("rb") as opened, Rtnl(opened.fileno()) as rtnl:
            indices = {link.name: link.index for link in rtnl.links()}
            watched = [indices[flow.destination.ifname] for flow in self.flows]
            next_s = 0.0
            while not self._end.wait(max(0.0, next_s - self.now_s)):
                counters = counters_of_all(rtnl.socket)
                sample = tuple(counters[index].rx_bytes for index in watched)
                self._samples.append((self.now_s, sample))
                next_s += PERIOD_S


class Load:
    """A pod that sends by TCP until `end`."""

    def __init__(self, flow: Flow, port: int, streams: int) -> None:
        """Start to send."""
        self._name = flow.name
        self._server = Server(flow.destination, port)
        self._server.__enter__()
        command = in_pod(
            flow.source,
            *("--client", flow.destination.address, "--port", str(port)),
            *("--bind", f"{flow.source.address}%{flow.source.ifname}"),
            *("--time", str(LONGEST_S), "--parallel", str(streams), "--congestion", CONGESTION_CONTROL),
        )
        self._client = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def end(self) -> str:
        """End the sender and the receiver; return why the sender had ended before, empty if it had not."""
        status = self._client.poll()
        self._client.kill()
        _, printed = self._client.communicate()
        self._server.__exit__()
        return "" if status is None else f"flow {self._name}: iperf3 ended early: {printed.strip() or status}"


def machine() -> str:
    """Describe this machine: processors, kernel, distribution, Python and iperf3, without names of hosts."""
    processors = len(os.sched_getaffinity(0))
    found = [
        line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")
    ]
    model = f" of {' '.join(found[0].split())}" if found else ""
    try:
        distribution = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        distribution = "Linux"
    kernel = ".".join(platform.release().split(".")[:2])
    printed = subprocess.run([IPERF3, "--version"], capture_output=True, text=True, check=False).stdout
    return (
        f"{processors} processor{'s' if processors > 1 else ''}{model}, {distribution}, Linux {kernel}, "
        f"Python {platform.python_version()}, {' '.join(printed.split()[:2])}"
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
