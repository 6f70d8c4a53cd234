"""The device manager beside plugins that speak to it over real sockets."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from demo.kubelet.conftest import RESOURCE, pod
from demo.kubelet.listed_devices import ALL_CALLS, gives, listed
from k8s_rdma_demo.kubelet.pods import AdmissionError, Capacity, PanicError

pytestmark = pytest.mark.anyio


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
