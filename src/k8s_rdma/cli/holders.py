"""`k8s-rdma who`: the pods that hold interfaces, with their reservations, caps and use.

The RdmaNodes show each pod's reservations, of the whole cluster in one list. The interfaces' names and VFs,
their enforcement and their traffic are known to the nodes' servers, and only a few servers are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from math import inf
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from rich.text import Text

from k8s_rdma.cli.console import for_terminal
from k8s_rdma.cli.formats import CommandAnswer, Output
from k8s_rdma.cli.node_servers import NodeServers, chart_proxy, why_not_read
from k8s_rdma.cli.omissions import first_notes
from k8s_rdma.cli.options import Chart, PodScope
from k8s_rdma.cli.service_proxy import ServiceProxy
from k8s_rdma.cli.tables import NONE, UNKNOWN, Column, Table, mbps
from k8s_rdma.core.refusal import count
from k8s_rdma.core.traffic import MeanRates, Meter, VfHolder
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.errors import API_ERRORS
from k8s_rdma.kube.kubeconfig import command_namespace
from k8s_rdma.wire.node_metrics import CounterReader
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, generation_in
from k8s_rdma.wire.rdma_node import GROUP, PLURAL, VERSION, read_status
from k8s_rdma.wire.report import MAX_HELD_VFS, NodeReport
from k8s_rdma.wire.state_socket import SAMPLE_EVERY_S
from k8s_rdma.wire.views import HolderRow, HolderSort, HoldersView, encode_view, enforcers_text

if TYPE_CHECKING:
    from k8s_rdma.cli.console import Page
    from k8s_rdma.wire.rdma_node import RdmaNodeStatus

MAX_DETAILED_NODES = 16
"""Nodes whose servers are read, one after the other, each in a few milliseconds."""

_COLUMNS = (
    Column("NODE"),
    Column("PF"),
    Column("VF", right=True, rank=4),
    Column("POD"),
    Column("INTERFACE", rank=3),
    Column("RESERVED", right=True, rank=1),
    Column("CAP", right=True, rank=2),
    Column("ENFORCED BY", rank=7),
    Column("SENT", right=True, rank=5),
    Column("RECEIVED", right=True, rank=6),
    Column("RATE CHANGES", rank=8),
)

_MEASURED = {"SENT": Column("SENT", right=True, rank=1), "RECEIVED": Column("RECEIVED", right=True, rank=2)}
"""Columns that stay longer if there are measurements."""

_POD_PREFIX = "pod/"
"""The prefix of a name, as kubectl's users write it."""


def _place(row: HolderRow) -> tuple[object, ...]:
    vf = inf if row.vf is None else row.vf
    return row.node, row.pf, vf, row.namespace, row.pod, row.interface or ""


def _largest(mbps: float | None) -> float:
    """Order rates from the largest; unknown rates come last."""
    return inf if mbps is None else -mbps


_ORDERS: dict[HolderSort, Callable[[HolderRow], object]] = {
    HolderSort.NODE: lambda row: row.node,
    HolderSort.PF: lambda row: row.pf,
    HolderSort.VF: lambda row: inf if row.vf is None else row.vf,
    HolderSort.POD: lambda row: (row.namespace, row.pod),
    HolderSort.INTERFACE: lambda row: row.interface or "",
    HolderSort.RESERVED: lambda row: -row.reserved_mbps,
    HolderSort.CAP: lambda row: -(row.cap_mbps or inf),
    HolderSort.ENFORCED: lambda row: (row.min_by or "", row.max_by or ""),
    HolderSort.SENT: lambda row: _largest(row.sent_mbps),
    HolderSort.RECEIVED: lambda row: _largest(row.received_mbps),
    HolderSort.RATES: lambda row: (-((row.admitted or 0) - row.generation), -row.generation),
}


def ordered(rows: Iterable[HolderRow], sort: HolderSort) -> tuple[HolderRow, ...]:
    """Order by a column, then by place."""
    return tuple(sorted(rows, key=lambda row: (_ORDERS[sort](row), _place(row))))


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderOptions:
    """Options of the command.

    subject: a node, a PF, a pod, `NODE/PF` or `NAMESPACE/POD`; by default all.
    measure: whether to wait for a second sample of the counters.
    """

    pods: PodScope
    chart: Chart
    subject: str | None
    sort: HolderSort
    measure: bool
    output: Output


def print_holders(options: HolderOptions) -> None:
    """Print the holders. K8sRdmaError if the API server refuses, or the subject is unknown."""
    with ExitStack() as stack:
        api = stack.enter_context(Documents(options.pods.kubeconfig))
        reader = HolderReader(chart_proxy(api, options.chart))
        subjects = HolderFilter.from_options(options.subject, options.pods)
        view = reader.view(subjects, options.sort)
        if options.measure:
            time.sleep(reader.next_sample_s())
            view = reader.view(subjects, options.sort)
    options.output.write(
        CommandAnswer(
            document=lambda: encode_view(view) + b"\n",
            names=(f"pod/{row.pod}" for row in view.holders),
            show=lambda page: _show(for_terminal(view), page),
        )
    )


