"""Objects as the API server stores them, whatever form their clients chose."""

from __future__ import annotations

import pytest
import yaml

from demo.cluster.api_paths import PODS_URL
from documents import ROOT

pytestmark = pytest.mark.anyio
SLICES_URL = "/apis/resource.k8s.io/v1/resourceslices"


async def test_status_of_a_node_has_quantities_in_one_form_when_patched(cluster, make_node):
    patch = {"status": {"allocatable": {"rdma/hca": 1000, "cpu": "8000m"}, "capacity": {"cpu": 8}}}
    async with cluster() as c:
        await c.create(make_node("n1"))
        headers = {"Content-Type": "application/merge-patch+json"}
        answer = await c.http.patch("/api/v1/nodes/n1/status", json=patch, headers=headers)
    assert answer.json()["status"]["allocatable"] == {"cpu": "8", "rdma/hca": "1k"}
    assert answer.json()["status"]["capacity"] == {"cpu": "8"}


async def test_second_write_of_the_same_amount_is_no_write(cluster, make_pod):
    pod = make_pod()
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": 1}}
    headers = {"Content-Type": "application/strategic-merge-patch+json"}
    container = {"name": pod["spec"]["containers"][0]["name"], "resources": {"limits": {"cpu": "1000m"}}}
    async with cluster() as c:
        created = (await c.http.post(PODS_URL, json=pod)).json()
        url = f"{PODS_URL}/{created['metadata']['name']}"
        patched = await c.http.patch(url, json={"spec": {"containers": [container]}}, headers=headers)
    assert patched.status_code == 200, patched.text
    assert patched.json() == created


async def test_capacity_of_a_slice_may_be_a_number(cluster):
    policy = {"default": 0, "validRange": {"min": 0, "step": 1_000_000}}
    capacity = {"bandwidth": {"value": 100_000_000_000, "requestPolicy": policy}, "vfs": {"value": 8}}
    spec = {
        "driver": "rdma.k8s-rdma.io",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "f0", "allowMultipleAllocations": True, "capacity": capacity}],
    }
    async with cluster() as c:
        created = await c.http.post(SLICES_URL, json={"metadata": {"name": "s"}, "spec": spec})
    assert created.status_code == 201, created.text
    [device] = created.json()["spec"]["devices"]
    assert device["capacity"] == {
        "bandwidth": {
            "value": "100G",
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1M"}},
        },
        "vfs": {"value": "8"},
    }


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*pod.yaml")), ids=str)
async def test_examples_are_stored_with_text_as_quantities(cluster, path):
    async with cluster() as c:
        for document in yaml.safe_load_all(path.read_text()):
            if document["kind"] == "Pod":
                created = (await c.http.post(PODS_URL, json=document)).json()
                for container in created["spec"]["containers"]:
                    for amounts in container["resources"].values():
                        assert all(isinstance(amount, str) for amount in amounts.values())
