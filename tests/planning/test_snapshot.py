"""Snapshots: read of hostile clusters, written, refused if they are broken, and without names."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from extender.node_server import PF0, pf, report
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PodUid, pci_address
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.documents import Documents
from k8s_rdma.planning.planned_cluster import PlannedCluster, workload_of
from k8s_rdma.planning.snapshot import VERSION, Snapshot, decode_snapshot, encode_snapshot, take_snapshot
from k8s_rdma.planning.whatif import headroom
from k8s_rdma.wire.objects.affinity import NodeSelectorRequirement, NodeSelectorTerm
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION as PLACEMENT
from k8s_rdma.wire.placement_annotation import encode
from k8s_rdma.wire.placement_keys import PlacementKeys
from k8s_rdma.wire.rdma_node import encode_status, status_of
from kube.stored_objects import serving_objects
from node_objects import skewed_node

if TYPE_CHECKING:
    from collections.abc import Mapping


RECORDED = sorted((Path(__file__).parents[1] / "recordings" / "snapshots").glob("*.json"))
RDMA_NODES, NODES, PODS = "/apis/k8s-rdma.io/v1alpha1/rdmanodes", "/api/v1/nodes", "/api/v1/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/k8s-rdma/leases"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
CONFIG = "/api/v1/namespaces/k8s-rdma/configmaps/k8s-rdma-extender"
KEYS = "/api/v1/namespaces/k8s-rdma/secrets/k8s-rdma-placement-key"
ASKS = {"rdma_interfaces_required": '[{"min_tx_rate": 1000}]'}
ONE_CORE = {"resources": {"requests": {"cpu": "1"}}}
MAC = "0a:0b:0c:0d:0e:0f"


def node(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"rack": name}}, "spec": spec}


def published(name: str, status: Any = None) -> dict[str, Any]:
    own = json.loads(
        encode_status(status_of(report(name, pf(), held={"a": 1_000} if name == "w1" else None)))
    )
    return {"metadata": {"name": name}, "status": own if status is None else status}


def holder(uid: str) -> dict[str, str]:
    return {"namespace": "team", "name": uid, "uid": uid}


def pod(name: str, annotations: Any = None, **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": annotations or ASKS}
    return {"metadata": meta, "spec": spec, "status": {}}


def lease(name: str, age_s: float = 0, holder: str = "epoch.1", duration_s: int = 40) -> dict[str, Any]:
    renewed = (datetime.now(UTC) - timedelta(seconds=age_s)).isoformat()
    spec = {"holderIdentity": holder, "leaseDurationSeconds": duration_s, "renewTime": renewed}
    return {"metadata": {"name": name}, "spec": spec}


def lists(**items: list[Any]) -> dict[str, bytes | int]:
    """Lists of objects; by default nodes renew their Leases."""
    paths = {
        "rdma_nodes": RDMA_NODES,
        "nodes": NODES,
        "pods": PODS,
        "leases": LEASES,
        "classes": PRIORITY_CLASSES,
    }
    items = {"leases": [lease(item["metadata"]["name"]) for item in items.get("rdma_nodes", ())], **items}
    return {paths[key]: json.dumps({"items": found}).encode() for key, found in items.items()}


def configured(**settings: Any) -> dict[str, bytes | int]:
    """The extender's configuration."""
    return {CONFIG: json.dumps({"data": {"extender.yaml": json.dumps(settings)}}).encode()}


def taken(
    answers: Mapping[str, bytes | int], directory: Path, extender: Mapping[str, str] | None = None
) -> Snapshot:
    with serving_objects(answers, directory) as config, Documents(config) as api:
        return take_snapshot(api, "k8s-rdma", extender)


