from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from k8s_rdma_demo.cluster.cni_runtime import is_namespace, remove_namespace_at
from k8s_rdma_demo.cluster.kubelet import running_kubelet
from k8s_rdma_demo.cluster.node_devices import KubeletConfig
from k8s_rdma_demo.cluster.sandboxes import SandboxDirectory

pytestmark = pytest.mark.anyio

PODS_URL = "/api/v1/namespaces/default/pods"


@pytest.fixture
def config(plugins, netns_dir):
    plugins.install("first", "second")
    return KubeletConfig(
        node="node-1",
        conflist=plugins.conflist("first", "second"),
        cni_path=[plugins.path],
        netns_dir=netns_dir,
        start_retry_s=0.01,
        stop_retry_s=0.01,
        late_delete_s=None,
        status_interval_s=0.01,
    )


def with_changes(config: KubeletConfig, **changes) -> KubeletConfig:
    fields = {name: getattr(config, name) for name in config.__dataclass_fields__}
    return KubeletConfig(**(fields | changes))


@asynccontextmanager
async def kubelet(c, config, **changes):
    async with running_kubelet(c.api.url, with_changes(config, **changes)) as running:
        yield running


def running(pod: dict) -> bool:
    return pod.get("status", {}).get("phase") == "Running"


def gone(pod: dict) -> bool:
    return not pod


async def event(c, reason: str) -> str:
    """The message of the first event for that reason, once there is one."""
    params = {"watch": "1", "fieldSelector": f"reason={reason}"}
    async with c.http.stream("GET", "/api/v1/events", params=params, timeout=None) as answer:
        return json.loads(await anext(answer.aiter_lines()))["object"]["message"]


async def delete(c, grace_s: int | None = None) -> None:
    options = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
    answer = await c.http.request("DELETE", f"{PODS_URL}/p1", json=options)
    assert answer.is_success


def on_node(make_pod, name: str = "p1", **spec) -> dict:
    return make_pod(name, nodeName="node-1", **spec)


async def test_pod_runs_with_the_addresses_of_its_result(cluster, config, make_pod, plugins):
    async with cluster() as c, kubelet(c, config, node_ip="10.10.0.7") as node:
        await c.create(on_node(make_pod, annotations={"a": "b"}))
        pod = await c.pod_when("p1", running)
        status = pod["status"]
        assert (status["podIP"], status["hostIP"]) == ("10.0.0.1", "10.10.0.7")
        assert status["podIPs"] == [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]
        assert {x["type"]: x["status"] for x in status["conditions"]}["Ready"] == "True"
        assert status["containerStatuses"][0]["ready"] is True
        assert is_namespace(node.netns_of("default", "p1"))
        sandbox = node.sandbox_of("default", "p1")
        assert [ip["address"] for ip in sandbox.result["ips"]] == ["10.0.0.1/24", "10.0.0.2/24"]
        given = plugins.calls()[0].stdin["runtimeConfig"]["io.kubernetes.cri.pod-annotations"]
        assert (given["a"], given["kubernetes.io/config.source"]) == ("b", "api")
        assert re.fullmatch(
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z", given["kubernetes.io/config.seen"]
        )
        assert (
            dict(part.split("=") for part in plugins.calls()[0].env["CNI_ARGS"].split(";"))["K8S_POD_UID"]
            == (pod["metadata"]["uid"])
        )


async def test_pods_of_other_nodes_are_left_alone(cluster, config, make_pod, plugins):
    async with cluster() as c, kubelet(c, config):
        await c.create(make_pod("other", nodeName="node-2"), make_pod("unbound"), on_node(make_pod))
        await c.pod_when("p1", running)
        assert plugins.short() == ["ADD first", "ADD second"]


async def test_deleted_pod_is_gone_once_del_has_succeeded(cluster, config, make_pod, plugins):
    async with cluster() as c, kubelet(c, config):
        await c.create(on_node(make_pod))
        await c.pod_when("p1", running)
        await delete(c)
        await c.pod_when("p1", gone)
        assert plugins.short()[2:] == ["DEL second", "DEL first"]
        assert "prevResult" in plugins.calls()[2].stdin
        assert list(config.netns_dir.iterdir()) == []
        assert list(config.sandboxes.iterdir()) == []


async def test_failing_del_keeps_the_pod_terminating_and_is_retried(cluster, config, make_pod, plugins):
    plugins.fail("DEL", "second", "busy", details="VF 3")
    async with cluster() as c, kubelet(c, config):
        await c.create(on_node(make_pod))
        await c.pod_when("p1", running)
        await delete(c)
        message = await event(c, "FailedKillPod")
        assert 'plugin type="second" failed (delete): busy; VF 3' in message
        pod = (await c.http.get(f"{PODS_URL}/p1")).json()
        assert pod["metadata"]["deletionTimestamp"]
        plugins.on("DEL", "second", "")
        await c.pod_when("p1", gone)
        assert set(plugins.short()[2:-2]) == {"DEL second"}
        assert plugins.short()[-2:] == ["DEL second", "DEL first"]


