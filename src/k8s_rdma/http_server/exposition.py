"""Metric families of prometheus_client, and the Prometheus text format 0.0.4 of them.

The families are collected when somebody scrapes: the state that they show counts for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Sample

Samples: TypeAlias = Iterable[tuple[Mapping[str, str], float]]
"""Labels and values. Within a family samples may differ in the names of their labels."""

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


def exposition(metrics: Iterable[Metric]) -> bytes:
    """The families in the text format."""
    return generate_latest(_Collected(metrics))


def gauge(name: str, help_text: str, samples: Samples) -> Metric:
    """A gauge and its samples."""
    metric = GaugeMetricFamily(name, help_text)
    metric.samples = [Sample(name, dict(labels), value) for labels, value in samples]
    return metric


def counter(name: str, help_text: str, samples: Samples) -> Metric:
    """A counter, whose name ends with `_total`, and its samples."""
    metric = CounterMetricFamily(name, help_text)
    metric.samples = [Sample(name, dict(labels), value) for labels, value in samples]
    return metric


@dataclass(frozen=True, slots=True)
class _Collected:
    """A collector of families that are there already."""

    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self.metrics
