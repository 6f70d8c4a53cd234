"""Pods that may have interfaces, by the workload that their own metadata names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from k8s_rdma.core.recommendation import WorkloadName
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.pod_owners import owned_pod, owned_pods
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from pathlib import Path

INTERFACES = {"k8s-rdma.io/interfaces": '[{"min_tx_rate": 300}]'}


@pytest.mark.parametrize(
    ("owner", "labels", "workload"),
    [
        (None, {}, ("Pod", "p")),
        (("ReplicaSet", "web-5d4f"), {"pod-template-hash": "5d4f"}, ("Deployment", "web")),
        (("ReplicaSet", "bare"), {}, ("ReplicaSet", "bare")),
        (("Job", "train-workers-0"), {"jobset.sigs.k8s.io/jobset-name": "train"}, ("JobSet", "train")),
        (("PyTorchJob", "llama"), {}, ("PyTorchJob", "llama")),
    ],
)
def test_pods_belong_to_the_workload_that_their_metadata_names(
    owner: tuple[str, str] | None, labels: dict[str, str], workload: tuple[str, str]
):
    owners = [{"kind": owner[0], "name": owner[1], "controller": True}] if owner else []
    meta = {"name": "p", "namespace": "default", "labels": labels, "ownerReferences": owners}
    assert owned_pod({"metadata": meta}).workload == WorkloadName("default", *workload)


@pytest.mark.parametrize(
    "owners",
    [
        None,
        {},
        ["text"],
        [{"kind": "Node", "name": "w1"}],
        [{"kind": "Node", "name": "w1", "controller": "true"}],
    ],
)
def test_pod_without_a_controller_is_its_own_workload(owners: object):
    meta = {"name": "p", "namespace": "n", "ownerReferences": owners, "labels": "text"}
    assert owned_pod({"metadata": meta}).workload == WorkloadName("n", "Pod", "p")


@pytest.mark.parametrize(
    "document", [{}, {"metadata": [], "spec": "", "status": None}, {"metadata": {"annotations": {"a": 1}}}]
)
def test_fields_of_another_form_count_as_absent(document: dict[str, Any]):
    found = owned_pod(document)
    assert (found.namespace, found.name, found.node, found.annotations) == ("", "", "", {})
    assert (found.claims, found.claim_statuses, found.asks_by_annotation) == ((), (), False)


@pytest.mark.parametrize(("namespace", "path"), [(None, "/api/v1/pods"), ("n", "/api/v1/namespaces/n/pods")])
def test_pods_that_may_have_interfaces_are_listed(tmp_path: Path, namespace: str | None, path: str):
    pods = [
        {"metadata": {"name": "plain", "annotations": {"other": "1"}}},
        {"metadata": {"name": "asks", "annotations": INTERFACES}, "spec": {"nodeName": "w1"}},
        {"metadata": {"name": "claims"}, "spec": {"resourceClaims": [{"name": "c"}, "text"]}},
        {"metadata": {"name": "placed", "annotations": {"k8s-rdma.io/placement": "{}"}}},
    ]
    body = json.dumps({"items": pods}).encode()
    with serving_objects({path: body}, tmp_path) as kubeconfig, Documents(kubeconfig) as api:
        asks, claims, placed = owned_pods(api, namespace)
    assert (asks.name, asks.node, asks.annotations, asks.asks_by_annotation) == (
        "asks",
        "w1",
        INTERFACES,
        True,
    )
    assert (claims.name, claims.claims, claims.asks_by_annotation) == ("claims", ({"name": "c"},), False)
    assert placed.name == "placed"
