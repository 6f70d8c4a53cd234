"""Clusters whose nodes were lost, as their users reported them, and the demo's controller manager."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_rdma_demo.cluster.node_lifecycle import UNREACHABLE, Eviction, due_taints, eviction_rates

NOW = "2026-01-01T00:00:10Z"


def node(name: str, ready: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


@pytest.mark.parametrize(
    "nodes",
    [
        [node("worker", "Unknown")],
        [node(f"n{number}", "Unknown") for number in range(22)],
    ],
    ids=["one-worker", "all-switched-off"],
)
def test_lost_nodes_have_no_taint_that_ends_pods_if_none_is_left(nodes: list[dict[str, Any]]):
    """Users missed `unreachable:NoExecute`, and pods that moved; the demo ended pods that had no other place.

    Source: https://github.com/kubernetes/kubernetes/issues/77981,
    https://github.com/kubernetes/kubernetes/issues/101674, https://github.com/kubernetes/kubernetes/issues/111385.
    """
    assert eviction_rates(nodes) is None
    assert due_taints(nodes[0], NOW, Eviction.STOPPED) == [
        {"key": UNREACHABLE, "effect": "NoSchedule", "timeAdded": NOW}
    ]


def test_control_plane_that_is_ready_ends_the_disruption():
    """The user's workers were all lost, in one zone, and their pods were to end, because the masters count.

    Source: https://github.com/kubernetes/kubernetes/issues/128528. Here they are not excluded by their label.
    """
    masters = [node(f"m{number}", "True") for number in range(3)]
    assert eviction_rates([*masters, node("w1", "Unknown"), node("w2", "Unknown")]) == {"": 0.1}
    many = [node(f"w{number}", "Unknown") for number in range(4)]
    assert eviction_rates([*masters, *many]) == {"": 0.0}, "partial disruption of a small zone"