def _show(shown: HoldersView, page: Page) -> None:
    page.print(summary(shown.holders))
    if shown.holders:
        page.print(Text())
        page.print(holders_table(shown.holders))
    page.print_notes(shown.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderFilter:
    """The rows that are requested; by default all.

    subject: a node, a PF or `NODE/PF`, or a pod, `NAMESPACE/POD` or a name of a pod in `pod_namespace`.
    namespace: of all rows.
    """

    subject: str | None = None
    pod_namespace: str | None = None
    namespace: str | None = None

    @classmethod
    def from_options(cls, subject: str | None, pods: PodScope) -> HolderFilter:
        """Take a bare name of a pod to be one of the kubeconfig's namespace, as kubectl does."""
        if subject is None:
            return cls(namespace=pods.kubeconfig.namespace)
        name = subject.removeprefix(_POD_PREFIX)
        is_bare = "/" not in name and not pods.all_namespaces
        return cls(
            subject=name,
            pod_namespace=command_namespace(pods.kubeconfig) if is_bare else None,
            namespace=pods.kubeconfig.namespace,
        )

    def includes(self, row: HolderRow) -> bool:
        """Report whether a row is requested."""
        if self.namespace not in (None, row.namespace):
            return False
        return self.subject is None or self.subject in self._names(row)

    def _names(self, row: HolderRow) -> tuple[str, ...]:
        names = row.node, row.pf, row.pci, f"{row.node}/{row.pf}", f"{row.namespace}/{row.pod}"
        return names if self.pod_namespace not in (None, row.namespace) else (*names, row.pod)

    def absent(self) -> str:
        """Return a sentence that there is no such row."""
        scope = f" of namespace {self.pod_namespace}" if self.pod_namespace else ""
        hint = "; --all-namespaces looks in every one" if self.pod_namespace else ""
        return f"{self.subject}: no node, PF or pod{scope} that holds an interface has this name{hint}"


@dataclass(slots=True)
class HolderReader:
    """Reads holders, and keeps the samples of traffic from which the next reading has rates."""

    proxy: ServiceProxy
    clock: Callable[[], float] = time.monotonic
    _meters: dict[str, Meter] = field(default_factory=dict)

    def view(self, subjects: HolderFilter, sort: HolderSort) -> HoldersView:
        """Read the holders; MalformedError if rows, nodes and PFs do not have the subject's name."""
        notes: list[str] = []
        rows, names = self._published(notes)
        found = list(filter(subjects.includes, rows))
        if subjects.subject is not None and not found and subjects.subject not in names:
            raise MalformedError(subjects.absent())
        nodes = sorted({row.node for row in found})
        if len(nodes) <= MAX_DETAILED_NODES:
            servers = NodeServers(proxy=self.proxy)
            for node in nodes:
                published = [row for row in found if row.node == node]
                detailed = self._detailed(servers, node, published, notes)
                found = [*(row for row in found if row.node != node), *detailed]
            found = list(filter(subjects.includes, found))
        else:
            notes.append(
                f"interfaces, enforcement and traffic are shown of {MAX_DETAILED_NODES} nodes at most: "
                "name a node, a PF or a pod"
            )
        return HoldersView(holders=ordered(found, sort), notes=first_notes(notes))

    def next_sample_s(self) -> float:
        """Compute the time until all nodes that were read have another sample; 0 if no node has one."""
        times = [meter.latest.sampled_at for meter in self._meters.values() if meter.latest]
        return max([0.0, *(sampled_at + SAMPLE_EVERY_S - self.clock() for sampled_at in times)])

    def _published(self, notes: list[str]) -> tuple[list[HolderRow], set[str]]:
        """Read the rows of all RdmaNodes, and the names of nodes and PFs, also of those without holders."""
        rows: list[HolderRow] = []
        names: set[str] = set()
        for document in self.proxy.api.items(f"/apis/{GROUP}/{VERSION}/{PLURAL}"):
            node = str((document.get("metadata") or {}).get("name") or "")
            names.add(node)
            try:
                status = read_status(document)
            except MalformedError as error:
                notes.append(f"{node}: {error.message}")
                continue
            if why := status.unready_reason():
                notes.append(f"{node} is not ready: {why}")
            names |= {name for pf in status.pfs for name in (pf.name, pf.pci, f"{node}/{pf.name}")}
            rows += published_rows(node, status)
        if not names:
            notes.append(
                "there are no RdmaNodes: agents write them with publish: {rdmaNode: true} (docs/agent.md)"
            )
        return rows, names

    def _detailed(
        self, servers: NodeServers, node: str, found: list[HolderRow], notes: list[str]
    ) -> list[HolderRow]:
        """Read a node's rows from its server; if that fails, return the rows `found`, with a note."""
        try:
            report = servers.report(node)
            if report.ledger == "ok":
                found = list(reported_rows(node, report))
            counters = CounterReader(max_vfs=MAX_HELD_VFS)
            servers.feed(counters, node)
            meter = self._meters.setdefault(node, Meter())
            meter.add(counters.sample(self.clock()))
        except K8sRdmaError as error:
            notes.append(f"{node}: {why_not_read(error)}")
        else:
            rates = _by_vf(meter.rates())
            found = [_measured(row, rates) for row in found]
        return self._admitted(node, found, notes)

    def _admitted(self, node: str, rows: list[HolderRow], notes: list[str]) -> list[HolderRow]:
        """Add the generations of the pods' placements."""
        try:
            pods = {
                str(pod["metadata"].get("uid")): _generation(pod)
                for pod in self.proxy.api.items("/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"})
            }
        except API_ERRORS as error:
            notes.append(f"{node}: admitted rates are not known: {error.message}")
            return rows
        return [replace(row, admitted=pods.get(row.uid)) for row in rows]


