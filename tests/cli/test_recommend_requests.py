"""Annotations and claim templates with the suggested rates."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cli.asking import Ran, k8s_rdma
from cli.played_usage import PlayedPrometheus, answering, pod, stored
from k8s_rdma.wire.claims import DRIVER
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from pathlib import Path


def claimed_pod() -> dict[str, Any]:
    document = pod("p", ("StatefulSet", "train"))
    document["metadata"]["annotations"] = {}
    document["spec"]["resourceClaims"] = [
        {"name": "gpu", "resourceClaimTemplateName": "gpus"},
        {"name": "rdma", "resourceClaimTemplateName": "rails"},
    ]
    document["status"] = {
        "resourceClaimStatuses": [
            {"name": "gpu", "resourceClaimName": "p-gpu"},
            {"name": "rdma", "resourceClaimName": "p-rdma"},
        ]
    }
    return document


def claim_objects() -> dict[str, bytes | int]:
    base = "/apis/resource.k8s.io/v1/namespaces/default"
    device = {"driver": DRIVER, "pool": "w1", "device": "vf-0"}
    exact = {"deviceClassName": "rdma", "capacity": {"requests": {"bandwidth": "300M", "vfs": "1"}}}
    parameters = {"apiVersion": "k8s-rdma.io/v1alpha1", "kind": "InterfaceConfig", "maxTxRate": "400M"}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "rails", "namespace": "default", "uid": "x", "managedFields": []},
        "spec": {
            "spec": {
                "devices": {
                    "requests": [{"name": "data", "exactly": exact}, {"name": "other", "exactly": exact}],
                    "config": [{"opaque": {"driver": DRIVER, "parameters": parameters}}],
                }
            }
        },
    }
    claim = {
        "metadata": {"name": "p-rdma", "namespace": "default"},
        "status": {
            "allocation": {"devices": {"results": [{**device, "request": "data"}]}},
            "devices": [{**device, "networkData": {"interfaceName": "rdma0"}}],
        },
    }
    return {
        f"{base}/resourceclaims/p-rdma": json.dumps(claim).encode(),
        f"{base}/resourceclaims/p-gpu": json.dumps({"metadata": {"name": "p-gpu"}}).encode(),
        f"{base}/resourceclaimtemplates/rails": json.dumps(template).encode(),
    }


async def requested(directory: Path, document: dict[str, Any], *words: str) -> Ran:
    answers = {**stored(document), **claim_objects()}
    with answering(PlayedPrometheus().answer) as url, serving_objects(answers, directory) as kubeconfig:
        options = ("--kubeconfig", kubeconfig, "--prometheus", url, "--window", "1h", "--apply-dry-run")
        return await k8s_rdma("recommend", *options, *words)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("annotations", "asked"),
    [
        (
            {"k8s-rdma.io/interfaces": '[{"min_tx_rate": 300}]'},
            {"k8s-rdma.io/interfaces": '[{"min_tx_rate":130}]'},
        ),
        (
            {"rdma_interfaces_required": '[{"min_tx_rate": 9}, {"min_tx_rate": 300, "name": "rdma0"}]'},
            {"rdma_interfaces_required": '[{"min_tx_rate":9},{"min_tx_rate":130,"name":"rdma0"}]'},
        ),
    ],
)
async def test_annotation_is_printed_with_the_suggested_rates_and_the_rest_as_it_was(
    annotations: dict[str, str], asked: dict[str, str], tmp_path: Path
):
    document = pod("p", ("StatefulSet", "train"))
    document["metadata"]["annotations"] = annotations
    ran = await requested(tmp_path, document)
    assert ran.status == 0, ran.err
    found = yaml.safe_load(ran.out)
    assert found["workload"] == "default/statefulset/train"
    assert {key: json.loads(text) for key, text in found["annotations"].items()} == {
        key: json.loads(text) for key, text in asked.items()
    }


@pytest.mark.anyio
async def test_claim_template_is_printed_with_the_suggested_bandwidth_of_its_request(tmp_path: Path):
    ran = await requested(tmp_path, claimed_pod(), "-o", "json")
    assert ran.status == 0, ran.err
    [template] = json.loads(ran.out)
    assert template["metadata"] == {"name": "rails", "namespace": "default"}
    devices = template["spec"]["spec"]["devices"]
    first, second = (each["exactly"]["capacity"]["requests"] for each in devices["requests"])
    assert first == {"bandwidth": "130M", "vfs": "1"}
    assert second == {"bandwidth": "300M", "vfs": "1"}
    assert "maxTxRate" not in devices["config"][0]["opaque"]["parameters"]


@pytest.mark.anyio
async def test_interface_whose_request_is_not_found_is_a_warning(tmp_path: Path):
    document = claimed_pod()
    del document["status"]
    ran = await requested(tmp_path, document)
    assert ran.status == 0
    assert "rdma0: what it was asked for by is not known" in ran.err
