"""The demo's controllers do as those of kube-controller-manager: one scenario, on both."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from cluster.controllers import controllers
from cluster.controllers import obstacle as no_controllers
from cluster.real import real
from cluster.standin import stand_in
from k8s_rdma_demo.cluster.controller_manager import ManagerConfig, managing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

APPS, CORE = "/apis/apps/v1/namespaces/default", "/api/v1/namespaces/default"
NAMES = ("deployment-controller", "replicaset-controller", "garbage-collector-controller")
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
DEPLOYMENT = {
    "kind": "Deployment",
    "apiVersion": "apps/v1",
    "metadata": {"name": "web"},
    "spec": {
        "replicas": 3,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "a:1"}]},
        },
    },
}
SUFFIX = "[bcdfghjklmnpqrstvwxz2456789]"

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


@asynccontextmanager
async def managed(kind: str, directory: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """An API server with the controllers."""
    if kind == "real":
        if why := no_controllers():
            pytest.skip(why)
        async with (
            real(directory) as plane,
            plane.client() as http,
            controllers(plane, *NAMES),
        ):
            account = {"metadata": {"name": "default"}}
            await http.post(f"{CORE}/serviceaccounts", json=account)
            yield http
        return
    async with (
        stand_in(directory) as plane,
        managing(plane.url, ManagerConfig(), plane.admin_token),
    ):
        headers = {"Authorization": f"Bearer {plane.admin_token}"}
        async with httpx2.AsyncClient(base_url=plane.url, headers=headers, trust_env=False) as http:
            yield http


async def items(http: httpx2.AsyncClient, path: str) -> list[dict[str, Any]]:
    answer = await http.get(path)
    assert answer.status_code == 200, answer.text
    found = answer.json()["items"]
    return [item for item in found if "deletionTimestamp" not in item["metadata"]]


async def when(http: httpx2.AsyncClient, path: str, holds: Callable[[Any], bool]) -> list[dict[str, Any]]:
    """The objects at a path, once something holds of them; meanwhile all pods run, as kubelets have them."""
    while True:
        for pod in await items(http, f"{CORE}/pods"):
            if pod["status"].get("phase") == "Pending":
                url = f"{CORE}/pods/{pod['metadata']['name']}/status"
                await http.patch(url, content=json.dumps({"status": RUNNING}), headers=STRATEGIC)
        found = await items(http, path)
        if holds(found):
            return found


def is_rolled_out(generation: int) -> Callable[[Any], bool]:
    def holds(found: list[dict[str, Any]]) -> bool:
        [deployment] = found
        status = deployment["status"]
        counted = {status.get(name) for name in ("replicas", "updatedReplicas", "availableReplicas")}
        return status.get("observedGeneration", 0) >= generation and counted == {3}

    return holds


def owners(obj: dict[str, Any]) -> list[tuple[str, str, str, bool, bool]]:
    return [
        (
            reference["apiVersion"],
            reference["kind"],
            reference["uid"],
            reference["controller"],
            reference["blockOwnerDeletion"],
        )
        for reference in obj["metadata"].get("ownerReferences", ())
    ]


async def test_deployment_is_rolled_out_by_sets_that_own_their_pods(kind: str, tmp_path: Path) -> None:
    async with managed(kind, tmp_path) as http:
        made = (await http.post(f"{APPS}/deployments", json=DEPLOYMENT)).json()
        [deployment] = await when(http, f"{APPS}/deployments", is_rolled_out(1))
        [replica_set] = await items(http, f"{APPS}/replicasets")
        pods = await items(http, f"{CORE}/pods")
        assert owners(replica_set) == [("apps/v1", "Deployment", made["metadata"]["uid"], True, True)]
        letters = replica_set["metadata"]["labels"]["pod-template-hash"]
        assert re.fullmatch(f"{SUFFIX}{{8,10}}", letters)
        assert replica_set["metadata"]["name"] == f"web-{letters}"
        assert replica_set["spec"]["selector"]["matchLabels"] == {"app": "web", "pod-template-hash": letters}
        assert len(pods) == 3
        for pod in pods:
            assert owners(pod) == [("apps/v1", "ReplicaSet", replica_set["metadata"]["uid"], True, True)]
            assert re.fullmatch(f"web-{letters}-{SUFFIX}{{5}}", pod["metadata"]["name"])
            assert pod["metadata"]["labels"] == {"app": "web", "pod-template-hash": letters}
        assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
        conditions = {
            entry["type"]: (entry["status"], entry["reason"]) for entry in deployment["status"]["conditions"]
        }
        assert conditions == {
            "Available": ("True", "MinimumReplicasAvailable"),
            "Progressing": ("True", "NewReplicaSetAvailable"),
        }


async def test_new_template_replaces_all_pods_and_keeps_the_former_set(kind: str, tmp_path: Path) -> None:
    async with managed(kind, tmp_path) as http:
        await http.post(f"{APPS}/deployments", json=DEPLOYMENT)
        await when(http, f"{APPS}/deployments", is_rolled_out(1))
        patch = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "a:2"}]}}}}
        await http.patch(f"{APPS}/deployments/web", content=json.dumps(patch), headers=STRATEGIC)
        [deployment] = await when(http, f"{APPS}/deployments", is_rolled_out(2))
        sets = await items(http, f"{APPS}/replicasets")
        assert sorted(item["spec"]["replicas"] for item in sets) == [0, 3]
        assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"
        pods = await items(http, f"{CORE}/pods")
        assert [pod["spec"]["containers"][0]["image"] for pod in pods] == ["a:2"] * 3
        found = await items(http, f"{CORE}/events")
        messages = [event["message"] for event in found if event["reason"] == "ScalingReplicaSet"]
        counts = [re.sub(r"replica set \S+", "replica set", message) for message in messages]
        assert sorted(counts) == [
            "Scaled down replica set from 1 to 0",
            "Scaled down replica set from 2 to 1",
            "Scaled down replica set from 3 to 2",
            "Scaled up replica set from 0 to 1",
            "Scaled up replica set from 0 to 3",
            "Scaled up replica set from 1 to 2",
            "Scaled up replica set from 2 to 3",
        ]


async def test_set_adopts_releases_and_replaces_pods_by_their_labels(kind: str, tmp_path: Path) -> None:
    async with managed(kind, tmp_path) as http:
        containers = DEPLOYMENT["spec"]["template"]["spec"]["containers"]
        stray = {"metadata": {"name": "stray", "labels": {"app": "web"}}, "spec": {"containers": containers}}
        assert (await http.post(f"{CORE}/pods", json=stray)).status_code == 201
        document = DEPLOYMENT | {"kind": "ReplicaSet"}
        owner = (await http.post(f"{APPS}/replicasets", json=document)).json()["metadata"]["uid"]
        pods = await when(http, f"{CORE}/pods", lambda found: len(found) == 3 and all(map(owners, found)))
        assert {owners(pod)[0][2] for pod in pods} == {owner}
        assert "stray" in {pod["metadata"]["name"] for pod in pods}
        patch = json.dumps({"metadata": {"labels": {"app": "debug"}}})
        await http.patch(f"{CORE}/pods/stray", content=patch, headers=STRATEGIC)
        pods = await when(http, f"{CORE}/pods", lambda found: len(found) == 4)
        free = [pod["metadata"]["name"] for pod in pods if not owners(pod)]
        assert free in ([], ["stray"])
        await when(http, f"{CORE}/pods", lambda found: sum(not owners(pod) for pod in found) == 1)


async def test_pods_end_with_their_deployment_unless_they_are_orphaned(kind: str, tmp_path: Path) -> None:
    async with managed(kind, tmp_path) as http:
        await http.post(f"{APPS}/deployments", json=DEPLOYMENT)
        await when(http, f"{APPS}/deployments", is_rolled_out(1))
        options = {"propagationPolicy": "Orphan"}
        await http.request("DELETE", f"{APPS}/deployments/web", json=options)
        [orphan] = await when(
            http, f"{APPS}/replicasets", lambda found: [owners(item) for item in found] == [[]]
        )
        assert len(await items(http, f"{CORE}/pods")) == 3
        name = orphan["metadata"]["name"]
        await http.request("DELETE", f"{APPS}/replicasets/{name}", json={"propagationPolicy": "Background"})
        await when(http, f"{CORE}/pods", lambda found: not found)
