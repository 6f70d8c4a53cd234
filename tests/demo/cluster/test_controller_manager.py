"""Deployments and ReplicaSets: the decisions of their controllers, and the controllers at an API server."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from demo.cluster.workload_objects import APPS, deployment, made, names
from k8s_rdma_demo.cluster.controller_manager import ManagerConfig, managing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from demo.cluster.conftest import Cluster

STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}


# At an API server


@asynccontextmanager
async def managed(cluster: Any) -> AsyncIterator[Cluster]:
    async with cluster() as c, managing(c.api.url, ManagerConfig()):
        yield c


async def pods_when(c: Cluster, count: int) -> list[dict[str, Any]]:
    """The active pods, once there are as many."""
    while True:
        revision = c.api.store.revision
        items = (await c.http.get("/api/v1/namespaces/default/pods")).json()["items"]
        active = [item for item in items if "deletionTimestamp" not in item["metadata"]]
        if len(active) == count:
            return active
        await c.api.store.wait_after(revision)


async def run_pods(c: Cluster) -> None:
    """Play kubelet: every pod runs and is ready."""
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for item in (await c.http.get("/api/v1/namespaces/default/pods")).json()["items"]:
        path = f"/api/v1/namespaces/default/pods/{item['metadata']['name']}/status"
        if item["status"].get("phase") == "Pending":
            await c.http.patch(path, content=json.dumps({"status": running}), headers=STRATEGIC)


@asynccontextmanager
async def kubelets(c: Cluster) -> AsyncIterator[None]:
    async def play() -> None:
        while True:
            revision = c.api.store.revision
            await run_pods(c)
            await c.api.store.wait_after(revision)

    task = asyncio.create_task(play())
    yield
    task.cancel()


@pytest.mark.anyio
async def test_deployment_makes_a_set_that_makes_pods_which_both_own(cluster: Any) -> None:
    async with managed(cluster) as c:
        created = await made(c, deployment(3))
        pods = await pods_when(c, 3)
        [owned] = (await c.http.get(f"{APPS}/replicasets")).json()["items"]
        [owner] = owned["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == (
            "Deployment",
            created["metadata"]["uid"],
            True,
        )
        letters = owned["metadata"]["labels"]["pod-template-hash"]
        assert owned["metadata"]["name"] == f"web-{letters}"
        for item in pods:
            [reference] = item["metadata"]["ownerReferences"]
            assert (reference["kind"], reference["uid"]) == ("ReplicaSet", owned["metadata"]["uid"])
            assert item["metadata"]["labels"] == {"app": "web", "pod-template-hash": letters}
            assert item["metadata"]["name"].startswith(f"web-{letters}-")


@pytest.mark.anyio
async def test_deployment_becomes_available_when_its_pods_are_ready(cluster: Any) -> None:
    async with managed(cluster) as c, kubelets(c):
        await made(c, deployment(2))
        path = "/apis/apps/v1/deployments"
        shown = await c.when(path, "web", lambda obj: obj["status"].get("availableReplicas") == 2)
        conditions = {condition["type"]: condition["status"] for condition in shown["status"]["conditions"]}
        assert conditions == {"Available": "True", "Progressing": "True"}
        assert shown["status"]["updatedReplicas"] == 2
        assert "unavailableReplicas" not in shown["status"]


@pytest.mark.anyio
async def test_deleted_pod_is_replaced_by_one_alone(cluster: Any) -> None:
    async with managed(cluster) as c:
        await made(c, deployment(3))
        gone, *stay = names(await pods_when(c, 3))
        assert (await c.http.delete(f"/api/v1/namespaces/default/pods/{gone}")).status_code == 200
        while gone in (now := names(await pods_when(c, 3))):
            await c.api.store.wait_after(c.api.store.revision)
        assert set(stay) < set(now)


@pytest.mark.anyio
async def test_scale_is_read_and_changed_by_its_subresource(cluster: Any) -> None:
    async with managed(cluster) as c:
        await made(c, deployment(3))
        await pods_when(c, 3)
        scale = (await c.http.get(f"{APPS}/deployments/web/scale")).json()
        assert (scale["kind"], scale["spec"], scale["status"]["selector"]) == (
            "Scale",
            {"replicas": 3},
            "app=web",
        )
        patch = {"spec": {"replicas": 1}}
        headers = {"Content-Type": "application/merge-patch+json"}
        path = f"{APPS}/deployments/web/scale"
        assert (await c.http.patch(path, json=patch, headers=headers)).status_code == 200
        await pods_when(c, 1)
        assert (await c.http.put(path, json=scale)).status_code == 200
        await pods_when(c, 3)


@pytest.mark.anyio
async def test_new_image_is_rolled_out_to_all_pods(cluster: Any) -> None:
    async with managed(cluster) as c, kubelets(c):
        await made(c, deployment(3))
        path = "/apis/apps/v1/deployments"
        await c.when(path, "web", lambda obj: obj["status"].get("availableReplicas") == 3)
        patch = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "a:2"}]}}}}
        answer = await c.http.patch(f"{APPS}/deployments/web", content=json.dumps(patch), headers=STRATEGIC)
        assert answer.status_code == 200
        await c.when(
            path,
            "web",
            lambda obj: (
                obj["status"].get("observedGeneration") == obj["metadata"]["generation"] == 2
                and obj["status"].get("updatedReplicas") == obj["status"].get("replicas") == 3
                and obj["status"].get("availableReplicas") == 3
            ),
        )
        pods = await pods_when(c, 3)
        assert {item["spec"]["containers"][0]["image"] for item in pods} == {"a:2"}
        sets = (await c.http.get(f"{APPS}/replicasets")).json()["items"]
        assert sorted(item["spec"]["replicas"] for item in sets) == [0, 3]


@pytest.mark.anyio
async def test_stray_pod_is_adopted_instead_of_a_new_one(cluster: Any, make_pod: Any) -> None:
    async with managed(cluster) as c:
        await c.create(make_pod("stray", labels={"app": "web"}))
        owned = await made(
            c, {**deployment(2), "kind": "ReplicaSet", "metadata": {"name": "web", "namespace": "default"}}
        )
        pods = await pods_when(c, 2)
        assert "stray" in names(pods)
        stray = await c.pod_when("stray", lambda obj: bool(obj["metadata"].get("ownerReferences")))
        assert stray["metadata"]["ownerReferences"][0]["uid"] == owned["metadata"]["uid"]


@pytest.mark.anyio
async def test_pod_whose_label_changes_is_released_and_replaced(cluster: Any) -> None:
    async with managed(cluster) as c:
        await made(c, deployment(2))
        first, _ = names(await pods_when(c, 2))
        patch = {"metadata": {"labels": {"app": "debug"}}}
        path = f"/api/v1/namespaces/default/pods/{first}"
        await c.http.patch(path, content=json.dumps(patch), headers=STRATEGIC)
        await c.pod_when(first, lambda obj: not obj["metadata"].get("ownerReferences"))
        assert first in names(await pods_when(c, 3))


@pytest.mark.anyio
async def test_pods_end_with_their_deployment(cluster: Any) -> None:
    async with managed(cluster) as c:
        await made(c, deployment(3))
        await pods_when(c, 3)
        assert (await c.http.delete(f"{APPS}/deployments/web")).status_code == 200
        await pods_when(c, 0)
        assert (await c.http.get(f"{APPS}/replicasets")).json()["items"] == []


@pytest.mark.anyio
async def test_pods_stay_without_their_deployment_when_orphaned(cluster: Any) -> None:
    async with managed(cluster) as c:
        await made(c, deployment(3))
        before = names(await pods_when(c, 3))
        options = {"propagationPolicy": "Orphan"}
        answer = await c.http.request("DELETE", f"{APPS}/deployments/web", json=options)
        assert answer.status_code == 200
        [owned] = (await c.http.get(f"{APPS}/replicasets")).json()["items"]
        assert not owned["metadata"].get("ownerReferences")
        assert names(await pods_when(c, 3)) == before
