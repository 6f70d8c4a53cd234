"""Snapshots: read of hostile clusters, written, refused where they are broken, and without names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from extender.node_server import pf, report
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.calls import Documents
from k8s_rdma.planning.planned_cluster import PlannedCluster, workload_of
from k8s_rdma.planning.snapshot import (
    VERSION,
    Snapshot,
    anonymised,
    decode_snapshot,
    encode_snapshot,
    take_snapshot,
)
from k8s_rdma.planning.whatif import headroom
from k8s_rdma.wire.rdma_node import encode_status, status_of
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from collections.abc import Mapping

RECORDED = sorted((Path(__file__).parents[1] / "recordings" / "snapshots").glob("*.json"))
RDMA_NODES, NODES, PODS = "/apis/k8s-rdma.io/v1alpha1/rdmanodes", "/api/v1/nodes", "/api/v1/pods"
CONFIG = "/api/v1/namespaces/k8s-rdma/configmaps/k8s-rdma-extender"
ASKS = {"rdma_interfaces_required": '[{"min_tx_rate": 1000}]'}
MAC = "0a:0b:0c:0d:0e:0f"


def node(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"rack": name}}, "spec": spec}


def published(name: str, status: Any = None) -> dict[str, Any]:
    own = json.loads(
        encode_status(status_of(report(name, pf(), held={"a": 1_000} if name == "w1" else None)))
    )
    return {"metadata": {"name": name}, "status": own if status is None else status}


def pod(name: str, annotations: Any = None, **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": annotations or ASKS}
    return {"metadata": meta, "spec": spec, "status": {}}


def lists(**items: list[Any]) -> dict[str, bytes | int]:
    paths = {"rdma_nodes": RDMA_NODES, "nodes": NODES, "pods": PODS}
    return {paths[key]: json.dumps({"items": found}).encode() for key, found in items.items()}


def taken(answers: Mapping[str, bytes | int], directory: Path) -> Snapshot:
    with serving_objects(answers, directory) as config, Documents(config) as api:
        return take_snapshot(api, "k8s-rdma")


def small(tmp_path: Path) -> Snapshot:
    text = f'[{{"min_tx_rate": 1000, "mac": "{MAC}"}}, {{"guid": "{MAC}:00:01"}}]'
    pods = [
        pod("waits", {"rdma_interfaces_required": text}, nodeSelector={"rack": "w2"}),
        pod("other", {"x": "y"}),
    ]
    answers = lists(rdma_nodes=[published("w1"), published("w2")], nodes=[node("w1"), node("w2")], pods=pods)
    return taken(answers, tmp_path)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_every_older_version_is_read_and_answered(path: Path):
    snapshot = decode_snapshot(path.read_bytes(), path.name)
    planned = PlannedCluster.from_snapshot(snapshot)
    assert not planned.unreadable
    assert list(planned.cluster) == ["w1", "w2", "w3", "w4"]
    assert [pod.name for pod in planned.pending()] == ["p13", "p8", "waits"]
    assert [room.pods for room in headroom(planned, ()).shapes] == [8, 8, 5, 3, 1, 0]


def test_a_version_is_recorded():
    assert RECORDED[-1].stem == str(VERSION)


def test_writing_what_was_read_changes_nothing(tmp_path: Path):
    snapshot = small(tmp_path)
    data = encode_snapshot(snapshot)
    assert decode_snapshot(data, "x") == snapshot
    assert encode_snapshot(decode_snapshot(data, "x")) == data
    assert len(data.splitlines()) == 8


def test_snapshot_has_the_pods_that_ask_for_interfaces_and_the_extenders_settings(tmp_path: Path):
    config = {"data": {"extender.yaml": "strategy: spread\nlimits: [{namespace: team, vfs: 3}]\nport: 1\n"}}
    answers = lists(
        rdma_nodes=[published("w1"), published("gone")],
        nodes=[node("w1", unschedulable=True, taints=[{"key": "k", "effect": "NoSchedule"}]), node("plain")],
        pods=[pod("a"), pod("b", {"other": "x"}), pod("c") | {"status": {"phase": "Succeeded"}}],
    ) | {CONFIG: json.dumps(config).encode()}
    snapshot = taken(answers, tmp_path)
    assert not snapshot.unreadable
    assert (snapshot.strategy, [limit.vfs for limit in snapshot.limits]) == ("spread", [3])
    assert [(entry.name, entry.unschedulable, len(entry.taints)) for entry in snapshot.nodes] == [
        ("w1", True, 1)
    ]
    assert [entry.name for entry in snapshot.pods] == ["a"]


def test_what_one_object_has_malformed_costs_that_object_alone(tmp_path: Path):
    negative = published("bad")
    negative["status"]["pfs"][0]["linkMbps"] = -1
    answers = lists(
        rdma_nodes=[published("w1"), negative, published("odd", "text"), published("none", [])],
        nodes=[node("w1"), node("bad"), node("odd"), node("none"), {"metadata": {"name": 7}}],
        pods=[
            pod("good"),
            pod("torn", {"rdma_interfaces_required": "[{"}),
            pod("forged", {"k8s-rdma.io/placement": '{"version": 1, "interfaces": -1}'}, nodeName="w1"),
            pod("strange", ["no", "map"]),
        ],
    )  # fmt: skip
    snapshot = taken(answers, tmp_path)
    planned = PlannedCluster.from_snapshot(snapshot)
    assert list(planned.cluster) == ["w1"]
    text = "\n".join(planned.unreadable)
    assert "configmap k8s-rdma/k8s-rdma-extender" in text
    assert "node bad" in text
    assert "linkMbps" in text
    assert "pod team/forged: k8s-rdma.io/placement" in text
    assert "pod team/strange" in text
    with pytest.raises(MalformedError, match="rdma_interfaces_required"):
        workload_of(planned.pods[PodUid("uid-torn")])
    assert workload_of(planned.pods[PodUid("uid-good")]).request


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((b'"version":1', b'"version":2'), "version: 2 is newer than 1"),
        ((b'"version":1', b'"version":"1"'), r"`\$\.version`"),
        ((b'"linkMbps":10000', b'"linkMbps":-1'), r"nodes\[0\]\.status\.pfs\[0\]\.linkMbps"),
        ((b'"linkMbps"', b'"linkMbs"'), r"nodes\[0\]\.status\.pfs\[0\]\.linkMbs: unknown key; did you mean"),
        ((b'"pods":[', b'"pds":[],"pods":['), "pds: unknown key; did you mean pods"),
        ((b'"name":"w2"', b'"name":"w1"'), r"nodes\[\]\.name: 'w1' is there twice"),
        ((b'"version":1', b'"version":1,"strategy":"best"'), "strategy"),
    ],
)  # fmt: skip
def test_broken_file_is_refused_by_the_name_of_the_field(
    change: tuple[bytes, bytes], message: str, tmp_path: Path
):
    data = encode_snapshot(small(tmp_path))
    assert change[0] in data
    with pytest.raises(MalformedError, match=message) as caught:
        decode_snapshot(data.replace(*change, 1), "cluster.json")
    assert caught.value.message.startswith("cluster.json: ")


def test_torn_file_is_refused_by_its_line(tmp_path: Path):
    data = encode_snapshot(small(tmp_path))
    with pytest.raises(MalformedError, match=r"cluster\.json: no snapshot: line 4, "):
        decode_snapshot(b"\n".join(data.splitlines()[:4])[:-20], "cluster.json")
    for end in range(0, len(data) - 2, 97):
        with pytest.raises(MalformedError):
            decode_snapshot(data[:end], "cluster.json")


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[" * 100_000, b"[]", b"null", b'{"version": 0}'])
def test_other_files_are_no_snapshots(data: bytes):
    with pytest.raises(MalformedError, match=r"cluster\.json: "):
        decode_snapshot(data, "cluster.json")


def test_anonymous_snapshot_has_other_names_and_the_same_answers():
    [path] = RECORDED
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


def test_anonymous_addresses_are_others_and_still_addresses(tmp_path: Path):
    snapshot = anonymised(small(tmp_path))
    text = encode_snapshot(snapshot).decode()
    assert MAC not in text
    assert "rack" not in text
    planned = PlannedCluster.from_snapshot(snapshot)
    first, second = workload_of(next(planned.pending())).request.interfaces
    assert (first.options.mac, second.options.guid) == ("02:00:00:00:00:01", "02:00:00:00:00:00:00:01")
    assert NodeName("node-1") in planned.cluster
