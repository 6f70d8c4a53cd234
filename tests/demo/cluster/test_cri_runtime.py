from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from demo.cluster.fake_cri import FakeCri
from k8s_rdma.core.devices.pod_devices import AllocateResponse, DeviceSpec, Mount
from k8s_rdma_demo import cri
from k8s_rdma_demo.cluster.cni_plugin import CniError
from k8s_rdma_demo.cluster.cri_runtime import CriRuntime, container_config
from k8s_rdma_demo.cluster.kubelet import running_kubelet
from k8s_rdma_demo.cluster.node_devices import DevicesConfig, KubeletConfig
from k8s_rdma_demo.cluster.sandboxes import AttachError, PodRef
from k8s_rdma_demo.kubelet.device_manager import DeviceManagerConfig

pytestmark = pytest.mark.anyio

POD = PodRef(namespace="default", name="p1", uid="1-2-3", annotations={"a": "b"})


@pytest.fixture
def fake(directory):
    return FakeCri(directory / "runtime.sock")


@asynccontextmanager
async def connected(fake):
    async with asyncio.timeout(120), fake.serving(), CriRuntime.connecting(fake.socket) as runtime:
        yield runtime


async def added(runtime, pod: PodRef = POD):
    return await runtime.attach(await runtime.create(pod))


# The runtime


async def test_sandbox_has_the_runtimes_id_namespace_and_addresses(fake):
    async with connected(fake) as runtime:
        sandbox = await added(runtime)
        assert (sandbox.container_id, sandbox.netns, sandbox.ips) == ("p1-0", "/run/netns/n", ["10.0.0.1"])
        assert [each["name"] for each in sandbox.result["interfaces"]] == ["eth0", "lo", "rdma0"]
        assert [each["address"] for each in sandbox.result["ips"]] == ["10.0.0.1", "10.56.0.1"]


async def test_second_sandbox_of_a_pod_has_a_number_of_its_own(fake):
    async with connected(fake) as runtime:
        await runtime.delete(await added(runtime))
        assert (await added(runtime)).container_id == "p1-1"


async def test_failed_sandbox_is_reported_in_the_words_of_the_runtime_and_removed_by_its_rest(fake):
    fake.refusals["RunPodSandbox"] = "failed to setup network for sandbox: no free VF"
    fake.leaves = True
    async with connected(fake) as runtime:
        with pytest.raises(AttachError) as failed:
            await added(runtime)
        assert failed.value.kubelet_message == "failed to setup network for sandbox: no free VF"
        await runtime.delete(failed.value.leftover)
        assert fake.sandboxes == {}


async def test_delete_fails_while_the_runtime_cannot_stop_it_and_then_succeeds(fake):
    async with connected(fake) as runtime:
        sandbox = await added(runtime)
        fake.refusals["StopPodSandbox"] = "failed to destroy network"
        with pytest.raises(CniError, match="failed to destroy network"):
            await runtime.delete(sandbox)
        fake.refusals.clear()
        await runtime.delete(sandbox)
        await runtime.detach(sandbox)
        assert fake.sandboxes == {}


async def test_sandboxes_that_do_not_run_or_are_gone_are_lost(fake):
    async with connected(fake) as runtime:
        every = [await added(runtime, PodRef(namespace="default", name=n, uid=n)) for n in ("a", "b", "c")]
        fake.kill("a-0")
        del fake.sandboxes["b-0"]
        assert [each.container_id for each in await runtime.list_dead(every)] == ["a-0", "b-0"]


async def test_no_pod_is_lost_while_the_runtime_is_away(fake):
    async with connected(fake) as runtime:
        sandbox = await added(runtime)
        fake.refusals["ListPodSandbox"] = "starting"
        assert list(await runtime.list_dead([sandbox])) == []


async def test_runtime_that_is_not_there_is_named_as_that(directory):
    async with asyncio.timeout(120), CriRuntime.connecting(directory / "none.sock") as runtime:
        with pytest.raises(CniError, match="the container runtime does not answer"):
            await runtime.status()


async def test_status_reports_the_condition_that_does_not_hold(fake):
    fake.conditions = (
        cri.RuntimeCondition("RuntimeReady", True, "", ""),
        cri.RuntimeCondition("NetworkReady", False, "NetworkPluginNotReady", "cni plugin not initialized"),
    )
    async with connected(fake) as runtime:
        with pytest.raises(CniError, match="NetworkPluginNotReady: cni plugin not initialized"):
            await runtime.status()


