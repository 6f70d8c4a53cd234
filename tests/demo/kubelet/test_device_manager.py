"""The device manager beside plugins that speak to it over real sockets."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from demo.kubelet.conftest import RESOURCE, pod
from demo.kubelet.listed_devices import ALL_CALLS, gives, listed
from k8s_rdma.core.devices.pod_devices import PluginRegistration
from k8s_rdma.kube import grpc_calls
from k8s_rdma.kube.grpc_calls import AioRpcError, StatusCode
from k8s_rdma.wire.device_plugin import REGISTER
from k8s_rdma_demo.kubelet.pods import AdmissionError, Capacity, PanicError

pytestmark = pytest.mark.anyio


async def test_options_of_a_plugin_are_requested_before_its_registration_is_answered(node):
    plugin = node.plugin("vf0")
    async with node.kubelet() as manager, plugin.serving():
        assert plugin.calls == []
        await plugin.register()
        assert plugin.calls == [("GetDevicePluginOptions", None)]
        assert [each.resource for each in manager.registrations] == [RESOURCE]


async def test_plugin_that_does_not_serve_is_not_registered(node):
    plugin = node.plugin("vf0")
    async with node.kubelet(dial_timeout_s=0.1) as manager:
        with pytest.raises(AioRpcError) as refused:
            await plugin.register()
        assert manager.registrations == []
    assert refused.value.code() is StatusCode.UNKNOWN
    assert refused.value.details() == "failed to dial device plugin: context deadline exceeded"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": "v1alpha"}, 'requested API version "v1alpha" is not supported by kubelet.'),
        ({"resource": "rdma"}, 'the ResourceName "rdma" is invalid'),
        ({"resource": "kubernetes.io/rdma"}, 'the ResourceName "kubernetes.io/rdma" is invalid'),
        ({"resource": "requests.lab/rdma"}, 'the ResourceName "requests.lab/rdma" is invalid'),
        ({"resource": "lab.local/rdma/vf"}, 'the ResourceName "lab.local/rdma/vf" is invalid'),
        ({"resource": "lab.local/" + "a" * 64}, "is invalid"),
    ],
)
async def test_registration_that_kubelet_does_not_take_is_refused(node, changes, why):
    registration = replace(PluginRegistration(resource=RESOURCE, endpoint="x.sock"), **changes)
    async with node.kubelet() as manager:
        channel = grpc_calls.connect(node.config.plugin_dir / "kubelet.sock")
        with pytest.raises(AioRpcError, match=r"UNKNOWN") as refused:
            await grpc_calls.call(channel, REGISTER, registration, timeout_s=10)
        await channel.close()
        assert manager.registrations == []
    assert why in refused.value.details()


async def test_capacity_follows_the_list_of_the_plugin(node):
    plugin = node.plugin("vf0", "vf1", "vf2", "vf3")
    async with node.kubelet() as manager, plugin.registered():
        await listed(manager, 4)
        await plugin.change(
            *(replace(each, unhealthy="down") for each in plugin.devices[:1]), *plugin.devices[1:]
        )
        await listed(manager, 3)
        await plugin.change(*(replace(each, unhealthy="") for each in plugin.devices))
        await listed(manager, 4)


async def test_devices_of_a_plugin_that_ended_its_list_are_unhealthy_until_forgotten(node):
    plugin = node.plugin("vf0", "vf1", "vf2", "vf3")
    async with node.kubelet() as manager, plugin.registered():
        await listed(manager, 4)
        await plugin.end_lists()
        await listed(manager, 0)
    async with node.kubelet(stop_grace_s=0) as manager, plugin.registered():
        await listed(manager, 4)
        await plugin.end_lists()
        await manager.wait_for(lambda: RESOURCE not in manager.capacity())


async def test_restart_deletes_sockets_and_keeps_devices_of_pods(node):
    plugin = node.plugin("vf0", "vf1", "vf2", "vf3", options=ALL_CALLS, response=gives)
    async with node.kubelet() as manager, plugin.registered():
        await listed(manager, 4)
        await manager.admit(pod())
    socket = node.config.plugin_dir / plugin.endpoint
    async with node.kubelet() as manager:
        assert not socket.exists()
        assert manager.capacity() == {RESOURCE: Capacity(capacity=0, allocatable=0)}
        assert manager.allocated_devices(pod(), "main") == {RESOURCE: ("vf0",)}
        await manager.admit(pod(), running=frozenset({"main"}))
        assert await manager.prepare(pod(), "main") == gives(["vf0"])
        with pytest.raises(AdmissionError, match="no healthy devices present"):
            await manager.admit(pod(name="p2"))
        async with plugin.registered():
            await listed(manager, 4)
            await manager.admit(pod(name="p2"))
            assert manager.allocated_devices(pod(name="p2"), "main") == {RESOURCE: ("vf1",)}


async def test_checkpoint_is_in_kubelets_words(node):
    plugin = node.plugin("vf0", response=gives)
    async with node.kubelet() as manager, plugin.registered():
        await manager.wait_for(lambda: manager.devices(RESOURCE))
        await manager.admit(pod())
        data = json.loads((node.config.plugin_dir / "kubelet_internal_checkpoint").read_bytes())["Data"]
    (entry,) = data["PodDeviceEntries"]
    assert entry.pop("AllocResp")
    assert entry == {
        "PodUID": "uid-p1",
        "ContainerName": "main",
        "ResourceName": RESOURCE,
        "DeviceIDs": {"0": ["vf0"]},
    }
    assert data["RegisteredDevices"] == {RESOURCE: ["vf0"]}


async def test_removed_directory_is_made_again_without_any_state(node):
    plugin = node.plugin("vf0")
    async with node.kubelet() as manager, plugin.registered():
        await manager.wait_for(lambda: manager.devices(RESOURCE))
        await manager.admit(pod())
    shutil.rmtree(node.config.plugin_dir)
    async with node.kubelet() as manager:
        assert manager.capacity() == {}
        assert manager.allocated_devices(pod(), "main") == {}


async def test_list_that_ends_after_another_registration_ends_that_one(node):
    plugin = node.plugin("vf0", "vf1", "vf2", "vf3")
    async with node.kubelet() as manager, plugin.registered():
        await listed(manager, 4)
        await plugin.register()
        await plugin.end_lists()
        await listed(manager, 0)


async def test_kubelet_panics_when_a_device_that_it_is_being_given_is_listed_no_more(node):
    plugin = node.plugin("vf0")
    async with node.kubelet() as manager, plugin.registered():
        await manager.wait_for(lambda: manager.devices(RESOURCE))

        async def vanish() -> None:
            await plugin.change()
            await manager.wait_for(lambda: not manager.devices(RESOURCE))

        plugin.before_response = vanish
        with pytest.raises(PanicError, match=r"vf0 of .* vanished"):
            await manager.admit(pod())
