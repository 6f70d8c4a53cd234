"""Interfaces that pods hold, by pod: their reservations, names and traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from k8s_rdma.core.traffic import ProgrammedRates
from k8s_rdma.web.node_traffic import Measured, PodOnPf
from k8s_rdma.web.pages import Part
from k8s_rdma.web.traffic import FlowKey, PodFlow
from k8s_rdma.wire.views import HolderRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from k8s_rdma.web.access import Visibility
    from k8s_rdma.web.node_traffic import InterfaceTraffic

HOLDINGS_ON_A_PAGE = 50


@dataclass(frozen=True, slots=True)
class Alike:
    """Equal interfaces of a pod on a PF. row: one of them."""

    row: HolderRow
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Equal interfaces of a pod on a PF. names: empty, flow: None, if not known."""

    row: HolderRow
    count: int
    names: tuple[str, ...] = ()
    flow: PodFlow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHoldings:
    """A pod, and those of its interfaces that are on the page. row: one of them.

    interfaces, reserved_mbps: of all its interfaces in the list.
    flow: of all these; None if not known.
    """

    row: HolderRow
    interfaces: int
    reserved_mbps: int
    flow: PodFlow | None
    holdings: tuple[Holding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTraffic:
    """Known traffic. measured: by node, at present. flows: means of some minutes, by Prometheus."""

    measured: Mapping[str, Measured]
    flows: Mapping[FlowKey, PodFlow]

    def names_and_flow(self, alike: Alike, *, only: bool) -> tuple[tuple[str, ...], PodFlow | None]:
        """Find the interfaces of a holding among those that its node names.

        only: whether the pod has no others on this PF. Otherwise their rates tell which they are.
        """
        row, node = alike.row, self.measured.get(alike.row.node)
        on_pf = node.interfaces.get(PodOnPf(row.pci, row.namespace, row.pod), ()) if node else ()
        programmed = ProgrammedRates(row.reserved_mbps, row.cap_mbps)
        found = [interface for interface in on_pf if only or interface.programmed == programmed]
        if len(found) != alike.count:
            return (), None
        return tuple(interface.name for interface in found), _sum_of(found)

    def flow_of(self, alike: Sequence[Alike], holdings: Sequence[Holding]) -> PodFlow | None:
        """Add up the flows of a pod: the present ones if all are known, or else Prometheus'."""
        flows = [holding.flow for holding in holdings]
        if None in flows:
            rows = (kind.row for kind in alike)
            keys = dict.fromkeys(FlowKey(row.node, row.pf, row.namespace, row.pod) for row in rows)
            flows = [self.flows.get(key) for key in keys]
        return _add(flows)


def _sum_of(interfaces: Iterable[InterfaceTraffic]) -> PodFlow | None:
    return _add([interface.rates and PodFlow(*interface.rates) for interface in interfaces])


def _add(flows: Sequence[PodFlow | None]) -> PodFlow | None:
    """Add up flows, if all are known."""
    known_flows = [flow for flow in flows if flow is not None]
    if not known_flows or len(known_flows) < len(flows):
        return None
    return PodFlow(
        _total(flow.sent_mbps for flow in known_flows), _total(flow.received_mbps for flow in known_flows)
    )


def _total(rates: Iterable[float | None]) -> float | None:
    listed = list(rates)
    known_rates = [rate for rate in listed if rate is not None]
    return sum(known_rates) if len(known_rates) == len(listed) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """A page of interfaces that pods hold, and the sum of those that a viewer may not see.

    by_holder: all interfaces of visible pods.
    undecided: as in `Visibility`.
    """

    part: Part[Alike]
    by_holder: Mapping[tuple[str, str, str], tuple[Alike, ...]]
    hidden: int
    hidden_mbps: int
    undecided: int

    @classmethod
    def select(cls, rows: Iterable[HolderRow], visibility: Visibility, page: int) -> Holdings:
        """Select the interfaces of visible namespaces, pod by pod."""
        counts: Counter[HolderRow] = Counter()
        hidden = hidden_mbps = 0
        for row in rows:
            if row.namespace in visibility.namespaces:
                counts[row] += 1
            else:
                hidden += 1
                hidden_mbps += row.reserved_mbps
        alike = sorted((Alike(row, count) for row, count in counts.items()), key=_order)
        return cls(
            part=Part.cut(alike, number=page, size=HOLDINGS_ON_A_PAGE),
            by_holder={pod: tuple(found) for pod, found in groupby(alike, key=_pod)},
            hidden=hidden,
            hidden_mbps=hidden_mbps,
            undecided=visibility.undecided,
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of this page's interfaces."""
        return tuple(dict.fromkeys(kind.row.node for kind in self.part.rows))

    def by_pod(self, traffic: KnownTraffic) -> Iterator[PodHoldings]:
        """Make the pods of this page, with their traffic."""
        for pod, found in groupby(self.part.rows, key=_pod):
            shown, every = tuple(found), self.by_holder[pod]
            measured = {kind: _holding(kind, every, traffic) for kind in every}
            yield PodHoldings(
                row=shown[0].row,
                interfaces=sum(kind.count for kind in every),
                reserved_mbps=sum(kind.count * kind.row.reserved_mbps for kind in every),
                flow=traffic.flow_of(every, tuple(measured.values())),
                holdings=tuple(measured[kind] for kind in shown),
            )


def _holding(alike: Alike, every: Sequence[Alike], traffic: KnownTraffic) -> Holding:
    place = alike.row.node, alike.row.pci
    only = sum((kind.row.node, kind.row.pci) == place for kind in every) == 1
    names, flow = traffic.names_and_flow(alike, only=only)
    return Holding(row=alike.row, count=alike.count, names=names, flow=flow)


def _pod(alike: Alike) -> tuple[str, str, str]:
    return alike.row.namespace, alike.row.pod, alike.row.uid


def _order(alike: Alike) -> tuple[object, ...]:
    row = alike.row
    return *_pod(alike), row.node, row.pf, -row.reserved_mbps, -row.cap_mbps