def small(tmp_path: Path) -> Snapshot:
    """Eight lines: one of the cluster, two nodes, and the pod that waits on line 7."""
    text = f'[{{"min_tx_rate": 1000, "mac": "{MAC}"}}, {{"guid": "{MAC}:00:01"}}]'
    pods = [
        pod("waits", {"rdma_interfaces_required": text}, nodeSelector={"rack": "w2"}, containers=[ONE_CORE]),
        pod("other", {"x": "y"}),
    ]
    two = published("w1")
    two["status"]["allocations"].append({"pod": holder("b"), "interfaces": []})
    answers = lists(rdma_nodes=[two, published("w2")], nodes=[node("w1"), node("w2")], pods=pods)
    return taken(answers | configured(), tmp_path)


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


def test_written_snapshot_equals_the_one_that_was_read(tmp_path: Path):
    snapshot = small(tmp_path)
    data = encode_snapshot(snapshot)
    assert decode_snapshot(data, "x") == snapshot
    assert encode_snapshot(decode_snapshot(data, "x")) == data
    assert len(data.splitlines()) == 8


def test_snapshot_is_by_the_defaults_of_the_extender_that_runs_and_by_settings_of_a_newer_one(tmp_path: Path):
    """A key that only a newer extender has is ignored; the other settings count."""
    answers = lists(rdma_nodes=[published("w1")], nodes=[node("w1")], pods=[])
    newer = taken(answers | configured(strategy="spread", views={"of": "a newer one"}), tmp_path)
    assert (newer.strategy, newer.unreadable) == ("spread", ())
    assert taken(answers | configured(), tmp_path).strategy == ExtenderConfig().strategy
    [why] = taken(answers | configured(strategy="fastest"), tmp_path).unreadable[:1]
    assert "extender.yaml: line 1: strategy: fastest; wanted binpack" in why


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


def test_snapshot_of_a_cluster_without_agents_says_so(tmp_path: Path):
    answers = lists(rdma_nodes=[], nodes=[node("plain")], pods=[]) | configured()
    assert taken(answers, tmp_path).unreadable[0].startswith("there are no RdmaNodes")


def test_malformed_object_is_left_out_alone(tmp_path: Path):
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
    assert "ConfigMap k8s-rdma/k8s-rdma-extender: there is none" in text
    assert "node bad" in text
    assert "linkMbps" in text
    assert "pod team/forged: k8s-rdma.io/placement" in text
    assert "pod team/strange" in text
    with pytest.raises(MalformedError, match="rdma_interfaces_required"):
        workload_of(planned.pods[PodUid("uid-torn")])
    assert workload_of(planned.pods[PodUid("uid-good")]).request


GROUPS = "/apis/scheduling.k8s.io"


def pod_group(name: str, **spec: Any) -> dict[str, Any]:
    policy = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    return {"metadata": {"name": name, "namespace": "team"}, "spec": policy | spec}


def serving_groups(version: str, *groups: dict[str, Any]) -> dict[str, bytes | int]:
    answers: dict[str, Any] = {
        GROUPS: {"versions": [{"version": "v1"}, {"version": version}]},
        f"{GROUPS}/v1": {"resources": [{"name": "priorityclasses"}]},
        f"{GROUPS}/{version}": {"resources": [{"name": "podgroups"}]},
        f"{GROUPS}/{version}/podgroups": {"items": groups},
    }
    return {path: json.dumps(answer).encode() for path, answer in answers.items()}


def in_groups(*names: str) -> dict[str, bytes | int]:
    pods = [pod(f"in-{name}", schedulingGroup={"podGroupName": name}) for name in names]
    answers = lists(rdma_nodes=[published("w1")], nodes=[node("w1")], pods=[*pods, pod("alone")])
    return answers | configured()


def disruption_of(snapshot: Snapshot) -> dict[str, tuple[bool | None, int | None]]:
    return {each.name: (each.disrupted_together, each.group_priority) for each in snapshot.pods}


