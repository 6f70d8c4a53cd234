"""Facts of a node: every interface, GPU and bridge of its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from extender.node_facts import W1, concluded
from extender.node_server import pf, report
from k8s_rdma.core.allocation import used_on_node
from k8s_rdma.core.inventory import CLAIMS_POOL, Gpu
from k8s_rdma.core.offers import WHOLE
from k8s_rdma.core.placement import Placement, place, score
from k8s_rdma.core.types import NodeName, Strategy
from k8s_rdma.extender.node_source import facts_of, facts_of_status
from k8s_rdma.wire.rdma_node import decode_status, encode_status, status_of
from packing_oracle import request
from wire.rdma_node_values import reports

if TYPE_CHECKING:
    from k8s_rdma.wire.report import NodeReport


@given(reports())
def test_facts_hold_every_interface_of_the_report(node: NodeReport) -> None:
    facts = concluded(lambda: facts_of(node, W1))
    if isinstance(facts, str):
        return
    told: dict[str, list[tuple[str, int, int]]] = {}
    split = {pf.pci for pf in node.pfs if pf.claims_mbps is not None}
    for allocation in node.allocations:
        for i in allocation.interfaces:
            rate = max(i.min_tx_rate, i.set_min_tx_rate)
            if i.pool == CLAIMS_POOL and i.pf in split:
                rate = 0  # of the part of the link that annotations have
            kind = (i.pf, rate, i.max_tx_rate)
            told.setdefault(allocation.pod.uid, []).append(kind)
    found = {
        uid: sorted((p.pf, p.min_tx_rate_mbps, p.max_tx_rate_mbps) for p in placed)
        for uid, placed in facts.reported.items()
    }
    assert found == {uid: sorted(placed) for uid, placed in told.items()}
    assert {pci: used.in_use for pci, used in facts.foreign.items()} == {
        pf.pci: len(pf.foreign) for pf in node.pfs if pf.foreign
    }


@given(reports(), st.sampled_from([0, 1, 400_000]), st.sampled_from(Strategy))
def test_whatever_a_node_says_of_claims_it_is_decided_on(node: NodeReport, mbps: int, way: Strategy) -> None:
    facts = concluded(lambda: facts_of(node, W1))
    if isinstance(facts, str):
        return
    inventory = facts.inventory
    used = used_on_node(reported=facts.reported, foreign=facts.foreign, promised={}, inventory=inventory)
    found = place(request(mbps, mbps), inventory, used, strategy=way)
    if isinstance(found, Placement):
        with_vfs = {pf.pci for pf in inventory.pfs if pf.capacity_vfs}
        assert {placed.pf for placed in found.interfaces} <= with_vfs
        assert 0 <= score(found, inventory, used, way) <= WHOLE
    for claims in facts.claims:
        assert 0 <= claims.free_vfs <= claims.vfs
        assert (claims.mbps or 0) >= 0
        assert (claims.reserved_mbps or 0) >= 0


@given(reports())
def test_facts_have_the_gpus_and_the_bridges_of_the_report(node: NodeReport) -> None:
    facts = concluded(lambda: facts_of(node, W1))
    if isinstance(facts, str):
        return
    assert facts.inventory.gpus == tuple(
        Gpu(
            resource=gpu.resource,
            pci=gpu.pci,
            pcie_path=gpu.pcie_path,
            numa_node=gpu.numa_node,
            in_use=gpu.in_use,
        )
        for gpu in sorted(node.gpus, key=lambda gpu: (gpu.resource, gpu.pci))
    )
    paths = {pf.pci: pf.pcie_path for pf in node.pfs}
    pfs = (*facts.inventory.pfs, *facts.inventory.claims_pfs)
    assert {pf.pci: pf.pcie_path for pf in pfs} == paths


def test_equal_reports_of_nodes_share_their_objects() -> None:
    one, other = (
        facts_of_status(decode_status(encode_status(status_of(report(name, pf(), held={"u": 5})))), name)
        for name in (W1, NodeName("w2"))
    )
    assert one.inventory.pfs[0] is other.inventory.pfs[0]
    assert one.inventory.pfs[0].pcie_path is other.inventory.pfs[0].pcie_path
    assert one.reported["u"] is other.reported["u"]
