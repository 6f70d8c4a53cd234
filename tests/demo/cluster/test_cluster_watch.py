from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import httpx2
import pytest
from lightkube import ApiError
from lightkube.resources.core_v1 import Node, Pod

from k8s_rdma_demo.cluster.api import ApiConfig, Watch, watch_events
from k8s_rdma_demo.cluster.objects import PODS
from k8s_rdma_demo.cluster.selection import Selection
from k8s_rdma_demo.cluster.store import Store

pytestmark = pytest.mark.anyio

PODS_URL = "/api/v1/namespaces/default/pods"
MERGE = {"Content-Type": "application/merge-patch+json"}
BINDING = {"metadata": {"name": "p1"}, "target": {"kind": "Node", "name": "node-1"}}


@asynccontextmanager
async def watching(http: httpx2.AsyncClient, path: str = "/api/v1/pods", **params):
    """A function that awaits the next line of a watch."""
    async with http.stream("GET", path, params={"watch": "true", **params}, timeout=None) as answer:
        assert answer.status_code == 200
        lines = answer.aiter_lines()

        async def following() -> tuple[str, dict]:
            document = json.loads(await anext(lines))
            return document["type"], document["object"]

        yield following


async def names(count: int, events) -> list[tuple[str, str]]:
    """Type and object name of that many events."""
    seen = []
    for _ in range(count):
        kind, obj = await events()
        seen.append((kind, obj["metadata"]["name"]))
    return seen


async def test_lightkube_sees_every_change_when_it_watches(cluster, make_pod):
    async with cluster() as c:
        listed = c.client.list(Pod)
        assert [pod async for pod in listed] == []
        watch = c.client.watch(Pod, resource_version=listed.resourceVersion)
        first = asyncio.ensure_future(anext(watch))
        await c.http.post(PODS_URL, json=make_pod())
        await c.http.post(f"{PODS_URL}/p1/binding", json=BINDING)
        await c.client.delete(Pod, "p1", grace_period=0)
        seen = [await first, await anext(watch), await anext(watch)]
        assert [kind for kind, _ in seen] == ["ADDED", "MODIFIED", "DELETED"]
        assert [pod.spec.nodeName for _, pod in seen] == [None, "node-1", "node-1"]
        revisions = [int(pod.metadata.resourceVersion) for _, pod in seen]
        assert revisions == sorted(set(revisions))
        await watch.aclose()


async def test_watch_replays_events_after_a_revision(cluster, make_pod):
    async with cluster() as c:
        first = (await c.http.post(PODS_URL, json=make_pod("a"))).json()
        await c.http.post(PODS_URL, json=make_pod("b"))
        await c.http.delete(f"{PODS_URL}/b")
        revision = first["metadata"]["resourceVersion"]
        async with watching(c.http, resourceVersion=revision) as events:
            assert await names(2, events) == [("ADDED", "b"), ("DELETED", "b")]


@pytest.mark.parametrize("params", [{}, {"resourceVersion": "0"}])
async def test_watch_shows_all_there_is_first_when_it_names_no_revision(cluster, make_pod, params):
    async with cluster() as c:
        await c.http.post(PODS_URL, json=make_pod("b"))
        await c.http.post(PODS_URL, json=make_pod("a"))
        async with watching(c.http, **params) as events:
            assert await names(2, events) == [("ADDED", "a"), ("ADDED", "b")]
            await c.http.delete(f"{PODS_URL}/a")
            assert await names(1, events) == [("DELETED", "a")]


async def test_watch_of_a_node_sees_pods_come_when_they_are_bound(cluster, make_pod):
    async with cluster() as c, watching(c.http, fieldSelector="spec.nodeName=node-1") as events:
        await c.http.post(PODS_URL, json=make_pod("other"))
        await c.http.post(PODS_URL, json=make_pod())
        await c.http.post(f"{PODS_URL}/p1/binding", json=BINDING)
        await c.http.delete(f"{PODS_URL}/p1", params={"gracePeriodSeconds": "0"})
        assert await names(2, events) == [("ADDED", "p1"), ("DELETED", "p1")]