@pytest.mark.parametrize(
    ("version", "together"), [("v1beta1", {"all": {}}), ("v1alpha3", {"all": {}}), ("v1alpha2", "PodGroup")]
)
def test_pods_have_the_disruption_of_their_groups(version: str, together: Any, tmp_path: Path):
    groups = [pod_group("whole", disruptionMode=together, priority=7), pod_group("single")]
    answers = in_groups("whole", "single", "gone") | serving_groups(version, *groups)
    snapshot = taken(answers, tmp_path)
    assert not snapshot.unreadable
    assert disruption_of(snapshot) == {
        "alone": (False, None),
        "in-gone": (False, None),
        "in-single": (False, None),
        "in-whole": (True, 7),
    }
    assert decode_snapshot(encode_snapshot(snapshot), "x") == snapshot


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({f"{GROUPS}/v1beta1/podgroups": 403}, "HTTP 403"),
        (serving_groups("v2"), "scheduling.k8s.io/v2 only"),
        (
            serving_groups("v1beta1", pod_group("a", priority="high")),
            "podgroup team/a: Expected `int | null`",
        ),
    ],
)
def test_groups_that_cannot_be_read_keep_their_pods(
    changes: dict[str, bytes | int], why: str, tmp_path: Path
):
    snapshot = taken(in_groups("a") | serving_groups("v1beta1") | changes, tmp_path)
    assert why in "\n".join(snapshot.unreadable)
    assert disruption_of(snapshot) == {"alone": (False, None), "in-a": (None, None)}


def test_older_snapshots_do_not_know_whose_pods_go_together():
    pods = [
        {"namespace": "team", "name": name, "uid": name, "gang": gang}
        for name, gang in (("a", "g"), ("b", ""))
    ]
    data = json.dumps({"version": 3, "pods": pods}).encode()
    assert disruption_of(decode_snapshot(data, "x")) == {"a": (None, None), "b": (False, None)}


def affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def test_snapshot_has_the_required_node_affinity_of_pods(tmp_path: Path):
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    many = {"key": "zone", "operator": "In", "values": [f"z{number}" for number in range(1000)]}
    preferred = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
    answers = lists(
        rdma_nodes=[published("w1")],
        nodes=[node("w1")],
        pods=[
            pod("a", affinity=affinity(zone)),
            pod("b", affinity=preferred),
            pod("c", affinity=affinity(many)),
            pod("d", affinity={"nodeAffinity": [7]}),
        ],
    )
    snapshot = taken(answers | configured(), tmp_path)
    term = NodeSelectorTerm(
        match_expressions=(NodeSelectorRequirement(key="zone", operator="In", values=("a",)),)
    )
    assert [entry.node_affinity for entry in snapshot.pods] == [(term,), None, None]
    text = "\n".join(snapshot.unreadable)
    assert "pod team/c: affinity.nodeAffinity.required" in text
    assert "1002 requirements and values, at most 1000 are judged" in text
    assert "pod team/d: " in text
    planned = PlannedCluster.from_snapshot(snapshot)
    assert [entry.name for entry in planned.pending()] == ["a", "b"]
    assert decode_snapshot(encode_snapshot(snapshot), "x") == snapshot


CUT = Placement(
    node=NodeName("w1"),
    interfaces=(PlacedInterface(pf=PF0, min_tx_rate_mbps=2_000, previous_min_tx_rate_mbps=6_000),),
    generation=1,
)


