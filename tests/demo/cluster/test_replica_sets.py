"""ReplicaSets: their own pods, and those that they delete first."""

from __future__ import annotations

from typing import Any

from demo.cluster.workload_objects import names, replica_set
from k8s_rdma_demo.cluster import replica_sets


def pod(
    name: str, *, owner: str = "", phase: str = "Running", node: str = "w1", **meta: Any
) -> dict[str, Any]:
    reference = {"kind": "ReplicaSet", "name": owner, "uid": f"uid-{owner}", "controller": True}
    ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"app": "web"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **({"ownerReferences": [reference]} if owner else {}),
            **meta,
        },
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "conditions": [ready]},
    }


# Decisions


def test_set_owns_adopts_and_releases_pods_by_its_selector() -> None:
    pods = [
        pod("own", owner="a"),
        pod("alien", owner="b"),
        pod("stray"),
        pod("unlike", owner="a", labels={"app": "else"}),
        pod("stray-unlike", labels={"app": "else"}),
        pod("stray-ending", deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("far") | {"metadata": pod("far")["metadata"] | {"namespace": "elsewhere"}},
    ]
    found = replica_sets.claim(replica_set("a", 3), pods)
    assert names(found.owned) == ["own"]
    assert names(found.adopted) == ["stray"]
    assert names(found.released) == ["unlike"]


def test_set_that_is_being_deleted_adopts_no_pod() -> None:
    ending = replica_set("a", 3, deletionTimestamp="2026-01-01T00:00:00Z")
    assert replica_sets.claim(ending, [pod("stray")]).adopted == ()


def test_surplus_begins_with_pods_that_run_least_and_are_newest() -> None:
    pods = [
        pod("oldest"),
        pod("newest", creationTimestamp="2026-01-03T00:00:00Z"),
        pod("newer", creationTimestamp="2026-01-02T00:00:00Z"),
        pod("pending", phase="Pending"),
        pod("unassigned", phase="Pending", node=""),
    ]
    assert names(replica_sets.surplus(pods, 4)) == ["unassigned", "pending", "newest", "newer"]
