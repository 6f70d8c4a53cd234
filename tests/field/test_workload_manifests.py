"""Manifests of several workloads: pods of other objects, annotations of tools, pods that are not placed."""

from __future__ import annotations

import copy
import json

import pytest

from field.manifests import ASKS, CONTAINERS, POD, counts, lws, thing
from k8s_rdma.errors import MalformedError
from k8s_rdma.planning.manifest_workloads import read_workloads


def test_number_of_pods_that_is_given_leaves_the_size_of_gangs():
    [found] = read_workloads(json.dumps(lws({}, leads=False, replicas=1)), 5).workloads
    assert [each.count for each in found.by_gang()] == [2, 2, 1]


def test_pods_that_name_a_group_are_of_that_group_alone():
    """LeaderWorkerSet refuses `schedulingGroup` beside `scheduling`: with Volcano it has neither."""
    pod = {**POD, "spec": {**POD["spec"], "schedulingGroup": {"podGroupName": "mine"}}}
    document = lws(None, leads=False)
    document["spec"]["leaderWorkerTemplate"]["workerTemplate"] = pod
    [found] = read_workloads(json.dumps(document)).workloads
    assert [(each.gang, each.count) for each in found.by_gang()] == [("default/mine", 8)]


def test_number_that_is_not_known_may_be_given():
    document = json.dumps(thing("apps/v1", "DaemonSet", {"template": POD}))
    [workload] = read_workloads(document, 7).workloads
    assert workload.count == 7


def test_pods_that_a_workload_of_the_same_list_has_made_count_with_it():
    deployment = thing("apps/v1", "Deployment", {"replicas": 2, "template": POD}, uid="1")
    deployment["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/last-applied-configuration": json.dumps(deployment)
    }
    owned = [{"controller": True, "kind": "Deployment", "name": "x", "uid": "1"}]
    replicas = thing(
        "apps/v1", "ReplicaSet", {"replicas": 2, "template": POD}, uid="2", ownerReferences=owned
    )
    pod = {"apiVersion": "v1", "kind": "Pod", **POD}
    pod["metadata"] = {**POD["metadata"], "name": "x-1", "ownerReferences": [{**owned[0], "uid": "2"}]}
    document = {"apiVersion": "v1", "kind": "List", "items": [pod, replicas, deployment]}
    assert counts(document) == {"default/x": 2}


def test_annotation_that_a_tool_puts_on_all_objects_is_no_fault():
    """commonAnnotations of kustomize: github.com/kubernetes-sigs/kustomize, api/konfig."""
    service = thing("v1", "Service", {}, annotations=ASKS)
    deployment = thing("apps/v1", "Deployment", {"template": POD}, annotations=ASKS)
    found = read_workloads("\n---\n".join(map(json.dumps, (service, deployment))))
    assert [each.count for each in found.workloads] == [1]
    assert found.warnings == (
        "Service x: metadata.annotations: rdma_interfaces_required has no effect; it counts on pods alone",
        "Deployment x: metadata.annotations: rdma_interfaces_required has no effect; it counts on pods alone",
    )


def test_misspelt_annotation_is_named():
    pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(POD)}
    pod["metadata"]["annotations"]["k8s-rdma.io/polcy"] = "same-pf"
    [sentence] = read_workloads(json.dumps(pod)).warnings
    assert sentence.startswith(
        "Pod: k8s-rdma.io/polcy: unknown annotation, which has no effect; did you mean"
    )
    pod["metadata"]["annotations"] = {"k8s-rdma.io/interface": "[{}]"}
    with pytest.raises(MalformedError, match=r"no interfaces: .*; Pod: k8s-rdma\.io/interface: unknown"):
        read_workloads(json.dumps(pod))


def test_pods_by_claims_are_named_as_not_placed():
    claims = {"metadata": {}, "spec": {"containers": CONTAINERS, "resourceClaims": [{"name": "rdma"}]}}
    document = thing("apps/v1", "Deployment", {"template": claims})
    pod = {"apiVersion": "v1", "kind": "Pod", **POD}
    found = read_workloads("\n---\n".join(map(json.dumps, (document, pod))))
    assert found.warnings == ("Deployment x: pods that ask by ResourceClaims are not placed",)
