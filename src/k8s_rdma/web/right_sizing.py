"""Use of workloads beside their reservations, as Prometheus records it: the page "Right-sizing".

The records are those of deploy/monitoring/usage.yaml. A workload that is not measured has no record of its
traffic, which is unknown and not zero.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import structlog

from k8s_rdma.core.types import BITS_PER_MEGABIT
from k8s_rdma.errors import MalformedError
from k8s_rdma.web.open_pages import OpenPages
from k8s_rdma.web.pages import Part
from k8s_rdma.web.source import SourceUnavailableError
from k8s_rdma.web.traffic import prometheus_source
from k8s_rdma.wire.prometheus import QUERY_PATH, VectorDecoder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from k8s_rdma.config.web import PrometheusEndpoint
    from k8s_rdma.web.access import Visibility
    from k8s_rdma.web.pages import ListQuery
    from k8s_rdma.web.source import Source

EVERY_S = 60.0
"""The time between two questions: rules are evaluated every minute or so."""

MAX_WORKLOADS = 20_000
"""Workloads that are read; more are refused."""

MAX_NAME = 253
"""Letters of a name in Kubernetes; a record with more is not ours."""

WORKLOADS_ON_A_PAGE = 50
FIRST_NAMESPACES = 10
"""Namespaces on the first page, those that strand most."""

_PREFIX = "namespace_workload:k8s_rdma_vf_"
_RESERVED, _P95, _MAXIMUM = (
    f"{_PREFIX}{name}" for name in ("reserved_bits:sum", "transmitted_bits:p95_1d", "transmitted_bits:max_1d")
)
_QUERY = {"query": f'{{__name__=~"{"|".join((_RESERVED, _P95, _MAXIMUM))}"}}'}

_log = structlog.get_logger()


class _RecordLabels(msgspec.Struct, frozen=True, rename={"record": "__name__"}):
    record: str = ""
    namespace: str = ""
    workload: str = ""


_vectors = VectorDecoder(_RecordLabels)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRecord:
    """The reservations of a workload's pods, and the rates of a day, in Mb/s; None if they are not known."""

    namespace: str
    workload: str
    reserved_mbps: float
    p95_mbps: float | None = None
    max_mbps: float | None = None

    @property
    def name(self) -> str:
        """Return `namespace/workload`."""
        return f"{self.namespace}/{self.workload}"

    @property
    def stranded_mbps(self) -> float | None:
        """Return the reservation beyond the rate that was not exceeded for 95 % of the time."""
        return None if self.p95_mbps is None else max(0.0, self.reserved_mbps - self.p95_mbps)


def decode_records(body: bytes) -> tuple[WorkloadRecord, ...]:
    """Parse the records of workloads, the most stranded first, and those that are not measured last.

    Of several series with the same names, for example of replicas, the largest counts.
    MalformedError if they cannot be read.
    """
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for labels, bits in _vectors.amounts(body):
        if 0 < len(labels.namespace) <= MAX_NAME and 0 < len(labels.workload) <= MAX_NAME:
            values = found[labels.namespace, labels.workload]
            values[labels.record] = max(bits / BITS_PER_MEGABIT, values.get(labels.record, 0.0))
    if len(found) > MAX_WORKLOADS:
        msg = f"query: more than {MAX_WORKLOADS} workloads"
        raise MalformedError(msg)
    return tuple(sorted(_workloads(found), key=_order))


def _workloads(found: Mapping[tuple[str, str], Mapping[str, float]]) -> Iterable[WorkloadRecord]:
    for (namespace, workload), values in found.items():
        if _RESERVED in values:
            yield WorkloadRecord(
                namespace=namespace,
                workload=workload,
                reserved_mbps=values[_RESERVED],
                p95_mbps=values.get(_P95),
                max_mbps=values.get(_MAXIMUM),
            )


def _order(record: WorkloadRecord) -> tuple[bool, float, float, str]:
    stranded = record.stranded_mbps
    return stranded is None, -(stranded or 0.0), -record.reserved_mbps, record.name


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceRecord:
    """The sums of a namespace's workloads that are measured, in Mb/s. unmeasured: how many are not."""

    namespace: str
    workloads: int
    unmeasured: int
    reserved_mbps: float
    p95_mbps: float
    max_mbps: float
    stranded_mbps: float


