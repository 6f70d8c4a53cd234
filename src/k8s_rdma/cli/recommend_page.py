"""Recommendations as a page for people: better requests, reasons, and pods that want more than they get."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.cli.omissions import MOST_ROWS, print_omitted
from k8s_rdma.cli.tables import NONE, UNKNOWN, Column, Table, mbps
from k8s_rdma.core.recommendation import WorkloadName, duration_text, rate_text
from k8s_rdma.core.refusal import count

if TYPE_CHECKING:
    from k8s_rdma.cli.console import Page
    from k8s_rdma.cli.recommend_document import Recommendations, UnmetPeriod, WorkloadRecommendation

_SOURCES = {"prometheus": "Prometheus", "nodes": "the nodes"}


def show(found: Recommendations, page: Page) -> None:
    """Print the page."""
    page.print(_headline(found))
    if found.workloads:
        page.print()
        page.print(_table(found))
        page.print()
        for row in found.workloads[:MOST_ROWS]:
            page.print(f"{_name(row)} {row.interface}: {row.reason}.{_confidence(row)}")
        print_omitted(len(found.workloads), page)
    _show_unmet(found, page)
    _show_freed(found, page)
    page.print_notes(found.notes)


def _headline(found: Recommendations) -> str:
    source = _SOURCES[found.source]
    if not found.workloads:
        return f"No interface of these pods has readings of {source}."
    interfaces = count(sum(len(row.pods) for row in found.workloads), "interface")
    workloads = count(len({(row.namespace, row.kind, row.name) for row in found.workloads}), "workload")
    early = "" if found.complete else ", ended early"
    resolution = f"means of {duration_text(found.resolution_s)}" if found.resolution_s else "no means"
    return f"{interfaces} of {workloads}, by {source}: {resolution} in {duration_text(found.window_s)}{early}"


def _table(found: Recommendations) -> Table:
    rows = Table(
        Column("WORKLOAD"),
        Column("INTERFACE"),
        Column("PODS", right=True, rank=3),
        Column("RESERVED", right=True),
        Column("CAP", right=True, rank=7),
        Column("P50", right=True, rank=9),
        Column("P95", right=True, rank=4),
        Column("P99", right=True, rank=8),
        Column("MAXIMUM", right=True, rank=1),
        Column("RECEIVED", right=True, rank=10),
        Column("AT CAP", right=True, rank=5),
        Column("DROPPED", right=True, rank=11),
        Column("SENT AGAIN", right=True, rank=12),
        Column("SUGGESTED", right=True),
        Column("SUGGESTED CAP", right=True, rank=6),
        Column("COVERED", right=True, rank=13),
        Column("FREED", right=True, rank=2),
        Column("CONFIDENCE", rank=3),
    )
    for row in found.workloads[:MOST_ROWS] if not _is_whole(found) else found.workloads:
        rows.add(*_cells(row))
    return rows


def _is_whole(found: Recommendations) -> bool:
    return len(found.workloads) <= MOST_ROWS


def _cells(row: WorkloadRecommendation) -> tuple[str, ...]:
    sent, reserved = row.sent, {pod.reserved_mbps for pod in row.pods}
    caps = {pod.cap_mbps for pod in row.pods}
    return (
        _name(row),
        row.interface,
        str(len(row.pods)),
        _one_of(reserved),
        _one_of(caps, zero=NONE),
        *map(_used, (sent.p50, sent.p95, sent.p99, sent.maximum) if sent else (None,) * 4),
        _used(row.received.maximum if row.received else None),
        f"{row.at_cap_percent:g}%" if any(caps) else NONE,
        *(_counted(number) for number in (row.losses.dropped, row.losses.retransmitted)),
        UNKNOWN if row.min_tx_rate is None else mbps(row.min_tx_rate),
        UNKNOWN if row.max_tx_rate is None else mbps(row.max_tx_rate) if row.max_tx_rate else NONE,
        UNKNOWN if row.covered_percent is None else f"{row.covered_percent:g}%",
        mbps(row.freed_mbps),
        row.confidence,
    )


def _name(row: WorkloadRecommendation) -> str:
    return WorkloadName(row.namespace, row.kind, row.name).text


def _one_of(rates: set[int | None], zero: str = "") -> str:
    """Format the rate of each pod, or the least and the most of them."""
    known_rates = sorted(rate for rate in rates if rate is not None)
    if not known_rates:
        return UNKNOWN
    if known_rates[0] == known_rates[-1]:
        return zero if zero and not known_rates[0] else mbps(known_rates[0])
    return mbps(f"{known_rates[0]}-{known_rates[-1]}")


def _used(rate: float | None) -> str:
    return UNKNOWN if rate is None else mbps(f"{rate:.1f}")


def _counted(number: int | None) -> str:
    return UNKNOWN if number is None else str(number)


def _confidence(row: WorkloadRecommendation) -> str:
    if row.confidence in ("none", "high"):
        return ""
    return f" Confidence {row.confidence}: {'; '.join(row.confidence_reasons)}."


def _show_unmet(found: Recommendations, page: Page) -> None:
    periods = [(row, period) for row in found.workloads for period in row.unmet]
    if not periods:
        return
    page.print()
    page.print("Unmet demand:", style="red")
    for row, period in periods[:MOST_ROWS]:
        page.print(f"  {_period(row.namespace, period)}")
    print_omitted(len(periods), page)


def _period(namespace: str, period: UnmetPeriod) -> str:
    place = f"{namespace}/{period.pod} {period.interface} on {period.node}/{period.pf}"
    when = f"{period.began} to {period.ended}"
    enforcer = period.enforced_by or "not known to be enforced"
    limit, sent = rate_text(period.wanted_mbps), rate_text(period.sent_mbps)
    losses = ", ".join(
        text
        for number, text in (
            (period.losses.dropped, f"{period.losses.dropped} packets dropped"),
            (period.losses.retransmitted, f"packets sent again {period.losses.retransmitted} times"),
        )
        if number
    )
    why = f"; {losses}" if losses else ""
    return f"{place}, {when}: sent {sent} with a {period.limit} of {limit} ({enforcer}){why}"


def _show_freed(found: Recommendations, page: Page) -> None:
    if found.freed:
        page.print()
        rows = Table(Column("NODE"), Column("PF"), Column("FREED", right=True))
        for pf in found.freed[:MOST_ROWS]:
            rows.add(pf.node, pf.pf, mbps(pf.mbps))
        page.print("With all suggestions, by PF; below zero, they take more:", rows, sep="\n")
        print_omitted(len(found.freed), page)
    if found.room:
        page.print()
        rows = Table(Column("SHAPE"), *(Column(row, right=True) for row in ("NOW", "THEN", "DIFFERENCE")))
        for shape in found.room:
            rows.add(shape.shape, str(shape.now), str(shape.then), f"{shape.then - shape.now:+d}")
        page.print("Pods that still fit, of each shape by itself:", rows, sep="\n")
