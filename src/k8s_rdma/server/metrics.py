"""A node's state in the Prometheus text format, version 0.0.4.

Written by hand: a dozen gauges that change with the report only, rendered once for each. What is not known
has no sample, since 0 would be a statement.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from k8s_rdma.wire.rest import NodeReport, PfReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BITS_PER_MEGABIT = 1_000_000

Sample = tuple["Mapping[str, str]", int]


def render_metrics(report: NodeReport | None) -> bytes:
    """The exposition; None while nothing is known of the node."""
    reachable = report is not None and report.ledger == "ok"
    lines = [*_gauge("k8s_rdma_agent_reachable", "Whether the node's agent answers.", [({}, reachable)])]
    if report is not None:
        lines += _node_lines(report)
    return ("\n".join(lines) + "\n").encode()


def _node_lines(report: NodeReport) -> Iterator[str]:
    node = {"node": report.node}
    vfs, mbps = _taken(report)
    labelled = [(_labels(report, pf), pf) for pf in report.pfs]
    if report.ledger == "ok":
        help_text = "Sandboxes that hold interfaces."
        yield from _gauge("k8s_rdma_allocations", help_text, [(node, len(report.allocations))])
    help_text = "What the last look at the hardware could not see."
    yield from _gauge("k8s_rdma_unreadable", help_text, [(node, len(report.unreadable))])
    help_text = "Virtual functions that exist."
    yield from _gauge("k8s_rdma_pf_vfs", help_text, [(labels, pf.capacity_vfs) for labels, pf in labelled])
    help_text = "Virtual functions that are taken, by whomever."
    yield from _gauge("k8s_rdma_pf_vfs_taken", help_text, [(labels, vfs[pf.pci]) for labels, pf in labelled])
    yield from _gauge(
        "k8s_rdma_pf_reserved_bits_per_second",
        "Reserved bandwidth, by whomever.",
        [(labels, mbps[pf.pci] * _BITS_PER_MEGABIT) for labels, pf in labelled],
    )
    yield from _gauge(
        "k8s_rdma_pf_link_bits_per_second",
        "Link speed; absent while it is unknown.",
        [(labels, pf.link_mbps * _BITS_PER_MEGABIT) for labels, pf in labelled if pf.link_mbps is not None],
    )


def _taken(report: NodeReport) -> tuple[Counter[str], Counter[str]]:
    """VFs and Mb/s by PF: what pods hold, and what others do."""
    vfs = Counter({pf.pci: len(pf.foreign) for pf in report.pfs})
    mbps = Counter({pf.pci: sum(vf.min_tx_rate for vf in pf.foreign) for pf in report.pfs})
    for allocation in report.allocations:
        for interface in allocation.interfaces:
            vfs[interface.pf] += 1
            mbps[interface.pf] += interface.min_tx_rate
    return vfs, mbps


def _labels(report: NodeReport, pf: PfReport) -> Mapping[str, str]:
    return {"node": report.node, "pf": pf.name, "pci": pf.pci}


def _gauge(name: str, help_text: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        yield f"{name}{{{inside}}} {int(value)}" if inside else f"{name} {int(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
