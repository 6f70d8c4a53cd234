"""The pod worker: one pod from its sandbox to its end, and the status reported for it."""

from __future__ import annotations

import re

import pytest

from demo.cluster.api_paths import PODS_URL
from demo.cluster.plain_kubelet import delete, event, has_address, kubelet, on_node, running
from k8s_rdma_demo.cluster.cni_runtime import is_namespace
from k8s_rdma_demo.cluster.sandboxes import SandboxDirectory

pytestmark = pytest.mark.anyio


def gone(pod: dict) -> bool:
    return not pod


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
