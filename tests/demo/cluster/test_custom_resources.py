"""Custom resources, with writes treated as apiextensions-apiserver does."""

from __future__ import annotations

import pytest

from k8s_rdma_demo.cluster.api import ApiConfig
from k8s_rdma_demo.cluster.objects import parse_resource_type

pytestmark = pytest.mark.anyio

CONFIG = ApiConfig(custom_resources=(parse_resource_type("k8s-rdma.io/v1alpha1/rdmanodes/RdmaNode"),))
URL = "/apis/k8s-rdma.io/v1alpha1/rdmanodes"
MERGE = {"Content-Type": "application/merge-patch+json"}
OBJECT = {"metadata": {"name": "w1", "labels": {"a": "1"}}, "spec": {"x": 1}, "status": {"y": 1}}


async def made(c):
    answer = await c.http.post(URL, json=OBJECT)
    assert answer.status_code == 201
    return answer.json()


async def test_status_is_dropped_when_an_object_is_created(cluster):
    async with cluster(CONFIG) as c:
        obj = await made(c)
        assert "status" not in obj
        assert (obj["spec"], obj["metadata"]["generation"]) == ({"x": 1}, 1)


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_status_subresource_writes_only_the_status(cluster, method):
    async with cluster(CONFIG) as c:
        obj = await made(c)
        meta = {**obj["metadata"], "labels": {"b": "2"}}
        body = {**obj, "metadata": meta, "spec": {"x": 2}, "status": {"y": 2}}
        headers = MERGE if method == "PATCH" else {}
        answer = await c.http.request(method, f"{URL}/w1/status", json=body, headers=headers)
        now = answer.json()
        assert (answer.status_code, now["spec"], now["status"]) == (200, {"x": 1}, {"y": 2})
        assert (now["metadata"]["labels"], now["metadata"]["generation"]) == ({"a": "1"}, 1)
        assert now["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_object_is_written_without_its_status(cluster, method):
    async with cluster(CONFIG) as c:
        obj = await made(c)
        await c.http.patch(f"{URL}/w1/status", json={"status": {"y": 1}}, headers=MERGE)
        version = {"resourceVersion": (await c.http.get(f"{URL}/w1")).json()["metadata"]["resourceVersion"]}
        body = {"metadata": {**obj["metadata"], **version}, "spec": {"x": 2}, "status": {"y": 9}}
        headers = MERGE if method == "PATCH" else {}
        answer = await c.http.request(method, f"{URL}/w1", json=body, headers=headers)
        now = answer.json()
        assert (answer.status_code, now["spec"], now["status"]) == (200, {"x": 2}, {"y": 1})
        assert now["metadata"]["generation"] == 2


async def test_generation_stays_when_only_metadata_changes_and_grows_with_any_other_field(cluster):
    async with cluster(CONFIG) as c:
        await made(c)

        async def generation(patch):
            return (await c.http.patch(f"{URL}/w1", json=patch, headers=MERGE)).json()["metadata"][
                "generation"
            ]

        assert await generation({"metadata": {"annotations": {"k": "v"}}}) == 1
        assert await generation({"spec": {"x": 1}}) == 1
        assert await generation({"extra": True}) == 2


async def test_replacing_needs_the_version_that_is_replaced(cluster):
    async with cluster(CONFIG) as c:
        obj = await made(c)
        without = {"metadata": {"name": "w1"}, "status": {}}
        assert (await c.http.put(f"{URL}/w1/status", json=without)).status_code == 422
        await c.http.patch(f"{URL}/w1/status", json={"status": {"y": 1}}, headers=MERGE)
        late = await c.http.put(f"{URL}/w1/status", json={**obj, "status": {"y": 2}})
        assert (late.status_code, late.json()["reason"]) == (409, "Conflict")


async def test_strategic_merge_patch_is_refused(cluster):
    async with cluster(CONFIG) as c:
        await made(c)
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        answer = await c.http.patch(f"{URL}/w1", json={"spec": {}}, headers=headers)
        assert answer.status_code == 415
