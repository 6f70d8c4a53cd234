"""Pods by node as the scheduler counts them: bound, assumed and nominated."""

from __future__ import annotations

from typing import Any

from k8s_rdma_demo.cluster.assignments import Assignments


def pod(
    name: str, node: str = "", *, nominated: str = "", phase: str = "Pending", priority: int = 0
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"priority": priority, **({"nodeName": node} if node else {})},
        "status": {"phase": phase, **({"nominatedNodeName": nominated} if nominated else {})},
    }


def names(pods: Any) -> list[str]:
    return [found["metadata"]["name"] for found in pods]


def test_pod_counts_on_its_node_until_it_is_finished_or_deleted():
    found = Assignments()
    for end in (pod("p", "w1", phase="Succeeded"), None):
        found.update(None, pod("p", "w1"))
        assert names(found.on("w1")) == ["p"]
        found.update(pod("p", "w1"), end)
        assert names(found.on("w1")) == []


def test_assumed_pod_counts_until_its_bind_is_shown_or_fails():
    found = Assignments()
    found.assume(pod("p"), "w1")
    found.assume(pod("q"), "w1")
    found.update(pod("p"), pod("p", "w2"))
    assert (names(found.on("w1")), names(found.on("w2"))) == (["q"], ["p"])
    found.fail(pod("q", nominated="w3"))
    assert (names(found.on("w1")), found.nominated("uid-q")) == ([], "w3")


def test_room_is_kept_for_a_nominated_pod_until_it_is_assumed():
    found = Assignments()
    found.update(None, pod("p", nominated="w1"))
    assert names(found.nominated_on("w1")) == ["p"]
    found.assume(pod("p", nominated="w1"), "w1")
    assert names(found.nominated_on("w1")) == []
    found.forget("uid-p")
    assert names(found.on("w1")) == []


def test_nomination_that_the_scheduler_made_stands_while_the_status_does_not_change():
    found = Assignments()
    found.update(None, pod("p"))
    found.nominate(pod("p"), "w1")
    found.update(pod("p"), pod("p", priority=5))
    assert found.nominated("uid-p") == "w1"
    assert names(found.nominated_rivals(pod("q", priority=5), "w1")) == ["p"]
    found.update(pod("p"), pod("p", nominated="w2"))
    assert found.nominated("uid-p") == "w2"
    found.update(pod("p", nominated="w2"), pod("p"))
    assert found.nominated("uid-p") == ""


def test_rivals_are_nominated_pods_of_at_least_the_priority():
    found = Assignments()
    for name, priority in (("low", 1), ("same", 5), ("high", 9)):
        found.update(None, pod(name, nominated="w1", priority=priority))
    assert names(found.nominated_rivals(pod("same", priority=5), "w1")) == ["high"]
    assert names(found.nominated_rivals(pod("new", priority=5), "w1")) == ["same", "high"]