def _generation(pod: Mapping[str, Any]) -> int | None:
    text = (pod["metadata"].get("annotations") or {}).get(PLACEMENT_ANNOTATION)
    return generation_in(text) if isinstance(text, str) else None


def published_rows(node: str, status: RdmaNodeStatus) -> Iterator[HolderRow]:
    """Make a row of each interface in a node's object."""
    names = {pf.pci: pf.name for pf in status.pfs}
    for allocation in status.allocations:
        for alike in allocation.interfaces:
            row = HolderRow(
                node=node,
                pf=names.get(alike.pf, alike.pf),
                pci=alike.pf,
                namespace=allocation.pod.namespace,
                pod=allocation.pod.name,
                uid=allocation.pod.uid,
                reserved_mbps=alike.min_mbps,
                cap_mbps=alike.max_mbps,
                generation=allocation.generation,
                pool=alike.pool,
            )
            yield from [row] * alike.vfs


def reported_rows(node: str, report: NodeReport) -> Iterator[HolderRow]:
    """Make a row of each interface in a node's report."""
    names = {pf.pci: pf.name for pf in report.pfs}
    for allocation in report.allocations:
        for interface in allocation.interfaces:
            yield HolderRow(
                node=node,
                pf=names.get(interface.pf, interface.pf),
                pci=interface.pf,
                vf=interface.vf,
                namespace=allocation.pod.namespace,
                pod=allocation.pod.name,
                uid=allocation.pod.uid,
                interface=interface.ifname,
                reserved_mbps=interface.reserved_mbps,
                cap_mbps=interface.max_tx_rate,
                min_by=interface.enforced.min or "none",
                max_by=interface.enforced.max or "none",
                generation=allocation.generation,
                pool=interface.pool,
            )


def _by_vf(rates: Mapping[VfHolder, MeanRates]) -> dict[tuple[str, int, str, str], MeanRates]:
    return {(holder.pci, holder.vf, holder.namespace, holder.pod): found for holder, found in rates.items()}


def _measured(row: HolderRow, rates: Mapping[tuple[str, int, str, str], MeanRates]) -> HolderRow:
    if row.vf is None:
        return row
    found = rates.get((row.pci, row.vf, row.namespace, row.pod))
    return replace(row, sent_mbps=found.sent_mbps, received_mbps=found.received_mbps) if found else row


def summary(rows: Iterable[HolderRow]) -> str:
    """Sum rows up in a line."""
    rows = list(rows)
    if not rows:
        return "no pod holds an interface there"
    pods, pfs = len({row.uid for row in rows}), len({(row.node, row.pci) for row in rows})
    reserved = sum(row.reserved_mbps for row in rows)
    counts = (count(len(rows), "interface"), count(pods, "pod"), count(pfs, "PF"))
    return f"{counts[0]} of {counts[1]} on {counts[2]}; {reserved} Mb/s reserved"


def holders_table(rows: Iterable[HolderRow], *, cut: bool = False) -> Table:
    """Return the table of rows for people. cut: as in `Table`.

    On a narrow terminal, the columns of traffic are left out early if it was not measured, and last if it
    was.
    """
    rows = list(rows)
    is_measured = any(row.sent_mbps is not None for row in rows)
    columns = (replace_fields(column, rank=column.rank + 2 * bool(column.rank)) for column in _COLUMNS)
    shown = Table(
        *(_MEASURED.get(column.heading, column) for column in columns) if is_measured else _COLUMNS, cut=cut
    )
    for row in rows:
        enforcers = enforcers_text(row)
        shown.add(
            row.node,
            row.pf,
            _or_unknown(row.vf),
            f"{row.namespace}/{row.pod}",
            _or_unknown(row.interface),
            mbps(row.reserved_mbps),
            mbps(row.cap_mbps) if row.cap_mbps else NONE,
            UNKNOWN if enforcers is None else enforcers or NONE,
            *(
                _or_unknown(None if rate is None else mbps(f"{rate:.1f}"))
                for rate in (row.sent_mbps, row.received_mbps)
            ),
            _changes(row),
        )
    return shown


def _or_unknown(value: object) -> str:
    return UNKNOWN if value is None else str(value)


def _changes(row: HolderRow) -> str:
    """Return the change of the pod's rates that is in force, and the one that is not in force yet."""
    in_force = f"{row.generation} programmed" if row.generation else ""
    if row.admitted is not None and row.admitted > row.generation:
        return ", ".join(filter(None, (f"{row.admitted} admitted", in_force)))
    return in_force or NONE
