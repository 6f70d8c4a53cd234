"""Responses that are rendered once and sent many times; metrics in the Prometheus text format 0.0.4.

The types are those of ASGI's "HTTP & WebSocket ASGI Message Format", version 2.3. Metric families are
collected at a scrape: the state that they show counts for itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias

import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Sample

from k8s_rdma.wire.rest import Error, ErrorDocument

Fields: TypeAlias = list[tuple[bytes, bytes]]
"""Header fields, with lower-case names."""
Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
"""Content type of metrics."""

_NO_CONTENT = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
"""Statuses whose responses have neither content nor its length (RFC 9110, sections 8.6 and 15.4.5)."""


class Answer:
    """A response, as an ASGI application that sends it."""

    __slots__ = ("_fields", "body", "status")

    def __init__(
        self,
        body: bytes | str = b"",
        *,
        status: int = HTTPStatus.OK,
        content_type: str = TEXT,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = HTTPStatus(status)
        self.body = body.encode() if isinstance(body, str) else body
        fields = dict(headers or {})
        if self.status not in _NO_CONTENT:
            fields |= {"content-type": content_type, "content-length": str(len(self.body))}
        self._fields: Fields = [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]

    def rendered(self, added: Fields, *, body: bool) -> bytes:
        """Render HTTP/1.1, with the server's own fields, such as the date, and with or without the body."""
        fields = b"".join(b"%b: %b\r\n" % field for field in (*added, *self._fields))
        head = f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n".encode() + fields + b"\r\n"
        return head + self.body if body else head

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the response."""
        await send({"type": "http.response.start", "status": self.status.value, "headers": self._fields})
        await send({"type": "http.response.body", "body": self.body})


def json_answer(document: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Encode a document as a response."""
    return Answer(msgspec.json.encode(document), status=status, content_type=JSON, headers=headers)


def error_answer(status: int, error: Error, *, headers: Mapping[str, str] | None = None) -> Answer:
    """Build the response of an error, in the form that all errors have."""
    return json_answer(ErrorDocument(error=error), status=status, headers=headers)


Samples: TypeAlias = Iterable[tuple[Mapping[str, str], float]]
"""Labels and values. Within a family samples may differ in the names of their labels."""


DEPRECATED_METRICS: Mapping[str, str] = {
    "k8s_rdma_extender_node_changes_told_total": "k8s_rdma_extender_node_changes_received_total",
    "k8s_rdma_extender_pods_expected": "k8s_rdma_extender_pods_assumed",
    "k8s_rdma_extender_requests_under_way": "k8s_rdma_extender_requests_in_flight",
    "k8s_rdma_extender_touches_total": "k8s_rdma_extender_requeues_total",
    "k8s_rdma_pf_vfs_taken": "k8s_rdma_pf_vfs_used",
    "k8s_rdma_pool_vfs_taken": "k8s_rdma_pool_vfs_used",
}
"""Old names of metrics with their new ones; both are shown for one release. docs/upgrade.md lists them."""

_OLD_NAMES = {new: old for old, new in DEPRECATED_METRICS.items()}


def exposition(metrics: Iterable[Metric]) -> bytes:
    """Render metric families in the text format, those with a deprecated name by both names."""
    return generate_latest(_Collected(_by_all_names(metrics)))


def _by_all_names(metrics: Iterable[Metric]) -> Iterator[Metric]:
    for metric in metrics:
        yield metric
        sample_name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        if old := _OLD_NAMES.get(sample_name):
            build = counter if metric.type == "counter" else gauge
            values = [(sample.labels, sample.value) for sample in metric.samples]
            yield build(old, f"Deprecated: use {sample_name}.", values)


def gauge(name: str, help_text: str, samples: Samples) -> Metric:
    """Build a gauge from its samples."""
    metric = GaugeMetricFamily(name, help_text)
    metric.samples = [Sample(name, dict(labels), value) for labels, value in samples]
    return metric


def counter(name: str, help_text: str, samples: Samples) -> Metric:
    """Build a counter from its samples; its name ends with `_total`."""
    metric = CounterMetricFamily(name, help_text)
    metric.samples = [Sample(name, dict(labels), value) for labels, value in samples]
    return metric


@dataclass(frozen=True, slots=True)
class _Collected:
    """A collector of existing families."""

    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self.metrics
