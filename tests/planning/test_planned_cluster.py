"""A snapshot to ask questions of: the nodes that a pod may be on, and the limits of namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from k8s_rdma.planning.snapshot import NamespaceLimit
from k8s_rdma.planning.whatif import ClusterChanges, PlannedFailures, fit, lose, with_changes
from k8s_rdma.wire.objects.node import ApiTaint
from planning.small_clusters import (
    TWO_NODES,
    ZONE_B,
    affinity,
    holder,
    manifest,
    node,
    planned,
    read_workloads,
)


def test_whatif_has_no_effect_on_the_snapshot():
    cluster = planned(*TWO_NODES)
    first = fit(cluster, read_workloads(manifest(4_000, replicas=3)))
    lose(cluster, PlannedFailures(nodes=("w2",)))
    with_changes(cluster, ClusterChanges(vfs=1, nodes=2, like="w1"), ())
    assert fit(cluster, read_workloads(manifest(4_000, replicas=3))) == first


IS_W2 = {"key": "metadata.name", "operator": "In", "values": ["w2"]}
CORDON = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("pod", "placed"),
    [
        ({}, {"w1": 1}),
        ({"nodeSelector": {"zone": "b"}}, {"w2": 1}),
        ({"nodeSelector": {"zone": "c"}}, {}),
        ({"affinity": affinity(matchExpressions=[ZONE_B])}, {"w2": 1}),
        ({"affinity": affinity(matchExpressions=[{**ZONE_B, "operator": "NotIn"}])}, {"w1": 1}),
        ({"affinity": affinity(matchFields=[IS_W2])}, {"w2": 1}),
        ({"affinity": affinity(matchFields=[IS_W2]), "nodeSelector": {"zone": "a"}}, {}),
        ({"affinity": affinity()}, {}),
        ({"affinity": {"nodeAffinity": {}, "podAffinity": {}}}, {"w1": 1}),
        ({"tolerations": [CORDON], "nodeSelector": {"zone": "z"}}, {"w0": 1}),
        ({"tolerations": [{"key": "gpu", "operator": "Exists"}], "nodeSelector": {"zone": "d"}}, {"w3": 1}),
        ({"tolerations": [{"key": "gpu", "value": "no"}], "nodeSelector": {"zone": "d"}}, {}),
    ],
)
def test_selectors_taints_and_cordons_are_obeyed(pod: dict[str, Any], placed: dict[str, int]):
    cluster = planned(
        node("w0", unschedulable=True, labels={"zone": "z"}),
        node("w1", labels={"zone": "a"}),
        node("w2", labels={"zone": "b"}),
        node("w3", labels={"zone": "d"}, taints=(ApiTaint(key="gpu", value="yes", effect="NoSchedule"),)),
    )
    [found] = fit(cluster, read_workloads(manifest(1_000, pod=pod))).workloads
    assert found.nodes == placed


def test_limit_of_a_namespace_is_an_obstacle_and_is_said_with_numbers():
    limits = (NamespaceLimit(namespace="team", reserved_mbps=9_000), NamespaceLimit(namespace="*", vfs=1))
    cluster = planned(*TWO_NODES, limits=limits, pods=(holder("a", "w2", 6_000),))
    [found] = fit(cluster, read_workloads(manifest(1_000, replicas=5))).workloads
    assert found.placed == 3
    assert found.obstacles == {"namespace team holds 9000 of 9000 reserved Mb/s; needs 1000": 2}
