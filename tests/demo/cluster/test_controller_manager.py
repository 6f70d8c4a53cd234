"""Deployments and ReplicaSets: the decisions of their controllers, and the controllers at an API server."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from k8s_rdma_demo.cluster import deployments, replica_sets
from k8s_rdma_demo.cluster.controller_manager import ManagerConfig, managing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from demo.cluster.conftest import Cluster

STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
APPS = "/apis/apps/v1/namespaces/default"


def template(image: str = "a:1", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"labels": labels or {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": image}]},
    }


def deployment(replicas: int = 3, *, image: str = "a:1", **spec: Any) -> dict[str, Any]:
    return {
        "kind": "Deployment",
        "apiVersion": "apps/v1",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(image),
            **spec,
        },
    }


def replica_set(name: str, replicas: int, available: int | None = None, **meta: Any) -> dict[str, Any]:
    counted = replicas if available is None else available
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", **meta},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(),
        },
        "status": {"replicas": replicas, "readyReplicas": counted, "availableReplicas": counted},
    }


def pod(
    name: str, *, owner: str = "", phase: str = "Running", node: str = "w1", **meta: Any
) -> dict[str, Any]:
    reference = {"kind": "ReplicaSet", "name": owner, "uid": f"uid-{owner}", "controller": True}
    ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"app": "web"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **({"ownerReferences": [reference]} if owner else {}),
            **meta,
        },
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "conditions": [ready]},
    }


def names(objects: Any) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects]


# Decisions


def test_set_owns_adopts_and_releases_pods_by_its_selector() -> None:
    pods = [
        pod("own", owner="a"),
        pod("alien", owner="b"),
        pod("stray"),
        pod("unlike", owner="a", labels={"app": "else"}),
        pod("stray-unlike", labels={"app": "else"}),
        pod("stray-ending", deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("far") | {"metadata": pod("far")["metadata"] | {"namespace": "elsewhere"}},
    ]
    found = replica_sets.claim(replica_set("a", 3), pods)
    assert names(found.owned) == ["own"]
    assert names(found.adopted) == ["stray"]
    assert names(found.released) == ["unlike"]


def test_set_that_is_being_deleted_adopts_no_pod() -> None:
    ending = replica_set("a", 3, deletionTimestamp="2026-01-01T00:00:00Z")
    assert replica_sets.claim(ending, [pod("stray")]).adopted == ()


def test_surplus_begins_with_pods_that_run_least_and_are_newest() -> None:
    pods = [
        pod("oldest"),
        pod("newest", creationTimestamp="2026-01-03T00:00:00Z"),
        pod("newer", creationTimestamp="2026-01-02T00:00:00Z"),
        pod("pending", phase="Pending"),
        pod("unassigned", phase="Pending", node=""),
    ]
    assert names(replica_sets.surplus(pods, 4)) == ["unassigned", "pending", "newest", "newer"]


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "expected"),
    [
        (3, "25%", "25%", (1, 0)),
        (4, "25%", "25%", (1, 1)),
        (10, "30%", "30%", (3, 3)),
        (3, 0, "25%", (0, 1)),
        (3, 2, 0, (2, 0)),
        (0, "25%", "25%", (0, 0)),
        (1, 0, 5, (0, 1)),
    ],
)
def test_bounds_are_rounded_as_kubernetes_does(
    replicas: int, surge: int | str, unavailable: int | str, expected: tuple[int, int]
) -> None:
    rolling = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    bounds = deployments.Bounds.parse(deployment(replicas, strategy=rolling))
    assert (bounds.surge, bounds.unavailable) == expected


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        ((0, 0), (3, 3), {"new": 1}),
        ((1, 0), (3, 3), {}),
        ((1, 1), (3, 3), {"old": 2}),
        ((1, 1), (2, 3), {"new": 2}),
        ((2, 2), (2, 2), {"old": 1}),
        ((3, 3), (1, 1), {"old": 0}),
        ((3, 3), (0, 0), {}),
        ((1, 0), (3, 1), {}),
        ((5, 5), (0, 0), {"new": 3}),
    ],
)
def test_rollout_keeps_all_replicas_available(
    new: tuple[int, int], old: tuple[int, int], expected: dict[str, int]
) -> None:
    planned = deployments.scales(deployment(3), replica_set("new", *new), [replica_set("old", *old)])
    assert planned == expected


def test_recreation_waits_for_the_end_of_former_pods() -> None:
    recreating = deployment(3, strategy={"type": "Recreate"})
    new, old = replica_set("new", 0), replica_set("old", 3)
    assert deployments.scales(recreating, new, [old]) == {"old": 0}
    ending = old | {"spec": old["spec"] | {"replicas": 0}}
    assert deployments.scales(recreating, new, [ending]) == {}
    assert deployments.scales(recreating, new, [replica_set("old", 0)]) == {"new": 3}


def test_history_keeps_the_newest_empty_sets() -> None:
    sets = [
        replica_set(f"r{number}", 0, annotations={deployments.REVISION: str(number)}) for number in (3, 1, 2)
    ]
    found = deployments.outdated(deployment(revisionHistoryLimit=2), [*sets, replica_set("used", 1)])
    assert names(found) == ["r1"]


# At an API server


@asynccontextmanager
async def managed(cluster: Any) -> AsyncIterator[Cluster]:
    async with cluster() as c, managing(c.api.url, ManagerConfig()):
        yield c


async def made(c: Cluster, document: dict[str, Any]) -> dict[str, Any]:
    plural = f"{document['kind'].lower()}s"
    answer = await c.http.post(f"{APPS}/{plural}", json=document)
    assert answer.status_code == 201, answer.text
    return answer.json()


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


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"selector": None}, "spec.selector: Required value"),
        ({"selector": {"matchLabels": {"app": "no"}}}, "`selector` does not match template `labels`"),
        ({"replicas": -1}, "spec.replicas: Invalid value: -1"),
        (
            {"template": {"metadata": {"labels": {"app": "web"}}, "spec": {}}},
            "spec.template.spec.containers: Required value",
        ),
        (
            {"template": template() | {"spec": template()["spec"] | {"restartPolicy": "Never"}}},
            "spec.template.spec.restartPolicy",
        ),
    ],
    ids=["no-selector", "another-selector", "negative", "no-containers", "never-restarted"],
)
async def test_wrong_deployment_is_refused_by_its_field(cluster: Any, changed: Any, field: str) -> None:
    async with cluster() as c:
        answer = await c.http.post(f"{APPS}/deployments", json=deployment(**{"replicas": 2} | changed))
        assert answer.status_code == 422
        assert field in answer.json()["message"]


@pytest.mark.anyio
async def test_selector_of_a_deployment_cannot_change(cluster: Any) -> None:
    async with cluster() as c:
        created = await made(c, deployment(2))
        created["spec"]["selector"] = {"matchLabels": {"app": "web", "more": "x"}}
        created["spec"]["template"]["metadata"]["labels"]["more"] = "x"
        answer = await c.http.put(f"{APPS}/deployments/web", json=created)
        assert answer.status_code == 422
        assert "field is immutable" in answer.json()["message"]
