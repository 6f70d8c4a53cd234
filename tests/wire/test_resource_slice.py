"""ResourceSlices that are made of a node's PFs."""

from __future__ import annotations

import pytest

from deviceplugin.offered_pf import offer
from k8s_rdma.wire.claims import Offers
from k8s_rdma.wire.cluster_claims import NOTHING_CONSUMED, claim_nodes
from k8s_rdma.wire.resource_slice import slice_specs


def test_least_reservation_of_a_pf_begins_its_range_and_is_read_again() -> None:
    [spec] = slice_specs(Offers(node="w1", pfs=(offer(bandwidth_mbps=93_899, least_mbps=1_000),)))
    [device] = spec["devices"]
    policy = device["capacity"]["bandwidth"]["requestPolicy"]
    assert policy == {"default": "1G", "validRange": {"min": "1G", "step": "1M"}}
    [node] = claim_nodes([{"spec": spec}], NOTHING_CONSUMED)
    assert [(pf.mbps, pf.least_mbps) for pf in node.pfs] == [(93_899, 1_000)]


NUMA_NODES = "resource.kubernetes.io/numaNode", "numaNode"


@pytest.mark.parametrize("as_list", [False, True])
def test_numa_node_is_published_in_one_form_and_left_out_if_there_is_none(*, as_list: bool) -> None:
    pfs = offer("f0", numa_node=1), offer("f1", numa_node=None)
    near_nodes = (lambda node: (node, 3)) if as_list else None
    [spec] = slice_specs(Offers(node="w1", pfs=pfs), near_nodes=near_nodes)
    first, second = ([device["attributes"].get(name) for name in NUMA_NODES] for device in spec["devices"])
    assert first == [{"ints": [1, 3]} if as_list else {"int": 1}, {"int": 1}]
    assert second == [None, None]
    [node] = claim_nodes([{"spec": spec}], NOTHING_CONSUMED)
    assert node.pfs[0].attributes[NUMA_NODES[0]] == (frozenset({1, 3}) if as_list else 1)
