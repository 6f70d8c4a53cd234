"""Whose comparisons of changed nodes come next."""

from __future__ import annotations

from k8s_rdma.core.inventory import Inventory
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import NodeName
from k8s_rdma.extender.node_cache import NodeSnapshot
from k8s_rdma.extender.requeue import Backlog

NODES = [NodeName(f"w{at}") for at in range(3)]
CROWD = [("crowd", Request((InterfaceRequest(min_tx_rate_mbps=rate),))) for rate in (1, 2, 3)]
VICTIM = ("victim", Request((InterfaceRequest(min_tx_rate_mbps=9),)))


def situation(node: NodeName) -> NodeSnapshot:
    return NodeSnapshot(Inventory(node=node, pfs=()), {})


def test_namespace_that_used_less_is_compared_with_all_nodes_before_others():
    backlog = Backlog()
    for node in NODES:
        backlog.put(node, None, [*CROWD, VICTIM])
    used = {"crowd": 5.0, "victim": 0.1}
    taken = [backlog.pop(used.__getitem__) for _ in range(12)]
    assert [each.namespace for each in taken] == ["victim"] * 3 + ["crowd"] * 9
    assert not backlog


def test_node_that_helps_is_compared_no_more():
    backlog = Backlog()
    backlog.put(NODES[0], None, [*CROWD, VICTIM])
    backlog.put(NODES[1], None, [VICTIM])
    backlog.drop(NODES[0])
    assert backlog.pop(lambda _: 0.0).node == NODES[1]
    assert not backlog


def test_two_changes_are_one_without_a_comparison_between_them():
    backlog, first, second = Backlog(), situation(NODES[0]), situation(NODES[1])
    backlog.put(NODES[0], first, [VICTIM])
    backlog.put(NODES[0], second, [VICTIM])
    assert backlog.pop(lambda _: 0.0).previous is first
    backlog.put(NODES[0], second, [VICTIM])
    assert backlog.pop(lambda _: 0.0).previous is second
    assert not backlog


def test_change_amid_comparisons_helps_any_pod_that_fits():
    backlog = Backlog()
    backlog.put(NODES[0], situation(NODES[0]), [*CROWD, VICTIM])
    backlog.pop(lambda _: 0.0)
    backlog.put(NODES[0], situation(NODES[1]), [VICTIM])
    assert backlog.pop(lambda _: 0.0).previous is None
