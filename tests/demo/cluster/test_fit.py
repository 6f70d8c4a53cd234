from __future__ import annotations

from typing import Any

import pytest

from k8s_rdma_demo.cluster.fit import Refusal, Unfit, node_refusal, requests_of, resource_refusal


def asking(cpu: str = "1", **more: str) -> list[dict[str, Any]]:
    return [{"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu, **more}}}]


@pytest.mark.parametrize(
    ("pod", "node", "why"),
    [
        ({}, {}, None),
        ({}, {"spec": {"unschedulable": True}}, "node(s) were unschedulable"),
        ({"nodeSelector": {"a": "b"}}, {}, "node(s) didn't match Pod's node affinity/selector"),
        ({"nodeSelector": {"a": "b"}}, {"metadata": {"labels": {"a": "b", "c": "d"}}}, None),
        (
            {},
            {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}},
            "node(s) had untolerated taint(s)",
        ),
        ({}, {"spec": {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}}, None),
        (
            {"tolerations": [{"key": "k", "value": "v"}]},
            {"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}},
            None,
        ),
        (
            {"tolerations": [{"key": "k", "value": "x"}]},
            {"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}},
            "node(s) had untolerated taint(s)",
        ),
        (
            {"tolerations": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]},
            {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
            "node(s) had untolerated taint(s)",
        ),
        (
            {"tolerations": [{"operator": "Exists"}]},
            {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
            None,
        ),
    ],
)
def test_pod_fits_a_node_by_selector_taints_and_readiness(pod, node, why):
    assert node_refusal({"spec": pod}, node) == why


@pytest.mark.parametrize(
    ("unfit", "message"),
    [
        (Unfit(nodes=0, refusals={}), "no nodes available to schedule pods"),
        (Unfit(nodes=3, refusals={}), "0/3 nodes are available:"),
        (Unfit(nodes=1, refusals={"a": Refusal(reasons=("x.",))}), "0/1 nodes are available: 1 x.."),
        (
            Unfit(
                nodes=12,
                refusals={f"n{i}": Refusal(reasons=("same",)) for i in range(10)}
                | {name: Refusal(reasons=("b", "same")) for name in "xy"},
                preemption="why not",
            ),
            "0/12 nodes are available: 12 same, 2 b. why not",
        ),
    ],
)
def test_refusal_counts_equal_messages_and_sorts_them_as_text(unfit, message):
    assert unfit.message == message


@pytest.mark.parametrize(
    ("allocatable", "wanted", "why"),
    [
        (None, {"cpu": "9"}, None),
        ({"k8s-rdma.io/vf": "2"}, {"cpu": "9"}, None),
        ({"cpu": "4"}, {"cpu": "3500m"}, Refusal(reasons=("Insufficient cpu",))),
        ({"cpu": "4"}, {"cpu": "5"}, Refusal(reasons=("Insufficient cpu",), unresolvable=True)),
        (
            {"cpu": "4"},
            {"k8s-rdma.io/vf": "1"},
            Refusal(reasons=("Insufficient k8s-rdma.io/vf",), unresolvable=True),
        ),
        ({"cpu": "4", "pods": "1"}, {}, Refusal(reasons=("Too many pods",))),
        (
            {"cpu": "4", "memory": "1Gi", "pods": "1"},
            {"cpu": "4", "memory": "1Gi"},
            Refusal(reasons=("Too many pods", "Insufficient cpu")),
        ),
    ],
)
def test_node_is_full_by_requests_of_its_pods(allocatable, wanted, why):
    node = {"status": {} if allocatable is None else {"allocatable": allocatable}}
    waiting = {"spec": {"containers": [{"resources": {"requests": wanted}}]}}
    running = {"spec": {"containers": asking()}}
    assert resource_refusal(waiting, node, [running]) == why


def test_pod_requests_the_sum_of_its_containers_or_the_largest_init_container():
    inits = [*asking("3"), {**asking("1")[0], "restartPolicy": "Always"}, *asking("1", vf="2")]
    spec = {"containers": asking("1"), "initContainers": inits, "overhead": {"cpu": "500m"}}
    assert requests_of({"spec": spec}) == {"cpu": 3.5, "vf": 2}