# Containers


def test_container_has_the_fields_of_the_pod_and_devices_of_plugins():
    container = {
        "name": "main",
        "image": "i",
        "command": ["/a"],
        "args": ["b"],
        "env": [{"name": "FROM", "value": "pod"}],
        "volumeMounts": [{"name": "bin", "mountPath": "/bin", "readOnly": True}, {"name": "secret"}],
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}, "runAsUser": 1000},
    }
    volumes = [{"name": "bin", "hostPath": {"path": "/usr/bin"}}, {"name": "secret", "secret": {}}]
    pod = {"spec": {"containers": [{"name": "other"}, container], "volumes": volumes}}
    given = AllocateResponse(
        envs={"FROM": "plugin", "MORE": "1"},
        devices=(DeviceSpec(path="/dev/infiniband"),),
        mounts=(Mount(path="/m", host_path="/h"),),
        cdi_devices=("v/c=d",),
    )
    assert container_config(pod, "main", given) == cri.ContainerConfig(
        name="main",
        image="i",
        command=("/a",),
        args=("b",),
        envs={"FROM": "pod", "MORE": "1"},
        mounts=(Mount(path="/bin", host_path="/usr/bin", read_only=True), Mount(path="/m", host_path="/h")),
        devices=(DeviceSpec(path="/dev/infiniband"),),
        cdi_devices=("v/c=d",),
        capabilities=("IPC_LOCK",),
        user=1000,
    )


# Kubelet


@pytest.fixture
def config(directory, fake):
    manager = DeviceManagerConfig(
        plugin_dir=directory / "device-plugins", pod_resources=directory / "pod-resources.sock"
    )
    return KubeletConfig(
        node="node-1",
        runtime_endpoint=fake.socket,
        state_dir=directory / "sandboxes",
        relist_s=0.01,
        start_retry_s=0.01,
        stop_retry_s=0.01,
        late_delete_s=None,
        devices=DevicesConfig(manager=manager),
    )


def running(pod: dict) -> bool:
    return pod.get("status", {}).get("phase") == "Running"


async def test_pod_runs_in_the_runtime_with_its_containers(cluster, fake, config, make_pod):
    async with cluster() as c, fake.serving(), running_kubelet(c.api.url, config) as kubelet:
        await c.create(make_pod("p1", nodeName="node-1"))
        pod = await c.pod_when("p1", running)
        assert pod["status"]["podIP"] == "10.0.0.1"
        (record,) = kubelet.containers_of("default", "p1").values()
        assert fake.started == [record.id]
        assert fake.created[record.id].pod.uid == pod["metadata"]["uid"]
        assert [path.stem for path in config.sandboxes.glob("*.json")] == ["p1-0"]


async def test_sandbox_that_died_is_made_anew_with_its_containers(cluster, fake, config, make_pod):
    async with cluster() as c, fake.serving(), running_kubelet(c.api.url, config):
        await c.create(make_pod("p1", nodeName="node-1"))
        await c.pod_when("p1", running)
        fake.kill("p1-0")
        while len(fake.started) < 2:  # noqa: ASYNC110  another task makes it hold
            await asyncio.sleep(0.01)
        assert [each.partition("/")[0] for each in fake.started] == ["p1-0", "p1-1"]
        assert fake.asked == ["RunPodSandbox", "StopPodSandbox p1-0", "RunPodSandbox"]


async def test_restarted_kubelet_ends_sandboxes_that_it_requested_without_an_answer(
    cluster, fake, config, make_pod
):
    async with cluster() as c, fake.serving():
        made = await c.create(make_pod("p1", nodeName="node-1"))
        uid = made["metadata"]["uid"]
        fake.sandboxes["p1-0"] = cri.PodSandbox(id="p1-0", uid=uid, attempt=0, ready=True)
        config.sandboxes.mkdir()
        pod = {"namespace": "default", "name": "p1", "uid": uid, "annotations": {}}
        begun = {"container_id": "begun-1", "pod": pod, "netns": "", "result": None}
        (config.sandboxes / "begun-1.json").write_text(json.dumps(begun))
        async with running_kubelet(c.api.url, config):
            await c.pod_when("p1", running)
            assert fake.asked[:2] == ["StopPodSandbox p1-0", "RemovePodSandbox p1-0"]
            assert [each.ready for each in fake.sandboxes.values()] == [True]