@pytest.mark.parametrize(
    ("state", "generation", "reported", "counted"),
    [
        ("programmed", 1, None, 2_000),
        ("admitted", 1, None, 6_000),
        ("programmed", 0, None, 6_000),
        (None, 0, None, 6_000),
        ("programmed", 1, 0, 6_000),
        (None, 0, 1, 2_000),
    ],
)
def test_cut_counts_once_a_node_has_programmed_it_also_of_a_pod_that_it_does_not_report_any_more(
    state: str | None, generation: int, reported: int | None, counted: int, tmp_path: Path
):
    """As the extender counts it. A node's own report on the pod goes before the pod's annotations."""
    annotations = {**ASKS, PLACEMENT: encode(CUT, PodUid("uid-a"), None)}
    if state is not None:
        status = {"state": state, "generation": generation, "request": "x", "message": "secret"}
        annotations["k8s-rdma.io/rates-status"] = json.dumps(status)
    told = report("w1", held={} if reported is None else {"uid-a": 2_000 if reported else 6_000})
    allocations = tuple(replace(entry, generation=reported or 0) for entry in told.allocations)
    status_of_node = json.loads(encode_status(status_of(replace(told, allocations=allocations))))
    bound_pod = pod("a", annotations, nodeName="w1")
    answers = lists(rdma_nodes=[published("w1", status_of_node)], nodes=[node("w1")], pods=[bound_pod])
    snapshot = taken(answers, tmp_path)
    assert b"secret" not in encode_snapshot(snapshot)
    planned = PlannedCluster.from_snapshot(decode_snapshot(encode_snapshot(snapshot), "x"))
    assert planned.cluster.node(NodeName("w1")).used()[PF0].mbps == counted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((b'"version":4', b'"version":5'), "version: 5 is newer than 4"),
        ((b'"version":4', b'"version":"4"'), r"line 1: .*`\$\.version`"),
        ((b'"linkMbps":10000', b'"linkMbps":-1'), r"line 3: .*nodes\[0\]\.status\.pfs\[0\]\.linkMbps"),
        ((b'"linkMbps"', b'"linkMbs"'), r"line 3: nodes\[0\]\.status\.pfs\[0\]\.linkMbs: unknown key; did"),
        ((b'"pods":[', b'"pds":[],"pods":['), "line 6: pds: unknown key; did you mean pods"),
        ((b'"name":"w2"', b'"name":"w1"'), r"line 4: nodes\[1\]\.name: 'w1' is there twice"),
        ((b'"version":4', b'"version":4,"strategy":"best"'), "line 1: .*strategy"),
        ((b'"requests":{', b'"requests":{"cpu":-1,'), r"line 7: .*pods\[0\]\.requests"),
        ((b'"requests":{', b'"preemptionPolicy":"Always","requests":{'), "line 7: .*preemptionPolicy"),
        ((b'"uid":"a"', b'"uid":"b"'), "line 3: nodes\\[0\\]\\.status: allocations.*b is there twice"),
    ],
)  # fmt: skip
def test_broken_file_is_refused_by_line_and_name_of_the_field(
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


@pytest.mark.parametrize(
    ("renewal", "why"),
    [
        ({"age_s": 30}, ""),
        ({"age_s": 200, "duration_s": 300}, ""),
        ({"age_s": 205}, "its agent has not reported for 2"),
        (None, "no Lease says yet that what its agent publishes holds"),
        ({"holder": "other.1"}, "no Lease says yet"),
        ({"holder": "epoch.2"}, "no Lease says yet"),
    ],
)
def test_node_whose_agent_is_gone_takes_no_pods(renewal: dict[str, Any] | None, why: str, tmp_path: Path):
    leases = [] if renewal is None else [lease("w1", **renewal)]
    answers = lists(rdma_nodes=[published("w1")], nodes=[node("w1")], leases=leases)
    snapshot = taken(answers | configured(), tmp_path)
    assert snapshot.nodes[0].why.startswith(why)
    assert bool(snapshot.nodes[0].why) == bool(why)
    planned = PlannedCluster.from_snapshot(snapshot)
    assert list(planned.cluster) == ([] if why else ["w1"])
    assert not why or why in "".join(planned.unreadable)


@pytest.mark.parametrize(
    ("skew_s", "dead_for_s"), [(-3600.0, 10.0), (30 * 86_400.0, 90.0), (30 * 86_400.0, 10.0), (-3600.0, 90.0)]
)
def test_node_is_judged_by_one_clock_when_its_own_differs(skew_s: float, dead_for_s: float, tmp_path: Path):
    leases = [lease("w1", age_s=dead_for_s - skew_s)]
    answers = lists(rdma_nodes=[published("w1")], nodes=[skewed_node("w1", skew_s)], leases=leases)
    snapshot = taken(answers | configured(), tmp_path)
    assert bool(snapshot.nodes[0].why) == (dead_for_s > 60)


@pytest.mark.parametrize("source", ["crd", "http"])
def test_answer_of_the_extender_on_a_node_counts_if_it_was_queried(source: str, tmp_path: Path):
    names = ["w1", "w2", "new"]
    leases = [lease("w1", age_s=3600), lease("w2"), lease("new", age_s=3600)]
    answers = lists(rdma_nodes=[*map(published, names)], nodes=[*map(node, names)], leases=leases)
    said = {"w1": "", "w2": "its agent has not reported for 60 s"}
    snapshot = taken(answers | configured(source=source), tmp_path, said)
    found = {entry.name: entry.why for entry in snapshot.nodes}
    assert {name: found[name] for name in said} == said
    assert bool(found["new"]) == (source == "crd")


def test_malformed_lease_costs_its_node_alone(tmp_path: Path):
    torn = {"metadata": {"name": "w1"}, "spec": {"renewTime": "yesterday"}}
    names = ["w1", "w2"]
    answers = lists(
        rdma_nodes=[*map(published, names)], nodes=[*map(node, names)], leases=[torn, lease("w2")]
    )
    snapshot = taken(answers | configured(), tmp_path)
    assert [bool(entry.why) for entry in snapshot.nodes] == [True, False]
    assert "Lease w1" in "".join(snapshot.unreadable)


def test_promises_on_a_silent_node_count_for_the_namespace_of_their_pods(tmp_path: Path):
    text = encode(placement(6_000), PodUid("uid-a"), None)
    promised = pod(
        "a", {**ASKS, "rdma_interfaces_required": '[{"min_tx_rate": 6000}]', PLACEMENT: text}, nodeName="w1"
    )
    answers = lists(rdma_nodes=[published("w1")], nodes=[node("w1")], pods=[promised, pod("b")], leases=[])
    limits = [{"namespace": "team", "reservedMbps": 6_500}]
    planned = PlannedCluster.from_snapshot(taken(answers | configured(limits=limits), tmp_path))
    request = workload_of(next(planned.pending())).request
    assert (
        planned.limit_refusal("team", request)
        == "namespace team holds 6000 of 6500 reserved Mb/s; needs 1000"
    )


def test_leases_that_may_not_be_read_are_a_warning(tmp_path: Path):
    answers = lists(rdma_nodes=[published("w1")], nodes=[node("w1")]) | configured()
    del answers[LEASES]
    snapshot = taken({**answers, LEASES: 403}, tmp_path)
    assert "leases" in snapshot.unreadable[0]
    assert "nodes count as if their agents were alive" in snapshot.unreadable[0]
    assert list(PlannedCluster.from_snapshot(snapshot).cluster) == ["w1"]


SECRET = PlacementKeys.shared(b"of this test 1234")


def placement(mbps: int) -> Placement:
    return Placement(
        node=NodeName("w1"),
        interfaces=(PlacedInterface(pf=pci_address("03:00.0"), min_tx_rate_mbps=mbps, max_tx_rate_mbps=0),),
    )


KEY = {"placement.key": b"of this test 1234"}


@pytest.mark.parametrize(
    ("secret", "promised_mbps", "warning"),
    [
        (KEY, 9_000, ""),
        (
            {"placement.key": b"another key, 1234"},
            None,
            "pod team/a: k8s-rdma.io/placement: hmac: not made with",
        ),
        (
            {"placement.key": b"short"},
            9_000,
            "are not checked, and forged ones count: .* has a key of 40 bits",
        ),
        (
            {},
            9_000,
            "are not checked, and forged ones count: Secret k8s-rdma/k8s-rdma-placement-key: is empty",
        ),
        (403, 9_000, "are not checked, and forged ones count: .*403"),
        (404, 9_000, "are not checked, and forged ones count: .*there is none"),
    ],
)
def test_signatures_of_placements_are_checked_if_the_keys_may_be_read(
    secret: Any, promised_mbps: int | None, warning: str, tmp_path: Path
):
    if isinstance(secret, dict):
        data = {name: b64encode(key).decode() for name, key in secret.items()}
        secret = json.dumps({"data": data}).encode()
    snapshot = bound(tmp_path, 9_000, SECRET, {KEYS: secret}, placementKeyFile="/etc/k8s-rdma/key")
    assert re.search(warning, "".join(snapshot.unreadable))
    assert bool(snapshot.unreadable) == bool(warning)
    assert promise(snapshot) == promised_mbps
    assert "hmac" not in "".join(snapshot.pods[0].annotations.values())


@pytest.mark.parametrize(("mbps", "promised_mbps"), [(1_000, 1_000), (9_000, None)])
def test_unsigned_placements_count_as_far_as_the_pod_asks_for_them(
    mbps: int, promised_mbps: int | None, tmp_path: Path
):
    snapshot = bound(tmp_path, mbps, None, {})
    assert promise(snapshot) == promised_mbps
    assert bool(snapshot.unreadable) == (promised_mbps is None)


def test_unsigned_placements_do_not_count_if_they_must_be_signed(tmp_path: Path):
    secret = json.dumps({"data": {"placement.key": b64encode(KEY["placement.key"]).decode()}}).encode()
    snapshot = bound(tmp_path, 1_000, None, {KEYS: secret}, placementKeyFile="/etc/k8s-rdma/key")
    assert promise(snapshot) is None


def bound(
    directory: Path,
    mbps: int,
    keys: PlacementKeys | None,
    answers: Mapping[str, bytes | int],
    **settings: Any,
) -> Snapshot:
    """A cluster with a pod that asks for 1,000 Mb/s, and was bound with this reservation."""
    text = encode(placement(mbps), PodUid("uid-a"), keys)
    pods = [pod("a", {**ASKS, PLACEMENT: text}, nodeName="w1")]
    objects = lists(rdma_nodes=[published("w1")], nodes=[node("w1")], pods=pods)
    return taken({**objects, **configured(**settings), **answers}, directory)


def promise(snapshot: Snapshot) -> int | None:
    found = snapshot.pods[0].promise()
    return found.placement.interfaces[0].min_tx_rate_mbps if found else None


def test_snapshot_has_the_fields_of_preemption(tmp_path: Path):
    containers = [
        {"resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"k8s-rdma.io/vf": "1"}}}
    ]
    running = pod("a", nodeName="w1", priority=7, containers=containers)
    running["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    running["status"]["startTime"] = "2026-11-20T00:00:00Z"
    waits = pod(
        "b", preemptionPolicy="Never", affinity={"podAffinity": {}}, volumes=[{"name": "v", "csi": {}}]
    )
    classes = [
        {"metadata": {"name": "high"}, "value": 9, "preemptionPolicy": "Never", "description": "text"},
        {"metadata": {"name": "torn"}, "value": "many"},
    ]
    answers = lists(rdma_nodes=[published("w1")], nodes=[node("w1")], pods=[running, waits], classes=classes)
    snapshot = taken(answers | configured(vfResource="k8s-rdma.io/vf"), tmp_path)
    first, second = snapshot.pods
    assert (first.priority, first.started, first.terminating) == (7, "2026-11-20T00:00:00Z", True)
    assert first.requests == {"cpu": 1_500, "memory": 1000 * 1024**3}
    assert (second.preemption_policy, second.depends_on_neighbours, second.requests) == ("Never", True, None)
    assert snapshot.vf_resource == "k8s-rdma.io/vf"
    assert snapshot.priority_classes is not None
    assert [(found.name, found.value, found.preemption_policy) for found in snapshot.priority_classes] == [
        ("high", 9, "Never")
    ]
    assert "PriorityClass torn" in snapshot.unreadable[0]