async def test_late_dels_come_twice_without_namespace_and_result(cluster, config, make_pod, plugins):
    async with cluster() as c, kubelet(c, config, late_delete_s=0.01) as node:
        created = await c.create(on_node(make_pod))
        await c.pod_when("p1", running)
        await delete(c)
        await c.pod_when("p1", gone)
        await node.ended(created["metadata"]["uid"])
    late = plugins.calls()[4:]
    assert [call.short for call in late] == ["DEL second", "DEL first"] * 2
    assert {call.env["CNI_NETNS"] for call in late} == {""}
    assert all("prevResult" not in call.stdin for call in late)
    assert all("runtimeConfig" in call.stdin for call in late)
    assert {call.env["CNI_CONTAINERID"] for call in late} == {plugins.calls()[0].env["CNI_CONTAINERID"]}


async def test_object_is_gone_before_del_runs_when_the_grace_period_is_0(cluster, config, make_pod, plugins):
    plugins.fail("DEL", "second", "busy")
    async with cluster() as c, kubelet(c, config) as node:
        created = await c.create(on_node(make_pod))
        await c.pod_when("p1", running)
        await delete(c, 0)
        assert (await c.http.get(f"{PODS_URL}/p1")).status_code == 404
        await event(c, "FailedKillPod")
        plugins.on("DEL", "second", "")
        await node.ended(created["metadata"]["uid"])
    assert plugins.short()[-2:] == ["DEL second", "DEL first"]
    assert list(config.netns_dir.iterdir()) == []


async def test_new_pod_of_the_same_name_runs_while_the_old_one_is_taken_down(
    cluster, config, make_pod, plugins
):
    plugins.fail("DEL", "second", "busy")
    async with cluster() as c, kubelet(c, config) as node:
        first = (await c.create(on_node(make_pod)))["metadata"]["uid"]
        await c.pod_when("p1", running)
        await delete(c, 0)
        second = (await c.create(on_node(make_pod)))["metadata"]["uid"]
        await c.pod_when("p1", running)
        plugins.on("DEL", "second", "")
        await node.ended(first)
        assert [s.pod.uid for s in SandboxDirectory(config.sandboxes).load()] == [second]
        assert len(list(config.netns_dir.iterdir())) == 1


async def test_failed_add_is_reported_and_tried_again_with_a_new_sandbox(cluster, config, make_pod, plugins):
    plugins.fail("ADD", "second", "no free VF", details="3 of 8")
    async with cluster() as c, kubelet(c, config):
        await c.create(on_node(make_pod))
        message = await event(c, "FailedCreatePodSandBox")
        plugins.on("ADD", "second", "")
        await c.pod_when("p1", running)
        calls = plugins.calls()
        assert [call.short for call in calls[:5]] == [
            *("ADD first", "ADD second", "DEL second", "DEL first"),
            "ADD first",
        ]
        container_id = calls[0].env["CNI_CONTAINERID"]
        assert message == (
            "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for "
            f'sandbox "{container_id}": plugin type="second" failed (add): no free VF; 3 of 8'
        )
        adds = [call.env for call in calls if call.short == "ADD first"]
        assert len({env["CNI_CONTAINERID"] for env in adds}) == len(adds) > 1
        assert len({env["CNI_NETNS"] for env in adds}) == len(adds)


async def test_sandbox_that_could_not_be_taken_back_is_deleted_before_the_next_try(
    cluster, config, make_pod, plugins
):
    plugins.fail("ADD", "second", "no")
    plugins.fail("DEL", "first", "not yet")
    async with cluster() as c, kubelet(c, config):
        await c.create(on_node(make_pod))
        await event(c, "FailedKillPod")
        plugins.on("ADD", "second", "")
        assert plugins.short().count("ADD first") == 1
        plugins.on("DEL", "first", "")
        await c.pod_when("p1", running)
        assert len(list(config.netns_dir.iterdir())) == 1


async def test_pod_that_never_started_is_deleted_without_another_try(cluster, config, make_pod, plugins):
    plugins.fail("ADD", "first", "no")
    async with cluster() as c, kubelet(c, config, start_retry_s=1000, max_start_retry_s=1000):
        await c.create(on_node(make_pod))
        await event(c, "FailedCreatePodSandBox")
        await delete(c)
        await c.pod_when("p1", gone)
        assert plugins.short() == ["ADD first", "DEL second", "DEL first"]


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


def has_address(address: str):
    return lambda pod: pod["status"].get("podIP") == address


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


async def test_lost_sandbox_is_taken_down_and_replaced(cluster, config, make_pod, plugins):
    async with cluster() as c, kubelet(c, config) as node:
        created = await c.create(on_node(make_pod))
        await c.pod_when("p1", running)
        first = node.sandbox_of("default", "p1")
        plugins.give("second", "10.0.0.9")
        node.lose_sandbox(created["metadata"]["uid"])
        pod = await c.pod_when("p1", has_address("10.0.0.9"))
        assert pod["status"]["podIPs"] == [{"ip": "10.0.0.9"}]
        assert "sandbox changed" in await event(c, "SandboxChanged")
        assert plugins.short()[2:] == ["DEL second", "DEL first", "ADD first", "ADD second"]
        assert node.sandbox_of("default", "p1").container_id != first.container_id
        assert {call.env["CNI_ARGS"].count(created["metadata"]["uid"]) for call in plugins.calls()} == {1}


async def test_pod_in_the_hosts_network_needs_no_plugin(cluster, config, make_pod, plugins):
    async with cluster() as c, kubelet(c, config, node_ip="10.10.0.7"):
        await c.create(on_node(make_pod, hostNetwork=True))
        pod = await c.pod_when("p1", running)
        assert pod["status"]["podIP"] == "10.10.0.7"
        await delete(c)
        await c.pod_when("p1", gone)
        assert plugins.calls() == []


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
