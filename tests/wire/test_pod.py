"""Pods as the API server writes them: nodes that they select, and their neighbours."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from k8s_rdma.wire.objects.node import ApiToleration
from k8s_rdma.wire.objects.pod import PodSpec, PodSpecDemand


def spec(**fields: Any) -> PodSpec:
    return msgspec.json.decode(msgspec.json.encode(fields), type=PodSpec)


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


@pytest.mark.parametrize(
    ("fields", "depends"),
    [
        ({}, False),
        ({"affinity": None, "resourceClaims": [], "topologySpreadConstraints": None}, False),
        ({"affinity": {"podAntiAffinity": {}}}, True),
        ({"topologySpreadConstraints": [{"maxSkew": 1}]}, True),
        ({"resourceClaims": [{"name": "a"}]}, True),
    ],
)
def test_pod_depends_on_neighbours_by_what_its_specification_asks_for(
    fields: dict[str, Any], *, depends: bool
):
    found = msgspec.json.decode(msgspec.json.encode(fields), type=PodSpecDemand)
    assert found.depends_on_neighbours is spec(**fields).depends_on_neighbours is depends


def test_selection_joins_labels_and_the_terms_of_required_affinity():
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    found = spec(nodeSelector={"rdma": "yes"}, affinity=affinity({"matchExpressions": [zone]})).selection()
    labels = [{"rdma": "yes", "zone": "a"}, {"rdma": "yes", "zone": "b"}, {"zone": "a"}]
    assert [found.selects("w1", each) for each in labels] == [True, False, False]


def test_affinity_without_required_terms_selects_no_node_by_them():
    assert spec().node_affinity() is spec(affinity={"nodeAffinity": {}}).node_affinity() is None
    assert spec(affinity=affinity()).node_affinity() == ()


def test_tolerations_that_end_are_left_out():
    """Admission adds two to every pod."""
    lasting = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
    ending = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}
    [found] = spec(tolerations=[lasting, ending]).lasting_tolerations()
    assert found == ApiToleration(key="gpu", operator="Exists", effect="NoSchedule")
