"""Traffic of PFs and pods, by Prometheus, which reads it from the nodes' servers.

Unknown traffic is no number: of a PF or pod without a sample, and while Prometheus does not answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from k8s_rdma.web.source import Source, SourceUnavailableError
from k8s_rdma.wire.prometheus import QUERY_PATH, VectorDecoder, decode_refusal, selector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.config.web import PrometheusEndpoint

WINDOW = "2m"
"""Rates are means of this time: four scrapes in 30 s each."""

RESET_WINDOW = "5m"
"""The time for which a rate is not known after a counter was reset, or was 0 once (some drivers). Without it,
`rate` makes a burst of the whole count, also if the window begins with the 0."""

_SENT = "k8s_rdma_vf_transmitted_bytes_total"
_RECEIVED = "k8s_rdma_vf_received_bytes_total"
_MBPS_OF_A_BYTE = "8e-6"
_PF_LABELS = "node, pf"
_POD_LABELS = "node, pf, namespace, pod"

_log = structlog.get_logger()


class PfName(NamedTuple):
    """A PF of the cluster."""

    node: str
    pf: str


class PodFlow(NamedTuple):
    """A pod's traffic on a PF, in Mb/s; None if it is not known."""

    sent_mbps: float | None
    received_mbps: float | None


class FlowKey(NamedTuple):
    """A pod on a PF."""

    node: str
    pf: str
    namespace: str
    pod: str


class _PodLabels(msgspec.Struct, frozen=True):
    """The labels by which traffic is added up; empty for those that a series has not."""

    node: str = ""
    pf: str = ""
    namespace: str = ""
    pod: str = ""


_vectors = VectorDecoder(_PodLabels)


def decode_rates(body: bytes) -> dict[_PodLabels, int]:
    """Parse a vector of rates in Mb/s; samples that are no rates are left out. MalformedError."""
    return {labels: round(mbps) for labels, mbps in _vectors.amounts(body)}


def prometheus_source(endpoint: PrometheusEndpoint) -> Source:
    """Return Prometheus as a source. MalformedError names the field of a file that cannot be used."""
    return Source("Prometheus", endpoint, field="prometheus", explain_refusal=decode_refusal)


class PrometheusTraffic:
    """Asks Prometheus. failure: why the last question got no answer; empty when it did, or without one.

    sent_mbps: of PFs whose VFs pods hold, by the last answer.
    """

    def __init__(self, endpoint: PrometheusEndpoint | None, *, poll_s: float) -> None:
        """Read the files that the endpoint names. MalformedError names the field."""
        self.sent_mbps: Mapping[PfName, int] = {}
        self.failure = "" if endpoint is None else "Prometheus has not answered yet"
        self._poll_s = poll_s
        self._source = None if endpoint is None else prometheus_source(endpoint)

    async def run(self) -> None:
        """Poll until cancelled; return at once without an endpoint."""
        while self._source is not None:
            await self.poll()
            await asyncio.sleep(self._poll_s)

    async def poll(self) -> None:
        """Ask for all PFs once."""
        if self._source is None:
            return
        try:
            found = await self._source.get(QUERY_PATH, _query(_SENT, _PF_LABELS, {}), decode_rates)
        except SourceUnavailableError as error:
            if not self.failure:
                _log.warning("prometheus_lost", error=error.message)
            self.sent_mbps, self.failure = {}, error.message
        else:
            if self.failure:
                _log.info("prometheus_answers")
            self.sent_mbps = {PfName(labels.node, labels.pf): mbps for labels, mbps in found.items()}
            self.failure = ""

    async def flows(self, party: str, **labels: str) -> Mapping[FlowKey, PodFlow]:
        """Return the rates at which pods send and receive, of series with these labels, if known."""
        if self._source is None or self.failure:
            return {}
        queries = (_query(metric, _POD_LABELS, labels) for metric in (_SENT, _RECEIVED))
        try:
            answers = await asyncio.gather(
                *(self._source.ask(party, QUERY_PATH, query, decode_rates) for query in queries)
            )
        except SourceUnavailableError:
            return {}  # the next poll finds it too, and says so
        sent, received = (found or {} for found in answers)
        return {
            FlowKey(pod.node, pod.pf, pod.namespace, pod.pod): PodFlow(sent.get(pod), received.get(pod))
            for pod in sent.keys() | received.keys()
        }


def _query(metric: str, grouping: str, labels: Mapping[str, str]) -> dict[str, str]:
    series = metric + selector(labels, {})
    rates = f"{_MBPS_OF_A_BYTE} * sum by ({grouping}) (rate({series}[{WINDOW}]))"
    return {"query": f"{rates} unless sum by ({grouping}) (resets({series}[{RESET_WINDOW}])) > 0"}
