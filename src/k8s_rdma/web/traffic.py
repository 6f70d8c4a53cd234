"""Traffic of PFs and pods, by Prometheus, which reads it from the nodes' servers.

Unknown traffic is no number: of a PF or pod without a sample, and while Prometheus does not answer.
"""

from __future__ import annotations

import asyncio
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from k8s_rdma.errors import MalformedError
from k8s_rdma.web.source import NoAnswerError, Source
from k8s_rdma.wire.json import decode_large

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.web.config import PrometheusEndpoint

QUERY_PATH = "/api/v1/query"
WINDOW = "2m"
"""Rates are means of this time: four scrapes in 30 s each."""

RESET_WINDOW = "5m"
"""The time for which a rate is not known after a counter began anew, or was 0 once (some drivers): `rate`
makes a burst of all that it counts, also if the window begins with the 0."""

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


class Flow(NamedTuple):
    """A pod's traffic on a PF, in Mb/s; None where it is not known."""

    sent_mbps: float | None
    received_mbps: float | None


class FlowKey(NamedTuple):
    """A pod on a PF."""

    node: str
    pf: str
    namespace: str
    pod: str


class _Labels(msgspec.Struct, frozen=True):
    node: str = ""
    pf: str = ""
    namespace: str = ""
    pod: str = ""


class _Sample(msgspec.Struct, frozen=True):
    """A series' value: seconds since the epoch, and a number as text."""

    metric: _Labels
    value: tuple[float, str]


class _Data(msgspec.Struct, frozen=True):
    result: tuple[_Sample, ...] = ()


class _Reply(msgspec.Struct, frozen=True):
    """An answer of Prometheus' HTTP API to an instant query whose result is a vector."""

    data: _Data = _Data()
    error: str = ""


_decoder = msgspec.json.Decoder(_Reply)


def decode_vector(body: bytes) -> dict[_Labels, int]:
    """Parse a vector of rates in Mb/s; samples that are no rates are left out. MalformedError."""
    found = {}
    for sample in decode_large(body, _decoder, "query").data.result:
        try:
            value = float(sample.value[1])
        except ValueError as error:
            msg = f"query: {sample.value[1][:40]!r} is no number"
            raise MalformedError(msg) from error
        if isfinite(value) and value >= 0:
            found[sample.metric] = round(value)
    return found


class Traffic:
    """Asks Prometheus. failure: why the last question got no answer; empty when it did, or without one.

    sent_mbps: of PFs whose VFs pods hold, by the last answer.
    """

    def __init__(self, endpoint: PrometheusEndpoint | None, *, poll_s: float) -> None:
        """Read the files that the endpoint names. MalformedError names the field."""
        self.sent_mbps: Mapping[PfName, int] = {}
        self.failure = "" if endpoint is None else "Prometheus has not answered yet"
        self._poll_s = poll_s
        self._source = (
            None
            if endpoint is None
            else Source("Prometheus", endpoint, field="prometheus", explain_refusal=error_of)
        )

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
            found = await self._source.get(QUERY_PATH, _query(_SENT, _PF_LABELS, {}), decode_vector)
        except NoAnswerError as error:
            if not self.failure:
                _log.warning("prometheus_lost", error=error.message)
            self.sent_mbps, self.failure = {}, error.message
        else:
            if self.failure:
                _log.info("prometheus_answers")
            self.sent_mbps = {PfName(labels.node, labels.pf): mbps for labels, mbps in found.items()}
            self.failure = ""

    async def flows(self, party: str, **labels: str) -> Mapping[FlowKey, Flow]:
        """Return what pods send and receive, of series with these labels; empty where it is not known."""
        if self._source is None or self.failure:
            return {}
        queries = (_query(metric, _POD_LABELS, labels) for metric in (_SENT, _RECEIVED))
        try:
            answers = await asyncio.gather(
                *(self._source.ask(party, QUERY_PATH, query, decode_vector) for query in queries)
            )
        except NoAnswerError:
            return {}  # the next poll finds it too, and says so
        sent, received = (found or {} for found in answers)
        return {
            FlowKey(pod.node, pod.pf, pod.namespace, pod.pod): Flow(sent.get(pod), received.get(pod))
            for pod in sent.keys() | received.keys()
        }


def _query(metric: str, grouping: str, labels: Mapping[str, str]) -> dict[str, str]:
    selector = ", ".join(f"{name}={_quoted(value)}" for name, value in labels.items())
    series = f"{metric}{{{selector}}}"
    rates = f"{_MBPS_OF_A_BYTE} * sum by ({grouping}) (rate({series}[{WINDOW}]))"
    return {"query": f"{rates} unless sum by ({grouping}) (resets({series}[{RESET_WINDOW}])) > 0"}


def _quoted(value: str) -> str:
    """Quote a string of PromQL, whose escapes are those of JSON in ASCII."""
    return msgspec.json.encode(value).decode()


def error_of(body: bytes) -> str:
    """Return what a refusal says; empty where it says nothing."""
    try:
        return decode_large(body, _decoder, "query").error
    except MalformedError:
        return ""
