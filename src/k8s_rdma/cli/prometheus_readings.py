"""Readings of interfaces' counters from Prometheus, over a window, as fine as it has them.

Counters are read and not their rates, because `rate()` makes a burst of a counter that is 0 once, and does
not show gaps. The time of a reading is the time of the agent's sample, because Prometheus may scrape a sample
twice. If a value is absent, Prometheus repeats the last one for up to five minutes; a repeated value is no
reading.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from k8s_rdma.cli.prometheus_client import PrometheusClient
from k8s_rdma.core.types import BITS_PER_MEGABIT
from k8s_rdma.core.usage import CounterSeries, HeldInterface, Reading
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.node_metrics import RETRANSMISSIONS
from k8s_rdma.wire.prometheus import (
    RANGE_PATH,
    SERIES_PATH,
    decode_matrix,
    decode_series,
    selector,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from k8s_rdma.wire.prometheus import Labels, RangeSeries

LEAST_STEP_S = 15.0
"""Agents sample no more often."""

MAX_SERIES = 10_000
"""Interfaces that are read; more are refused."""

MAX_POINTS = 400_000
"""Readings of all interfaces together, which choose the step: 28 MB of each answer."""

MAX_STEPS = 40_000
"""Readings of one interface: a week of every 15 s."""

POINTS_OF_AN_ANSWER = 10_000
"""Prometheus refuses more than 11,000 for a series."""

MAX_NAMED_PODS = 50
"""Pods that are named in a query; beyond that those of the namespace are read, and chosen from."""

MAX_NAMED_NODES = 100
"""Nodes that are named in a query; beyond that all are read."""

_KEY = "node, pf, pci, vf, namespace, pod, interface"
_SENT = "k8s_rdma_vf_transmitted_bytes_total"
_RECEIVED = "k8s_rdma_vf_received_bytes_total"
_DROPPED = "k8s_rdma_vf_transmitted_dropped_total"
_RDMA = "k8s_rdma_vf_rdma_counter_total"
_RESERVED = "k8s_rdma_vf_reserved_bits_per_second"
_CAP = "k8s_rdma_vf_cap_bits_per_second"
_LINK = "k8s_rdma_pf_link_bits_per_second"
_AGE = "k8s_rdma_sample_age_seconds"
_SCRAPED = "scraped"
"""The time at which Prometheus scraped the bytes that were sent."""

_OLDEST_SAMPLE_S = 300.0

_REPEATED = {"counter": RETRANSMISSIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadWindow:
    """A window, in seconds since the epoch, and the step in which it is read."""

    from_s: float
    to_s: float
    step_s: float = LEAST_STEP_S

    @classmethod
    def stepped(cls, from_s: float, to_s: float, series: int) -> ReadWindow:
        """Choose the least step for so many series."""
        span_s = to_s - from_s
        least = max(LEAST_STEP_S, span_s / MAX_STEPS, span_s * series / MAX_POINTS)
        return cls(from_s=from_s, to_s=to_s, step_s=ceil(least / LEAST_STEP_S) * LEAST_STEP_S)

    def parts(self) -> Iterator[tuple[float, float]]:
        """Yield the parts of the window that are each one answer."""
        longest_s, begin_s = self.step_s * (POINTS_OF_AN_ANSWER - 1), self.from_s
        while begin_s <= self.to_s:
            yield begin_s, min(begin_s + longest_s, self.to_s)
            begin_s += longest_s + self.step_s


@dataclass(slots=True, kw_only=True)
class PrometheusReadings:
    """Reads the interfaces of pods.

    pods: by namespace and name.
    namespace: by default all.
    """

    client: PrometheusClient
    pods: frozenset[tuple[str, str]]
    namespace: str | None

    def series(self, from_s: float, to_s: float) -> list[CounterSeries]:
        """Read the series. K8sRdmaError as in `PrometheusClient.get`, and if they are too many."""
        selected = self._selector()
        match = {"match[]": _SENT + selected, "start": f"{from_s:.3f}", "end": f"{to_s:.3f}"}
        listed = self.client.get(SERIES_PATH, match, decode_series)
        holders = {found for labels in listed if (found := self._holder(labels))}
        if len(holders) > MAX_SERIES:
            msg = f"more than {MAX_SERIES} interfaces: name a namespace with --namespace, or a pod"
            raise MalformedError(msg)
        if not holders:
            return []
        window = ReadWindow.stepped(from_s, to_s, len(set(listed)))
        by_metric = {
            name: self._values(f"max by ({_KEY}) ({name}{selected})", window)
            for name in (_SENT, _RECEIVED, _DROPPED, _RESERVED, _CAP)
        }
        names = {holder.node for holder in holders}
        nodes = selector({}, {"node": names} if len(names) <= MAX_NAMED_NODES else {})
        by_metric[_SCRAPED] = self._values(f"max by ({_KEY}) (timestamp({_SENT}{selected}))", window)
        by_metric[_RDMA] = self._values(_retransmissions(self._selector(_REPEATED)), window)
        times = self._of_nodes(f"max by (node) (timestamp({_AGE}{nodes}) - {_AGE}{nodes})", window)
        fastest = f"max_over_time({_LINK}{nodes}[{to_s - from_s:.0f}s])"
        at_end = ReadWindow(from_s=to_s, to_s=to_s)
        links = self._of_nodes(f"max by (node, pci) ({fastest})", at_end)
        return [
            CounterSeries(
                holder=holder,
                readings=_readings(holder, by_metric, times.get((holder.node, ""), {})),
                link_mbps=_latest_link(links.get((holder.node, holder.pci), {})),
            )
            for holder in sorted(holders)
        ]

    def _selector(self, any_of: Mapping[str, Sequence[str]] | None = None) -> str:
        names = {name for _, name in self.pods}
        named_pods = {"pod": sorted(names)} if len(names) <= MAX_NAMED_PODS else {}
        equal = {"namespace": self.namespace} if self.namespace else {}
        return selector(equal, {**named_pods, **(any_of or {})})

    def _holder(self, labels: Labels) -> HeldInterface | None:
        """Return the interface of a series, if it is of one of these pods and has an interface's labels."""
        if (labels.namespace, labels.pod) not in self.pods or not labels.vf.isdecimal() or not labels.node:
            return None
        vf = int(labels.vf)
        return HeldInterface(
            labels.node, labels.pf, labels.pci, vf, labels.namespace, labels.pod, labels.interface
        )

    def _values(self, query: str, window: ReadWindow) -> dict[HeldInterface, dict[float, float]]:
        found: dict[HeldInterface, dict[float, float]] = defaultdict(dict)
        for series in self._range(query, window):
            holder = self._holder(series.labels)
            if holder is not None:
                found[holder].update(series.values)
        return found

    def _of_nodes(self, query: str, window: ReadWindow) -> dict[tuple[str, str], dict[float, float]]:
        found: dict[tuple[str, str], dict[float, float]] = defaultdict(dict)
        for series in self._range(query, window):
            found[series.labels.node, series.labels.pci].update(series.values)
        return found

    def _range(self, query: str, window: ReadWindow) -> Iterator[RangeSeries]:
        for begin_s, end_s in window.parts():
            times = {"start": f"{begin_s:.3f}", "end": f"{end_s:.3f}", "step": f"{window.step_s:g}"}
            yield from self.client.get(RANGE_PATH, {"query": query, **times}, decode_matrix)