async def test_watch_by_label_sees_an_object_enter_and_leave(cluster, make_pod):
    async with cluster() as c, watching(c.http, labelSelector="a=b") as events:
        await c.http.post(PODS_URL, json=make_pod())
        for labels in ({"a": "b"}, {"c": "d"}, {"a": "x"}):
            await c.http.patch(f"{PODS_URL}/p1", json={"metadata": {"labels": labels}}, headers=MERGE)
        assert await names(3, events) == [("ADDED", "p1"), ("MODIFIED", "p1"), ("DELETED", "p1")]


async def test_watch_keeps_to_its_namespace_and_kind(cluster, make_pod, make_node):
    async with cluster() as c, watching(c.http, path="/api/v1/namespaces/other/pods") as events:
        await c.http.post("/api/v1/nodes", json=make_node())
        await c.http.post(PODS_URL, json=make_pod())
        await c.http.post("/api/v1/namespaces/other/pods", json=make_pod("p2", namespace="other"))
        assert await names(1, events) == [("ADDED", "p2")]


async def test_watch_answers_410_gone_if_the_revision_is_too_old(cluster, make_pod):
    async with cluster(ApiConfig(history_limit=2)) as c:
        for name in ("a", "b", "c"):
            await c.http.post(PODS_URL, json=make_pod(name))
        async with watching(c.http, resourceVersion="1") as events:
            kind, status = await events()
            assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
        with pytest.raises(ApiError) as gone:
            await anext(c.client.watch(Pod, resource_version="1"))
        assert gone.value.status.code == 410


async def test_watch_ends_when_its_time_is_over():
    watch = Watch(resource=PODS, selection=Selection(), revision=0, timeout_s=0.01, bookmark=False)
    assert [event async for event in watch_events(Store(), watch)] == []


async def test_streamed_list_ends_with_a_bookmark(cluster, make_pod):
    async with cluster() as c:
        await c.http.post(PODS_URL, json=make_pod())
        streaming = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        async with watching(c.http, **streaming) as events:
            assert (await names(1, events)) == [("ADDED", "p1")]
            kind, bookmark = await events()
            assert (kind, bookmark["kind"]) == ("BOOKMARK", "Pod")
            assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
            assert bookmark["metadata"]["resourceVersion"] == str(c.api.store.revision)


async def test_watch_ends_properly_when_the_server_stops(cluster):
    async with httpx2.AsyncClient(trust_env=False) as outside:
        async with cluster() as c:
            stream = outside.stream("GET", f"{c.api.url}/api/v1/pods", params={"watch": "true"})
            answer = await stream.__aenter__()
        assert await answer.aread() == b""
        await stream.__aexit__(None, None, None)


async def test_watch_is_dropped_when_its_client_leaves(cluster, make_pod):
    async with cluster() as c:
        for _ in range(20):
            async with watching(c.http):
                pass
        await c.http.post(PODS_URL, json=make_pod())
        assert (await c.http.get("/healthz")).text == "ok"


async def test_client_that_talks_into_a_watch_is_cut_off(cluster):
    async with cluster() as c:
        reader, writer = await asyncio.open_connection(c.api.host, c.api.port)
        writer.write(b"GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.read() == b"0\r\n\r\n"
        writer.close()
        await writer.wait_closed()


async def test_many_watchers_all_see_a_node_change(cluster, make_node):
    async with cluster() as c:
        await c.http.post("/api/v1/nodes", json=make_node())
        watches = [c.client.watch(Node) for _ in range(10)]
        assert [(await anext(watch))[0] for watch in watches] == ["ADDED"] * 10
        patch = {"metadata": {"annotations": {"a": "b"}}}
        await c.http.patch("/api/v1/nodes/node-1", json=patch, headers=MERGE)
        for watch in watches:
            kind, node = await anext(watch)
            assert (kind, node.metadata.annotations) == ("MODIFIED", {"a": "b"})
            await watch.aclose()


async def test_watch_with_a_revision_that_is_no_number_is_refused(cluster):
    async with cluster() as c:
        answer = await c.http.get("/api/v1/pods", params={"watch": "1", "resourceVersion": "x"})
        assert answer.status_code == 400
