from __future__ import annotations

from pathlib import Path

import pytest

from demo.cluster.plain_kubelet import delete, event, has_address, kubelet, on_node, running
from k8s_rdma_demo.cluster.cni_runtime import is_namespace, remove_namespace_at

pytestmark = pytest.mark.anyio


async def test_pods_of_other_nodes_are_left_alone(cluster, config, make_pod, plugins):
    async with cluster() as c, kubelet(c, config):
        await c.create(make_pod("other", nodeName="node-2"), make_pod("unbound"), on_node(make_pod))
        await c.pod_when("p1", running)
        assert plugins.short() == ["ADD first", "ADD second"]


async def test_restarted_kubelet_finds_its_pods_and_ends_those_that_went(cluster, config, make_pod, plugins):
    async with cluster() as c:
        async with kubelet(c, config) as node:
            went = await c.create(on_node(make_pod))
            await c.create(on_node(make_pod, "p2"))
            await c.pod_when("p1", running)
            await c.pod_when("p2", running)
            kept = node.sandbox_of("default", "p2")
        assert is_namespace(Path(kept.netns))
        await delete(c, 0)
        before = len(plugins.calls())
        async with kubelet(c, config) as node:
            await node.ended(went["metadata"]["uid"])
            assert node.sandbox_of("default", "p2") == kept
            assert node.netns_of("default", "p1") is None
        assert plugins.short()[before:] == ["DEL second", "DEL first"]
        assert [str(path) for path in config.netns_dir.iterdir()] == [kept.netns]


async def test_sandbox_is_made_anew_when_its_namespace_went_while_kubelet_was_away(
    cluster, config, make_pod, plugins
):
    async with cluster() as c:
        async with kubelet(c, config) as node:
            await c.create(on_node(make_pod))
            await c.pod_when("p1", running)
            remove_namespace_at(node.netns_of("default", "p1"))
        plugins.give("second", "10.0.0.9")
        async with kubelet(c, config):
            await c.pod_when("p1", has_address("10.0.0.9"))
        calls = plugins.calls()[2:]
        assert [call.short for call in calls] == ["DEL second", "DEL first", "ADD first", "ADD second"]
        assert [call.env["CNI_NETNS"] for call in calls[:2]] == ["", ""]


async def test_node_is_registered_if_it_is_missing(cluster, config):
    async with cluster() as c, kubelet(c, config, node_ip="10.10.0.7"):
        node = (await c.http.get("/api/v1/nodes/node-1")).json()
        assert node["status"]["addresses"][0] == {"type": "InternalIP", "address": "10.10.0.7"}
        assert [(x["type"], x["status"]) for x in node["status"]["conditions"]] == [("Ready", "True")]
        assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "node-1"


async def test_node_that_is_there_gives_its_address(cluster, config, make_node, make_pod):
    async with cluster() as c:
        await c.create(make_node("node-1", labels={"kept": "1"}))
        async with kubelet(c, config):
            await c.create(on_node(make_pod))
            pod = await c.pod_when("p1", running)
            assert pod["status"]["hostIP"] == "10.10.0.1"
            node = (await c.http.get("/api/v1/nodes/node-1")).json()
            assert node["metadata"]["labels"] == {"kept": "1"}


async def test_node_is_not_ready_and_starts_no_pod_while_status_fails(cluster, config, make_pod, plugins):
    plugins.conflist("first", "second", version="1.1.0")
    plugins.fail("STATUS", "first", "no agent")
    async with cluster() as c, kubelet(c, config):
        await c.create(on_node(make_pod))
        message = await event(c, "NetworkNotReady")
        assert message.endswith(
            "NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: no agent"
        )
        node = (await c.http.get("/api/v1/nodes/node-1")).json()
        assert node["status"]["conditions"][0]["status"] == "False"
        assert "NetworkPluginNotReady" in node["status"]["conditions"][0]["message"]
        assert "ADD first" not in plugins.short()
        plugins.on("STATUS", "first", "")
        await c.pod_when("p1", running)
        await c.when("/api/v1/nodes", "node-1", lambda n: n["status"]["conditions"][0]["status"] == "True")


async def test_capacity_added_by_a_client_becomes_allocatable_until_it_is_removed(cluster, config):
    merge = {"Content-Type": "application/merge-patch+json"}

    async def patch(c, value):
        body = {"status": {"capacity": {"k8s-rdma.io/vf": value}}}
        answer = await c.http.patch("/api/v1/nodes/node-1/status", json=body, headers=merge)
        assert answer.status_code == 200

    async with cluster() as c, kubelet(c, config):
        await patch(c, "240")
        given = await c.when(
            "/api/v1/nodes", "node-1", lambda n: "k8s-rdma.io/vf" in n["status"]["allocatable"]
        )
        assert given["status"]["allocatable"]["k8s-rdma.io/vf"] == "240"
        assert given["status"]["allocatable"]["pods"] == "110"
        await patch(c, None)
        await c.when("/api/v1/nodes", "node-1", lambda n: "k8s-rdma.io/vf" not in n["status"]["allocatable"])