def _retransmissions(selected: str) -> str:
    """Write the sum of the counters of an interface; a replica of Prometheus counts once."""
    return f"sum by ({_KEY}) (max by ({_KEY}, counter) ({_RDMA}{selected}))"


def _readings(
    holder: HeldInterface,
    by_metric: Mapping[str, Mapping[HeldInterface, Mapping[float, float]]],
    times: Mapping[float, float],
) -> list[Reading]:
    values = {name: found.get(holder, {}) for name, found in by_metric.items()}
    readings, former_s = [], 0.0
    for at_s, sent in sorted(values[_SENT].items()):
        scraped_s = values[_SCRAPED].get(at_s, at_s)
        if scraped_s == former_s:
            continue
        former_s, sampled_s = scraped_s, times.get(at_s, scraped_s)
        received, dropped, repeated = (
            _count(values[name].get(at_s)) for name in (_RECEIVED, _DROPPED, _RDMA)
        )
        reserved, cap = values[_RESERVED].get(at_s), values[_CAP].get(at_s)
        reading = Reading(
            at_s=sampled_s if 0 <= scraped_s - sampled_s <= _OLDEST_SAMPLE_S else scraped_s,
            sent=int(sent),
            received=received,
            dropped=dropped,
            retransmitted=repeated,
            reserved_mbps=None if reserved is None else int(reserved) // BITS_PER_MEGABIT,
            cap_mbps=None if reserved is None else int(cap or 0) // BITS_PER_MEGABIT,
        )
        readings.append(reading)
    return sorted(readings, key=lambda reading: reading.at_s)


def _count(value: float | None) -> int | None:
    return None if value is None else int(value)


def _latest_link(values: Mapping[float, float]) -> int | None:
    return int(values[max(values)]) // BITS_PER_MEGABIT if values else None
