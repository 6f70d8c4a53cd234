"""Device plugins that register: requests that kubelet refuses, and devices that are listed no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from demo.kubelet.conftest import RESOURCE
from demo.kubelet.listed_devices import listed
from k8s_rdma.core.devices.pod_devices import PluginRegistration
from k8s_rdma.kube import grpc_calls
from k8s_rdma.kube.grpc_calls import AioRpcError, StatusCode
from k8s_rdma.wire.device_plugin import REGISTER

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
