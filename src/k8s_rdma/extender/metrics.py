"""Metrics of the extender in the Prometheus text format."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias

from prometheus_client import Counter, Gauge, Histogram, Metric, disable_created_metrics

from k8s_rdma import __version__
from k8s_rdma.http_server.asgi import Samples, counter, exposition, gauge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Reading: TypeAlias = "tuple[str, Literal['counter', 'gauge'], Callable[[], float | Samples]]"
_PREFIX = "k8s_rdma_extender_"

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds: from a filter whose verdicts are known to a bind that waits for the API server."""


class Metrics:
    """Requests by verb, and the readings of other parts at a scrape."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._requests = Counter(
            f"{_PREFIX}requests_total", "Requests by verb and outcome.", ("verb", "outcome"), registry=None
        )
        self._seconds = Histogram(
            f"{_PREFIX}request_duration_seconds",
            "Time from a request's head to its answer.",
            ("verb",),
            registry=None,
            buckets=SECONDS,
        )
        self._under_way = Gauge(
            f"{_PREFIX}requests_in_flight", "Requests that are not answered yet.", ("verb",), registry=None
        )
        self._number_under_way = 0
        self._readings: dict[str, Reading] = {
            "build_info": ("1, with the program's version.", "gauge", lambda: [({"version": __version__}, 1)])
        }

    def add(self, readings: Mapping[str, Reading]) -> None:
        """Add readings: name without prefix, to help text, type, and what reads number or `Samples`."""
        self._readings |= readings

    def count(self, verb: str, outcome: str, seconds: float) -> None:
        """Count an answered request and its duration."""
        self._requests.labels(verb, outcome).inc()
        self._seconds.labels(verb).observe(seconds)

    @contextmanager
    def under_way(self, verb: str) -> Iterator[None]:
        """A request is under way until the block ends."""
        self._number_under_way += 1
        try:
            with self._under_way.labels(verb).track_inprogress():
                yield
        finally:
            self._number_under_way -= 1

    def are_under_way(self) -> bool:
        """Report whether requests are under way."""
        return self._number_under_way > 0

    def render(self) -> str:
        """Return the metrics in the exposition format."""
        return exposition(self._collect()).decode()

    def _collect(self) -> Iterator[Metric]:
        for metric in (self._requests, self._seconds, self._under_way):
            yield from metric.collect()
        for name, (help_text, kind, read) in self._readings.items():
            value = read()
            shown: Samples = [({}, value)] if isinstance(value, int | float) else value
            yield (counter if kind == "counter" else gauge)(f"{_PREFIX}{name}", help_text, shown)


def samples(names: tuple[str, ...], counts: Mapping[tuple[str, ...], float]) -> Samples:
    """Return the counts as samples; names: the labels of the parts of each key."""
    return [(dict(zip(names, key, strict=True)), count) for key, count in sorted(counts.items())]
