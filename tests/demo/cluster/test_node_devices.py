"""A kubelet that knows device plugins: admission, capacity, containers with devices of plugins and CDI."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from demo.cluster.cdi_specification import specification
from k8s_rdma.core.devices.pod_devices import AllocateResponse, DeviceSpec, OfferedDevice, PluginOptions
from k8s_rdma_demo.cluster.containers import DeviceNode
from k8s_rdma_demo.cluster.kubelet import running_kubelet
from k8s_rdma_demo.cluster.node_devices import DevicesConfig, KubeletConfig
from k8s_rdma_demo.cluster.scheduler import SchedulerConfig, scheduling
from k8s_rdma_demo.kubelet.device_manager import DeviceManagerConfig
from plain_plugin import PlainPlugin

pytestmark = pytest.mark.anyio

RESOURCE = "lab.local/vf"
PODS_URL = "/api/v1/namespaces/default/pods"


def slots(ids) -> AllocateResponse:
    return AllocateResponse(cdi_devices=tuple(f"lab.local/slot={each}" for each in ids))


@pytest.fixture
def config(plugins, netns_dir, directory):
    plugins.install("first")
    devices = DevicesConfig(
        manager=DeviceManagerConfig(
            plugin_dir=directory / "device-plugins", pod_resources=directory / "pod-resources/kubelet.sock"
        ),
        cdi_dirs=(directory / "cdi",),
    )
    return KubeletConfig(
        node="node-1",
        conflist=plugins.conflist("first"),
        cni_path=[plugins.path],
        netns_dir=netns_dir,
        start_retry_s=0.01,
        stop_retry_s=0.01,
        late_delete_s=None,
        devices=devices,
    )


@pytest.fixture
def plugin(config):
    return PlainPlugin(
        plugin_dir=config.devices.manager.plugin_dir,
        resource=RESOURCE,
        devices=tuple(OfferedDevice(id=f"slot-{number}") for number in range(2)),
        options=PluginOptions(pre_start_required=True),
        response=slots,
    )


@asynccontextmanager
async def kubelet(c, config):
    async with running_kubelet(c.api.url, config) as running:
        yield running


@asynccontextmanager
async def node_with(c, config, plugin):
    async with kubelet(c, config) as node, plugin.registered():
        await node.device_manager.wait_for(lambda: node.device_manager.devices(RESOURCE))
        yield node


def asking(make_pod, name: str = "p1", size: int = 1, **spec) -> dict:
    pod = make_pod(name, nodeName="node-1", **spec)
    pod["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: str(size)}}
    return pod


def in_phase(phase: str):
    return lambda pod: pod.get("status", {}).get("phase") == phase


async def event(c, reason: str) -> str:
    params = {"watch": "1", "fieldSelector": f"reason={reason}"}
    async with c.http.stream("GET", "/api/v1/events", params=params, timeout=None) as answer:
        return json.loads(await anext(answer.aiter_lines()))["object"]["message"]


def resources(healthy: str, every: str):
    def told(node: dict) -> bool:
        status = node["status"]
        return (status["allocatable"].get(RESOURCE), status["capacity"].get(RESOURCE)) == (healthy, every)

    return told


async def node_when(c, holds):
    return await c.when("/api/v1/nodes", "node-1", holds)


def writes_cdi(plugins, config, content: str) -> None:
    """Have ADD write a specification, as an agent does."""
    (cdi,) = config.devices.cdi_dirs
    cdi.mkdir(exist_ok=True)
    plugins.on("ADD", "first", f"printf %s '{content}' > {cdi}/.new; mv {cdi}/.new {cdi}/slots.json")


async def test_node_reports_all_devices_and_healthy_ones(cluster, config, plugin):
    async with cluster() as c, node_with(c, config, plugin):
        await node_when(c, resources("2", "2"))
        await plugin.change(replace(plugin.devices[0], unhealthy="down"), plugin.devices[1])
        await node_when(c, resources("1", "2"))
        await plugin.end_lists()
        await node_when(c, resources("0", "2"))


async def test_devices_are_given_before_add_and_resolved_after_it(cluster, config, plugin, plugins, make_pod):
    called_before = []
    plugin.response = lambda ids: called_before.append(plugins.short()) or slots(ids)
    writes_cdi(plugins, config, specification("slot-0", "slot-1"))
    async with cluster() as c, node_with(c, config, plugin) as node:
        await c.create(asking(make_pod))
        await c.pod_when("p1", in_phase("Running"))
        made = node.containers_of("default", "p1")["c"]
    assert called_before == [[]]
    assert plugins.short() == ["ADD first"]
    assert [name for name, _ in plugin.calls] == ["GetDevicePluginOptions", "Allocate", "PreStartContainer"]
    assert made.devices == (
        DeviceNode(path="/dev/infiniband/uverbs7", kind="c", major=231, minor=199, permissions="rwm"),
    )
    assert made.cdi_devices[0].startswith("lab.local/slot=slot-")


async def test_pod_whose_cdi_device_is_unknown_waits_in_its_sandbox_until_it_is_there(
    cluster, config, plugin, plugins, make_pod
):
    async with cluster() as c, node_with(c, config, plugin) as node:
        await c.create(asking(make_pod))
        message = await event(c, "Failed")
        assert message.startswith(
            "Error: failed to create containerd container: CDI device injection failed: unresolvable CDI "
            "devices lab.local/slot=slot-"
        )
        assert node.containers_of("default", "p1") == {}
        (cdi,) = config.devices.cdi_dirs
        cdi.mkdir()
        (cdi / "slots.json").write_text(specification("slot-0", "slot-1"))
        await c.pod_when("p1", in_phase("Running"))
        assert plugins.short() == ["ADD first"]


async def test_pod_that_cannot_have_its_devices_fails_for_good(cluster, config, plugin, plugins, make_pod):
    async with cluster() as c, node_with(c, config, plugin):
        await c.create(asking(make_pod, size=3))
        pod = await c.pod_when("p1", in_phase("Failed"))
        why = (
            f"Allocate failed due to requested number of devices unavailable for {RESOURCE}. Requested: 3, "
            "Available: 2, which is unexpected"
        )
        assert (pod["status"]["reason"], pod["status"]["message"]) == (
            "UnexpectedAdmissionError",
            f"Pod was rejected: {why}",
        )
        assert await event(c, "UnexpectedAdmissionError") == why
        assert plugins.short() == []
        assert (await c.http.delete(f"{PODS_URL}/p1")).is_success
        assert (await c.http.get(f"{PODS_URL}/p1")).status_code == 404


async def test_devices_are_free_again_once_the_pod_is_taken_down(cluster, config, plugin, plugins, make_pod):
    plugin.response = lambda ids: AllocateResponse(envs={"IDS": ",".join(ids)})
    async with cluster() as c, node_with(c, config, plugin) as node:
        await c.create(asking(make_pod, size=2))
        await c.pod_when("p1", in_phase("Running"))
        assert set(node.containers_of("default", "p1")["c"].envs["IDS"].split(",")) == {"slot-0", "slot-1"}
        await c.http.delete(f"{PODS_URL}/p1")
        await c.pod_when("p1", lambda pod: not pod)
        assert node.containers_of("default", "p1") == {}
        await c.create(asking(make_pod, "p2", size=2))
        await c.pod_when("p2", in_phase("Running"))


async def test_scheduler_sends_pods_to_nodes_with_devices(cluster, config, plugin, make_pod):
    plugin.response = lambda _: AllocateResponse()
    async with cluster() as c, scheduling(c.api.url, SchedulerConfig()), node_with(c, config, plugin):
        pod = asking(make_pod)
        del pod["spec"]["nodeName"]
        await c.create(pod)
        running = await c.pod_when("p1", in_phase("Running"))
    assert running["spec"]["nodeName"] == "node-1"


async def test_pod_outlives_a_kubelet_that_comes_back_before_the_plugin(cluster, config, plugin, make_pod):
    plugin.response = lambda ids: AllocateResponse(envs={"IDS": ",".join(ids)})
    async with cluster() as c:
        async with node_with(c, config, plugin) as node:
            await c.create(asking(make_pod))
            await c.pod_when("p1", in_phase("Running"))
            before = node.containers_of("default", "p1")
        async with kubelet(c, config) as node:
            await node_when(c, resources("0", "0"))
            assert node.containers_of("default", "p1") == before
            pod = await c.pod_when("p1", lambda pod: True)
            assert pod["status"]["phase"] == "Running"
            async with plugin.registered():
                await node_when(c, resources("2", "2"))


async def test_new_pod_in_that_window_is_rejected(cluster, config, plugin, make_pod):
    async with cluster() as c:
        async with node_with(c, config, plugin):
            pass
        async with kubelet(c, config):
            await c.create(asking(make_pod))
            pod = await c.pod_when("p1", in_phase("Failed"))
    assert "no healthy devices present" in pod["status"]["message"]


async def test_pod_in_the_hosts_network_gets_its_devices_too(cluster, config, plugin, make_pod, directory):
    plugin.response = lambda _: AllocateResponse(
        devices=(DeviceSpec(path="/dev/infiniband/uverbs0", host_path="/dev/null"),)
    )
    async with cluster() as c, node_with(c, config, plugin) as node:
        await c.create(asking(make_pod, hostNetwork=True))
        await c.pod_when("p1", in_phase("Running"))
        made = node.containers_of("default", "p1")["c"]
    assert made.devices == (
        DeviceNode(path="/dev/infiniband/uverbs0", kind="c", major=1, minor=3, permissions="rw"),
    )


async def test_sandbox_that_died_gets_its_containers_anew(cluster, config, plugin, plugins, make_pod):
    writes_cdi(plugins, config, specification("slot-0", "slot-1"))
    async with cluster() as c, node_with(c, config, plugin) as node:
        await c.create(asking(make_pod))
        pod = await c.pod_when("p1", in_phase("Running"))
        writes_cdi(plugins, config, specification("slot-0", "slot-1", env=["AGAIN=yes"]))
        plugins.give("first", "10.0.0.9")
        node.lose_sandbox(pod["metadata"]["uid"])
        await c.pod_when("p1", lambda pod: pod["status"]["podIP"] == "10.0.0.9")
        made = node.containers_of("default", "p1")["c"]
    assert made.envs == {"AGAIN": "yes"}
    assert [name for name, _ in plugin.calls].count("Allocate") == 1
