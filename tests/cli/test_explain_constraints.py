"""`k8s-rdma explain pod` names a pod's obstacles on nodes besides RDMA: gates, selectors and taints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cli.asking import Ran, k8s_rdma
from extender.serving import served
from extender.world import cluster
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
GATE = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
"""Of pods in a queue: github.com/kubernetes-sigs/kueue, keps/976-plain-pods."""
GATED = (
    "schedulingGates kueue.x-k8s.io/admission: kube-scheduler does not try it before they are removed; "
    "Kueue removes its own when it admits the pod's Workload"
)
CORDONED = "is cordoned, or has a taint that it does not tolerate"
FAST = {"nodeSelector": {"net": "fast"}}
ON_W3 = {
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["w3"]}]}
                ]
            }
        }
    }
}
TAINT = {"taints": [{"key": "gpu", "value": "", "effect": "NoSchedule"}]}


def node(name: str, labels: Json | None = None, **spec: Any) -> Json:
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}


async def explained(
    tmp_path: Path, spec: Json, nodes: list[Json] | int, more: Mapping[str, Json] | None = None
) -> tuple[Ran, Json]:
    """The answer as text and as JSON, of a cluster whose nodes have room. more: documents by path."""
    async with cluster("w1", "w2") as c, served(c) as s:
        await s.ready()
        made = await c.create_pod("p", 1000)
        answers: dict[str, bytes | int] = {
            "/api/v1/namespaces/default/pods/p": json.dumps(
                {**made, "spec": {**made["spec"], **spec}}
            ).encode(),
            "/api/v1/nodes": nodes if isinstance(nodes, int) else json.dumps({"items": nodes}).encode(),
        }
        answers |= {path: json.dumps(document).encode() for path, document in (more or {}).items()}
        with serving_objects(answers, tmp_path) as kubeconfig:
            arguments = ("explain", "pod", "default/p", "--kubeconfig", kubeconfig, "--extender", s.url)
            return await k8s_rdma(*arguments, COLUMNS="200"), json.loads(
                (await k8s_rdma(*arguments, "--json")).out
            )


@pytest.mark.parametrize(
    ("spec", "nodes", "obstacle"),
    [
        (
            GATE,
            [node("w1"), node("w2")],
            GATED,
        ),
        (FAST, [node("w1"), node("w2")], "nodeSelector net=fast: selects no node of 2"),
        (
            FAST,
            [node("w1", FAST["nodeSelector"], unschedulable=True), node("w2")],
            f"each of 1 node that nodeSelector net=fast selects {CORDONED}",
        ),
        (
            ON_W3,
            [node("w1"), node("w2")],
            "required node affinity metadata.name In w3: selects no node of 2",
        ),
        (
            {},
            [node("w1", **TAINT), node("w2", **TAINT)],
            f"each of 2 nodes {CORDONED}",
        ),
    ],
)
async def test_obstacle_on_every_node_is_named_before_nodes_with_room(
    tmp_path: Path, spec: Json, nodes: list[Json], obstacle: str
):
    ran, document = await explained(tmp_path, spec, nodes)
    assert f"cannot be scheduled: {obstacle}\n" in ran.out
    assert "\nbut for that:\n2 nodes: fits" in ran.out
    assert document["obstacles"] == [obstacle]


@pytest.mark.parametrize(
    ("spec", "nodes", "note"),
    [
        (
            FAST,
            [node("w1"), node("w2", FAST["nodeSelector"])],
            "by nodeSelector, affinity, taints and cordons it may be on 1 of 2 nodes: w2",
        ),
        (
            FAST,
            403,
            "whether nodes are what nodeSelector net=fast selects is not known: get /api/v1/nodes",
        ),
    ],
)
async def test_nodes_that_are_left_out_are_a_note(
    tmp_path: Path, spec: Json, nodes: list[Json] | int, note: str
):
    ran, document = await explained(tmp_path, spec, nodes)
    assert f"note: {note}" in ran.out
    assert "cannot be scheduled" not in ran.out
    assert document["notes"][-1].startswith(note)
    assert "obstacles" not in document


@pytest.mark.parametrize("nodes", [[node("w1"), node("w2")], 403])
async def test_pod_that_may_be_on_every_node_is_explained_as_before(tmp_path: Path, nodes: list[Json] | int):
    ran, document = await explained(tmp_path, {"tolerations": [{"operator": "Exists"}]}, nodes)
    assert "cannot be scheduled" not in ran.out
    assert "note: " not in ran.out
    assert "obstacles" not in document


IN_GROUP = {"schedulingGroup": {"podGroupName": "a"}}
GANG = {"schedulingPolicy": {"gang": {"minCount": 4}}}


def groups(version: str, *conditions: Json, **spec: Any) -> dict[str, Json]:
    """An API server with PodGroups in a version, and one with that specification and condition."""
    base = "/apis/scheduling.k8s.io"
    return {
        base: {"versions": [{"version": "v1"}, {"version": version}]},
        f"{base}/v1": {"resources": [{"name": "priorityclasses"}]},
        f"{base}/{version}": {"resources": [{"name": "podgroups"}, {"name": "podgroups/status"}]},
        f"{base}/{version}/namespaces/default/podgroups/a": {
            "metadata": {"name": "a"},
            "spec": {**GANG, **spec},
            "status": {"conditions": list(conditions)},
        },
    }


def condition(kind: str, status: str, reason: str = "Unschedulable", message: str = "") -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(
            groups("v1beta1", condition("PodGroupInitiallyScheduled", "False", message="3 of 4 pods fit")),
            "its PodGroup a, which binds 4 pods together, is not scheduled: Unschedulable: 3 of 4 pods fit",
            id="1.37-not-scheduled",
        ),
        pytest.param(
            groups("v1alpha2", condition("PodGroupScheduled", "False")),
            "its PodGroup a, which binds 4 pods together, is not scheduled: Unschedulable",
            id="1.36-not-scheduled",
        ),
        pytest.param(
            groups("v1beta1", condition("PodGroupInitiallyScheduled", "True", "Scheduled")),
            "its PodGroup a, which binds 4 pods together, was scheduled; this pod came later",
            id="1.37-scheduled",
        ),
        pytest.param(
            groups("v1beta1"),
            "its PodGroup a, which binds 4 pods together, was not tried by kube-scheduler yet",
            id="not-tried",
        ),
        pytest.param({}, "has no PodGroups of scheduling.k8s.io; turn its feature gate", id="no-version"),
        pytest.param(
            {
                "/apis/scheduling.k8s.io": {"versions": [{"version": "v9"}]},
                "/apis/scheduling.k8s.io/v9": {"resources": [{"name": "podgroups"}]},
            },
            "has PodGroups as scheduling.k8s.io/v9 only; this k8s-rdma knows v1beta1",
            id="unknown-version",
        ),
        pytest.param(
            groups("v1beta1", parentCompositePodGroupName="tree"),
            "its PodGroup a is part of the composite pod group tree: not supported",
            id="of-a-tree",
        ),
        pytest.param(
            {path: each for path, each in groups("v1beta1").items() if not path.endswith("/a")},
            "its PodGroup a does not exist: kube-scheduler waits for it",
            id="missing",
        ),
    ],
)
async def test_pod_group_that_keeps_a_pod_waiting_is_said(tmp_path: Path, found: Json, said: str):
    ran, document = await explained(tmp_path, IN_GROUP, [node("w1"), node("w2")], found)
    assert said in ran.out
    assert said in " ".join((*document.get("obstacles", ()), *document.get("notes", ())))