def by_namespace(workloads: Iterable[WorkloadRecord]) -> tuple[NamespaceRecord, ...]:
    """Add up workloads by namespace, the most stranded first."""
    groups: dict[str, list[WorkloadRecord]] = defaultdict(list)
    for record in workloads:
        groups[record.namespace].append(record)
    found = (_namespace(name, records) for name, records in groups.items())
    return tuple(sorted(found, key=lambda record: (-record.stranded_mbps, record.namespace)))


def _namespace(name: str, workloads: Sequence[WorkloadRecord]) -> NamespaceRecord:
    measured = [record for record in workloads if record.stranded_mbps is not None]
    return NamespaceRecord(
        namespace=name,
        workloads=len(workloads),
        unmeasured=len(workloads) - len(measured),
        reserved_mbps=sum(record.reserved_mbps for record in measured),
        p95_mbps=sum(record.p95_mbps or 0.0 for record in measured),
        max_mbps=sum(record.max_mbps or 0.0 for record in measured),
        stranded_mbps=sum(record.stranded_mbps or 0.0 for record in measured),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Records of workloads. is_read: whether Prometheus was asked; failure: why there is no answer."""

    workloads: tuple[WorkloadRecord, ...] = ()
    is_read: bool = False
    failure: str = ""


class RecordReader:
    """Reads records while a page shows them, once for all viewers, if there is an endpoint."""

    def __init__(
        self,
        endpoint: PrometheusEndpoint | None,
        *,
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Read the files that the endpoint names. MalformedError names the field."""
        self._source = None if endpoint is None else prometheus_source(endpoint)
        self._pause = pause
        self._pages = OpenPages(clock)
        self._latest = Records()

    @property
    def is_on(self) -> bool:
        """Report whether there is a Prometheus to ask."""
        return self._source is not None

    def want(self) -> Records:
        """Have records read from now on; return the present ones, without those of an earlier time."""
        if not self._pages.load():
            self._latest = Records()
        return self._latest

    async def run(self) -> None:
        """Read until cancelled; return at once without an endpoint."""
        while self._source is not None:
            await self._pages.wait()
            await self._read(self._source)
            await self._pause(EVERY_S)

    async def _read(self, source: Source) -> None:
        try:
            found = await source.get(QUERY_PATH, _QUERY, decode_records)
        except SourceUnavailableError as error:
            if not self._latest.failure:
                _log.warning("records_unread", error=error.message)
            self._latest = Records(is_read=True, failure=error.message)
        else:
            self._latest = Records(is_read=True, workloads=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordList:
    """A page of workloads that a viewer may see, and the sums of all of these and of others.

    whole_mbps: the length of a workload's bar, most_mbps: of a namespace's.
    namespaces: the first of namespaces_total, those that strand most.
    unmeasured: how many workloads are not measured.
    undecided: as in `Visibility`.
    """

    part: Part[WorkloadRecord]
    whole_mbps: float
    namespaces: tuple[NamespaceRecord, ...]
    namespaces_total: int
    most_mbps: float
    reserved_mbps: float
    stranded_mbps: float
    unmeasured: int
    hidden: int
    hidden_stranded_mbps: float
    undecided: int

    @classmethod
    def select(
        cls, workloads: Sequence[WorkloadRecord], visibility: Visibility, query: ListQuery
    ) -> RecordList:
        """Select the workloads of visible namespaces whose names contain the text."""
        own = [record for record in workloads if record.namespace in visibility.namespaces]
        foreign = [record for record in workloads if record.namespace not in visibility.namespaces]
        rows = [record for record in own if query.text in record.name]
        part = Part.cut(rows, number=query.page, size=WORKLOADS_ON_A_PAGE)
        namespaces = by_namespace(rows)
        return cls(
            part=part,
            whole_mbps=max(
                (max(record.reserved_mbps, record.max_mbps or 0.0) for record in part.rows), default=0.0
            ),
            namespaces=namespaces[:FIRST_NAMESPACES],
            namespaces_total=len(namespaces),
            most_mbps=max((max(record.reserved_mbps, record.max_mbps) for record in namespaces), default=0.0),
            reserved_mbps=sum(record.reserved_mbps for record in rows),
            stranded_mbps=sum(record.stranded_mbps or 0.0 for record in rows),
            unmeasured=sum(record.stranded_mbps is None for record in rows),
            hidden=len(foreign),
            hidden_stranded_mbps=sum(record.stranded_mbps or 0.0 for record in foreign),
            undecided=visibility.undecided,
        )
