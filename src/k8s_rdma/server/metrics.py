"""A node's state in the Prometheus text format.

Written by hand: gauges that change with the report only, rendered once for each. What is not known has no
sample, since 0 would be a statement.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from k8s_rdma.http_server.exposition import family, labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from k8s_rdma.wire.rest import NodeReport, PfReport

    Value = Callable[[PfReport], int | None]
    """Of a PF; None where it is not known."""

_BITS_PER_MEGABIT = 1_000_000


def render_metrics(report: NodeReport | None) -> bytes:
    """The exposition; None while nothing is known of the node."""
    reachable = report is not None and report.ledger == "ok"
    help_text = "Whether the node's agent answers."
    lines = [*family("k8s_rdma_agent_reachable", "gauge", help_text, [("", reachable)])]
    if report is not None:
        lines += _node_lines(report)
    return ("\n".join(lines) + "\n").encode()


def _node_lines(report: NodeReport) -> Iterator[str]:
    node = labels({"node": report.node})
    if report.ledger == "ok":
        help_text = "Sandboxes that hold interfaces."
        yield from family("k8s_rdma_allocations", "gauge", help_text, [(node, len(report.allocations))])
    help_text = "What the last look at the hardware could not see."
    yield from family("k8s_rdma_unreadable", "gauge", help_text, [(node, len(report.unreadable))])
    help_text = "What an operator should know of the node; /v1/node has the sentences."
    yield from family("k8s_rdma_problems", "gauge", help_text, [(node, len(report.problems))])
    labelled = [(labels({"node": report.node, "pf": pf.name, "pci": pf.pci}), pf) for pf in report.pfs]
    for name, help_text, value in _of_pfs(report):
        samples = [(text, number) for text, pf in labelled if (number := value(pf)) is not None]
        yield from family(f"k8s_rdma_pf_{name}", "gauge", help_text, samples)
    yield from _of_pools(report)


def _of_pools(report: NodeReport) -> Iterator[str]:
    taken, _ = _vf_counts(report)
    exist, held = [], []
    for pf in report.pfs:
        for resource, vfs in pf.pools.items():
            text = labels({"node": report.node, "pf": pf.name, "pci": pf.pci, "resource": resource})
            exist.append((text, vfs))
            held.append((text, taken[pf.pci, resource]))
    yield from family("k8s_rdma_pool_vfs", "gauge", "Virtual functions of an exclusive resource.", exist)
    help_text = "Virtual functions of an exclusive resource that are taken, by whomever."
    yield from family("k8s_rdma_pool_vfs_taken", "gauge", help_text, held)


def _of_pfs(report: NodeReport) -> tuple[tuple[str, str, Value], ...]:
    """Name, explanation and value of every metric of a PF."""
    vfs, mbps = _vf_counts(report)

    def bandwidth(mbps_of: Callable[[PfReport, int], int]) -> Value:
        """Of a PF whose link speed is known."""
        return lambda pf: None if pf.link_mbps is None else mbps_of(pf, pf.link_mbps) * _BITS_PER_MEGABIT

    return (
        ("vfs", "Virtual functions of no exclusive resource.", lambda pf: pf.capacity_vfs),
        ("vfs_taken", "Of these, those that are taken, by whomever.", lambda pf: vfs[pf.pci, ""]),
        (
            "vfs_free",
            "Of these, those that are nobody's.",
            lambda pf: max(0, pf.capacity_vfs - vfs[pf.pci, ""]),
        ),
        ("link_bits_per_second", "Link speed; absent while it is unknown.", bandwidth(lambda _, link: link)),
        (
            "reserved_bits_per_second",
            "Reserved bandwidth, by whomever.",
            lambda pf: mbps[pf.pci] * _BITS_PER_MEGABIT,
        ),
        (
            "free_bits_per_second",
            "Bandwidth of the link that nobody reserved; absent while its speed is unknown.",
            bandwidth(lambda pf, link: max(0, link - mbps[pf.pci])),
        ),
        (
            "overcommitted_bits_per_second",
            "Reserved bandwidth beyond what the link has now; absent while its speed is unknown.",
            bandwidth(lambda pf, link: max(0, mbps[pf.pci] - link)),
        ),
    )


def _vf_counts(report: NodeReport) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """VFs by PF and pool, Mb/s by PF: what pods hold, as programmed where that is more, and what others do.

    The pool of VFs that pods ask for by annotation is the empty one.
    """
    vfs = Counter((pf.pci, vf.pool) for pf in report.pfs for vf in pf.foreign)
    mbps = Counter({pf.pci: sum(vf.min_tx_rate for vf in pf.foreign) for pf in report.pfs})
    for allocation in report.allocations:
        for interface in allocation.interfaces:
            vfs[interface.pf, interface.pool] += 1
            mbps[interface.pf] += max(interface.min_tx_rate, interface.set_min_tx_rate)
    return vfs, mbps
