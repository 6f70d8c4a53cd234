"""Workloads of manifests, their priorities and their gangs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.planning.snapshot import PriorityClass
from k8s_rdma.planning.whatif import fit
from k8s_rdma.wire.objects.pod import PreemptionPolicy
from planning.small_clusters import ZONE_B, affinity, asks, manifest, node, planned, read_workloads
from planning.test_preemption import CLASSES, GANG


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (manifest(1, kind="Deployment", replicas=3), 3),
        (manifest(1, kind="StatefulSet"), 1),
        (manifest(1, kind="Job", parallelism=7), 7),
        (json.dumps({"kind": "Pod", "metadata": {"annotations": asks(1)}, "spec": {}}), 1),
        ('[{"min_tx_rate": 1}]', 1),
    ],
)
def test_any_kind_with_a_template_is_a_workload(text: str, count: int):
    [workload] = read_workloads(text)
    assert (workload.count, len(workload.request.interfaces)) == (count, 1)


@pytest.mark.parametrize(
    "text",
    [
        "kind: Pod",
        "{",
        "kind: [Pod]",
        json.dumps({"kind": "Pod", "metadata": {"annotations": {"a": "b"}}, "spec": {}}),
        manifest(1, replicas="many"),
        manifest(1, replicas=-1),
        manifest(1, pod={"nodeSelector": 7}),
        manifest(1, pod={"affinity": {"nodeAffinity": 7}}),
        manifest(1, pod={"affinity": affinity(matchExpressions=[{**ZONE_B, "operator": "in"}])}),
        manifest(1, pod={"affinity": affinity(matchFields=[ZONE_B])}),
        manifest(1, pod={"containers": [{"resources": {"limits": {"a/b": "x"}}}]}),
        '[{"min_tx_rate": -1}]',
    ],
)
def test_malformed_manifests_are_refused(text: str):
    with pytest.raises(MalformedError):
        read_workloads(text)


@pytest.mark.parametrize(
    ("name", "classes", "why"),
    [
        ("absent", CLASSES, "manifest: Deployment: priorityClassName: absent: .* are patient, urgent"),
        ("absent", (), "are none"),
        ("urgent", None, "the PriorityClasses of the cluster are not known"),
    ],
)
def test_unknown_priority_class_is_refused(name: str, classes: Any, why: str):
    with pytest.raises(MalformedError, match=why):
        read_workloads(manifest(1, pod={"priorityClassName": name}), classes=classes)


def test_priority_is_the_classs_or_the_clusters_default():
    default = PriorityClass(
        name="default", value=7, global_default=True, preemption_policy=PreemptionPolicy.NEVER
    )
    [workload] = read_workloads(manifest(1), classes=(*CLASSES, default))
    assert (workload.priority, workload.preempts) == (7, False)
    [workload] = read_workloads(manifest(1, pod={"priorityClassName": "urgent"}), classes=(*CLASSES, default))
    assert (workload.priority, workload.preempts) == (1_000, True)
    [workload] = read_workloads(manifest(1))
    assert (workload.priority, workload.preempts) == (0, True)


def test_gang_of_several_manifests_is_placed_as_a_whole():
    pods = [
        {"kind": "Pod", "metadata": {"name": name, "labels": GANG, "annotations": asks(9_000)}, "spec": {}}
        for name in ("a", "b")
    ]
    workloads = read_workloads("\n---\n".join(map(json.dumps, pods)))
    answer = fit(planned(node("w1")), workloads)
    assert [found.placed for found in answer.workloads] == [0, 0]
    assert answer.workloads[0].obstacles == {"other pods of its gang do not fit": 1}
    assert fit(planned(node("w1"), node("w2")), workloads).fits
