"""Admission of pods: devices before they start, containers prepared one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo.kubelet.conftest import RESOURCE, container, init, pod
from demo.kubelet.listed_devices import ALL_CALLS, gives, listed
from k8s_rdma.core.devices.pod_devices import AllocateResponse, Choice, OfferedDevice
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma_demo.kubelet.pods import AdmissionError, ContainerKind, PreparationError

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.anyio


async def test_calls_for_a_pod_to_the_plugin_are_those_recorded(node):
    plugin = node.plugin("vf0", "vf1", "vf2", "vf3", options=ALL_CALLS, response=gives)
    async with node.kubelet() as manager, plugin.registered():
        await listed(manager, 4)
        await manager.admit(pod())
        given = await manager.prepare(pod(), "main")
    (_, (choice,)), allocated, prepared = plugin.calls[1:]
    assert (sorted(choice.available), choice.must_include, choice.size) == (
        ["vf0", "vf1", "vf2", "vf3"],
        (),
        1,
    )
    assert allocated == ("Allocate", (("vf0",),))
    assert prepared == ("PreStartContainer", ("vf0",))
    assert given == gives(["vf0"])


async def test_later_containers_get_the_devices_of_an_init_container_first(node):
    plugin = node.plugin("vf0", "vf1", "vf2", "vf3", options=ALL_CALLS, response=gives)
    asking = pod(init(), container("first", 2), container("second", 1))
    async with node.kubelet() as manager, plugin.registered():
        await listed(manager, 4)
        await manager.admit(asking)
        held = {
            each.name: manager.allocated_devices(asking, each.name)[RESOURCE] for each in asking.containers
        }
        (must_include,) = [
            choice.must_include
            for name, asked in plugin.calls
            if name == "GetPreferredAllocation"
            for choice in asked
            if choice.size == 2
        ]
        assert held["init"] == must_include
        assert set(held["init"]) < set(held["first"])
        assert not set(held["first"]) & set(held["second"])


async def test_sidecar_keeps_its_devices(node):
    plugin = node.plugin("vf0", "vf1")
    asking = pod(container("side", kind=ContainerKind.SIDECAR), container())
    async with node.kubelet() as manager, plugin.registered():
        await manager.wait_for(lambda: manager.devices(RESOURCE))
        await manager.admit(asking)
        assert manager.allocated_devices(asking, "side") != manager.allocated_devices(asking, "main")


async def test_preferred_devices_of_the_plugin_are_taken_only_if_free(node):
    def another(choice: Choice) -> tuple[str, ...]:
        return ("vf9", *sorted(choice.available, reverse=True))[: choice.size + 1]

    plugin = node.plugin("vf0", "vf1", "vf2", options=ALL_CALLS, prefer=another)
    async with node.kubelet() as manager, plugin.registered():
        await manager.wait_for(lambda: manager.devices(RESOURCE))
        await manager.admit(pod())
        await manager.admit(pod(name="p2"))
        assert manager.allocated_devices(pod(), "main") == {RESOURCE: ("vf2",)}
        assert manager.allocated_devices(pod(name="p2"), "main") == {RESOURCE: ("vf1",)}


@pytest.mark.parametrize(
    ("size", "unhealthy", "why"),
    [
        (3, "", f"requested number of devices unavailable for {RESOURCE}. Requested: 3, Available: 2"),
        (1, "down", f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE}"),
    ],
)
async def test_pod_that_cannot_have_its_devices_is_rejected_without_devices(node, size, unhealthy, why):
    plugin = node.plugin()
    plugin.devices = tuple(OfferedDevice(id=each, unhealthy=unhealthy) for each in ("vf0", "vf1"))
    asking = pod(container(size=size))
    async with node.kubelet() as manager, plugin.registered():
        await manager.wait_for(lambda: manager.devices(RESOURCE))
        with pytest.raises(AdmissionError) as refused:
            await manager.admit(asking)
        assert manager.allocated_devices(asking, "main") == {}
    assert refused.value.message == why


async def test_plugins_own_words_are_in_a_rejection(node):
    def refuse(ids: Sequence[str]) -> AllocateResponse:
        raise K8sRdmaError(f"device {ids[0]} is unhealthy: port down", reason=Reason.UNKNOWN_DEVICE)

    plugin = node.plugin("vf0", response=refuse)
    async with node.kubelet() as manager, plugin.registered():
        await manager.wait_for(lambda: manager.devices(RESOURCE))
        with pytest.raises(AdmissionError) as refused:
            await manager.admit(pod())
        message = "rpc error: code = InvalidArgument desc = device vf0 is unhealthy: port down"
        assert refused.value.message == message
        plugin.response = gives
        await manager.admit(pod())


async def test_resource_that_no_plugin_has_is_other_peoples(node):
    async with node.kubelet() as manager:
        await manager.admit(pod())
        assert await manager.prepare(pod(), "main") == AllocateResponse()


async def test_pod_that_is_over_leaves_its_devices_to_others(node):
    plugin = node.plugin("vf0")
    async with node.kubelet() as manager, plugin.registered():
        await manager.wait_for(lambda: manager.devices(RESOURCE))
        await manager.admit(pod())
        with pytest.raises(AdmissionError, match="Available: 0"):
            await manager.admit(pod(name="p2"))
        await manager.release(pod().uid)
        await manager.admit(pod(name="p2"))


async def test_container_whose_plugin_is_gone_is_not_prepared(node):
    plugin = node.plugin("vf0", options=ALL_CALLS)
    async with node.kubelet() as manager:
        async with plugin.registered():
            await manager.wait_for(lambda: manager.devices(RESOURCE))
            await manager.admit(pod())
        await manager.wait_for(lambda: manager.capacity()[RESOURCE].allocatable == 0)
        with pytest.raises(PreparationError, match="has been stopped"):
            await manager.prepare(pod(), "main")
