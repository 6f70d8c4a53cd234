"""Snapshots without names: other names, and the same answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from k8s_rdma.core.types import NodeName
from k8s_rdma.planning.anonymity import UNREADABLE_ANNOTATION, anonymised
from k8s_rdma.planning.planned_cluster import PlannedCluster, workload_of
from k8s_rdma.planning.snapshot import NodeRecord, PodRecord, Snapshot, decode_snapshot, encode_snapshot
from k8s_rdma.planning.whatif import headroom
from k8s_rdma.wire.objects.node import ApiTaint, ApiToleration
from planning.test_snapshot import MAC, RECORDED, configured, lists, node, pod, published, small, taken

if TYPE_CHECKING:
    from pathlib import Path


def test_anonymous_snapshot_has_other_names_and_the_same_answers():
    path = RECORDED[-1]
    snapshot = decode_snapshot(path.read_bytes(), path.name)
    other = anonymised(snapshot)
    planned, again = (PlannedCluster.from_snapshot(entry) for entry in (snapshot, other))
    assert headroom(planned, ()).shapes == headroom(again, ()).shapes
    assert [len(planned.cluster.node(name).pods) for name in planned.cluster] == [
        len(again.cluster.node(name).pods) for name in again.cluster
    ]
    text = encode_snapshot(other).decode()
    names = [
        *(entry.name for entry in snapshot.nodes),
        *(entry.uid for entry in snapshot.pods),
        "waits",
        "foreign",
    ]
    assert not [name for name in names if f'"{name}' in text or f"{name}-" in text]
    assert "default" not in text
    assert again.limit_refusal(
        "namespace-1", workload_of(next(again.pending())).request
    ) == planned.limit_refusal("default", workload_of(next(planned.pending())).request).replace(
        "default", "namespace-1"
    )


def test_anonymous_taints_are_others_and_are_tolerated_as_before():
    own, kubernetes = "example.com/team", "node.kubernetes.io/unschedulable"
    taints = (
        ApiTaint(key=own, value="gold", effect="NoSchedule"),
        ApiTaint(key=kubernetes, effect="NoSchedule"),
    )
    tolerations = (
        ApiToleration(key=own, value="gold"),
        ApiToleration(key=kubernetes, operator="Exists"),
        ApiToleration(operator="Exists"),
    )
    pods = tuple(
        PodRecord(namespace="a", name=f"p{number}", uid=f"u{number}", tolerations=chosen)
        for number, chosen in enumerate((tolerations[:2], tolerations[:1], tolerations[2:], ()))
    )
    nodes = (
        NodeRecord(name="w1", taints=taints),
        NodeRecord(name="w2", taints=(replace(taints[0], value="iron"),)),
    )
    snapshot = Snapshot(version=2, nodes=nodes, pods=pods)
    other = anonymised(snapshot)
    text = encode_snapshot(other).decode()
    assert not [word for word in ("example", "team", "gold", "iron") if word in text]
    assert kubernetes in text
    assert [entry.tolerations for entry in other.pods][2:] == [tolerations[2:], ()]
    key, value = other.nodes[0].taints[0].key, other.nodes[0].taints[0].value
    assert other.pods[0].tolerations[0] == ApiToleration(key=key, value=value)
    assert (other.nodes[1].taints[0].key, other.nodes[1].taints[0].value != value) == (key, True)


def test_anonymous_addresses_are_others_and_still_addresses(tmp_path: Path):
    snapshot = anonymised(small(tmp_path))
    text = encode_snapshot(snapshot).decode()
    assert MAC not in text
    assert "rack" not in text
    planned = PlannedCluster.from_snapshot(snapshot)
    first, second = workload_of(next(planned.pending())).request.interfaces
    assert (first.options.mac, second.options.guid) == ("02:00:00:00:00:01", "02:00:00:00:00:00:00:01")
    assert NodeName("node-1") in planned.cluster


TENANT = "hunter2"


@pytest.mark.parametrize(
    "text",
    [
        '[{"mac": "0a-0b-0c-0d-0e-0f"}]',
        '[{"mac": "0a0b.0c0d.0e0f"}]',
        '[{"min_tx_rate": "hunter2"}]',
        "hunter2",
        '[{"hunter2": 1}]',
        '[{"min_tx_rate": 1}] hunter2',
        '[{"name": "hunter2", "min_tx_rate": -1}]',
    ],
)
def test_annotation_that_cannot_be_read_is_left_out_of_an_anonymous_snapshot(text: str, tmp_path: Path):
    pods = [pod("p", {"rdma_interfaces_required": text, "k8s-rdma.io/policy": TENANT})]
    snapshot = taken(
        lists(rdma_nodes=[published("w1")], nodes=[node("w1")], pods=pods) | configured(), tmp_path
    )
    other = anonymised(snapshot)
    (record,) = other.pods
    assert record.annotations == {"rdma_interfaces_required": UNREADABLE_ANNOTATION}
    assert len(PlannedCluster.from_snapshot(other).unreadable) == len(
        PlannedCluster.from_snapshot(snapshot).unreadable
    )


def test_annotation_of_an_anonymous_snapshot_is_written_anew(tmp_path: Path):
    escaped = "".join(f"\\u{ord(sign):04x}" for sign in MAC)
    text = f'[{{"name": "{TENANT}", "network": "{TENANT}", "mac": "{escaped}", "min_tx_rate": 5}}]'
    annotations = {"k8s-rdma.io/interfaces": text, "k8s-rdma.io/policy": "spread-pfs"}
    answers = lists(rdma_nodes=[published("w1")], nodes=[node("w1")], pods=[pod("p", annotations)])
    other = anonymised(taken(answers | configured(), tmp_path))
    written = json.loads(other.pods[0].annotations.pop("k8s-rdma.io/interfaces"))
    assert written == [
        {"name": "rdma-1", "network": "network-1", "mac": "02:00:00:00:00:01", "min_tx_rate": 5}
    ]
    assert other.pods[0].annotations == {"k8s-rdma.io/policy": "spread-pfs"}
    assert TENANT not in encode_snapshot(other).decode()
