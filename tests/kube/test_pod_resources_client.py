"""The client of kubelet's PodResources API beside the device manager's server of it, over a real socket."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
import structlog

from demo.kubelet.conftest import RESOURCE, Node, container, init, node, pod
from k8s_rdma.core.devices.pod_devices import ContainerDevices
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.kube import grpc_calls
from k8s_rdma.kube.grpc_calls import RefusedCallError, StatusCode
from k8s_rdma.kube.pod_resources import KubeletPodResources
from k8s_rdma.wire.pod_resources import GET_ALLOCATABLE_RESOURCES, LIST
from k8s_rdma_demo.kubelet.device_manager import RateLimit
from k8s_rdma_demo.kubelet.pods import ContainerKind

pytestmark = pytest.mark.anyio

__all__ = ["node"]


@asynccontextmanager
async def asking(node: Node, *, timeout_s: float = 10.0):
    client = KubeletPodResources(node.config.pod_resources, timeout_s=timeout_s)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def devices_for(node: Node, *ids: str, **config: object):
    async with node.kubelet(**config) as manager, node.plugin(*ids).registered():
        await manager.wait_for(lambda: manager.devices(RESOURCE))
        yield manager


@pytest.mark.parametrize("get", [True, False], ids=["get", "list alone"])
async def test_pod_is_listed_with_its_devices(node, get):
    async with devices_for(node, "vf0", "vf1", get=get) as manager, asking(node) as client:
        await manager.admit(pod(container("a"), container("b")))
        told = await client.of_pod("default", "p1")
        (listed,) = await client.all()
    assert set(listed.devices) == set(told.devices)
    assert told.device_ids(RESOURCE) == ("vf0", "vf1")
    assert {each.container for each in told.devices} == {"a", "b"}
    assert {each.numa_nodes for each in told.devices} == {(0,)}


@pytest.mark.parametrize("get", [True, False], ids=["get", "list alone"])
async def test_pod_unknown_to_kubelet_does_not_count_as_one_without_devices(node, get):
    async with devices_for(node, "vf0", get=get) as manager, asking(node) as client:
        await manager.admit(pod())
        for namespace, name in (("default", "p2"), ("other", "p1")):
            with pytest.raises(K8sRdmaError, match=f"knows no pod {namespace}/{name}") as failed:
                await client.of_pod(namespace, name)
            assert failed.value.reason is Reason.KUBELET_FAILURE


async def test_finished_pod_is_not_listed(node):
    async with devices_for(node, "vf0") as manager, asking(node) as client:
        await manager.admit(pod())
        await manager.release(pod().uid)
        assert await client.all() == ()


async def test_init_containers_are_listed_only_if_they_go_on(node):
    containers = (init(size=2), container("side", kind=ContainerKind.SIDECAR), container())
    async with devices_for(node, "vf0", "vf1", "vf2") as manager, asking(node) as client:
        await manager.admit(pod(*containers))
        told = await client.of_pod("default", "p1")
        assert manager.allocated_devices(pod(*containers), "init")[RESOURCE]
    assert {each.container for each in told.devices} == {"side", "main"}


async def test_device_of_two_numa_nodes_is_one_device(node):
    plugin = node.plugin("vf0")
    (device,) = plugin.devices
    plugin.devices = (type(device)(id=device.id, numa_nodes=(0, 1)),)
    async with node.kubelet() as manager, plugin.registered(), asking(node) as client:
        await manager.wait_for(lambda: manager.devices(RESOURCE))
        await manager.admit(pod())
        told = await client.of_pod("default", "p1")
    assert len(told.devices) == 2
    assert told.device_ids(RESOURCE) == ("vf0",)


async def test_calls_beyond_the_rate_limit_are_repeated(node):
    limit = RateLimit(per_second=100, burst=1)
    async with devices_for(node, "vf0", rate_limit=limit) as manager, asking(node) as client:
        await manager.admit(pod())
        told = await asyncio.gather(*(client.of_pod("default", "p1") for _ in range(5)))
    assert {each.device_ids(RESOURCE) for each in told} == {("vf0",)}


async def test_endless_rate_limit_is_reported_when_time_is_over(node):
    limit = RateLimit(per_second=0, burst=0)
    async with devices_for(node, "vf0", rate_limit=limit), asking(node, timeout_s=0.2) as client:
        with pytest.raises(K8sRdmaError, match="Get: rejected by rate limit") as failed:
            await client.of_pod("default", "p1")
    assert failed.value.reason is Reason.KUBELET_FAILURE


async def test_kubelet_that_refuses_and_then_hangs_is_reported_with_its_refusal(node):
    asked = 0

    async def refuse_once(_):
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RefusedCallError(StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        await asyncio.Event().wait()

    node.config.pod_resources.parent.mkdir()
    server = grpc_calls.new_server()
    grpc_calls.add_service(server, {LIST: grpc_calls.handler(LIST, refuse_once)})
    server.add_insecure_port(grpc_calls.address(node.config.pod_resources))
    await server.start()
    async with asking(node, timeout_s=1.0) as client:
        with pytest.raises(K8sRdmaError, match="List: rejected by rate limit"):
            await client.all()
    await server.stop(None)
    assert asked == 2


async def test_kubelet_that_is_down_is_reported_with_its_socket(node):
    async with asking(node, timeout_s=0.2) as client:
        with pytest.raises(K8sRdmaError, match=str(node.config.pod_resources)) as failed:
            await client.all()
    assert failed.value.reason is Reason.KUBELET_FAILURE


async def test_kubelet_that_comes_back_in_time_answers(node):
    async with asking(node) as client:
        async with devices_for(node, "vf0") as manager:
            await manager.admit(pod())
            assert (await client.of_pod("default", "p1")).device_ids(RESOURCE) == ("vf0",)
        question = asyncio.create_task(client.all())
        async with node.kubelet() as manager:
            assert await question == ()
            await manager.admit(pod(), running=frozenset({"main"}))
            assert (await client.of_pod("default", "p1")).device_ids(RESOURCE) == ("vf0",)


async def test_allocatable_devices_are_the_healthy_ones(node):
    async with devices_for(node, "vf0", "vf1"):
        channel = grpc_calls.connect(node.config.pod_resources)
        told = await grpc_calls.call(channel, GET_ALLOCATABLE_RESOURCES, None, timeout_s=10)
        await channel.close()
    assert set(told) == {
        ContainerDevices(container="", resource=RESOURCE, ids=(each,), numa_nodes=(0,))
        for each in ("vf0", "vf1")
    }


@asynccontextmanager
async def answering(node: Node, serve):
    """A kubelet with GetAllocatableResources alone, or with List alone if that is not served."""

    async def nothing(_):
        return ()

    node.config.pod_resources.parent.mkdir()
    server = grpc_calls.new_server()
    method = LIST if serve is None else GET_ALLOCATABLE_RESOURCES
    grpc_calls.add_service(server, {method: grpc_calls.handler(method, serve or nothing)})
    server.add_insecure_port(grpc_calls.address(node.config.pod_resources))
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def test_allocatable_devices_are_pairs_of_resource_and_id(node):
    async with devices_for(node, "vf0", "vf1"), asking(node) as client:
        assert set(await client.allocatable()) == {(RESOURCE, "vf0"), (RESOURCE, "vf1")}


async def test_allocatable_device_of_two_numa_nodes_is_one(node):
    async def serve(_):
        return [
            ContainerDevices(container="", resource=RESOURCE, ids=ids, numa_nodes=(numa_node,))
            for numa_node, ids in enumerate([("vf0", "vf1"), ("vf0",)])
        ]

    async with answering(node, serve), asking(node) as client:
        assert await client.allocatable() == ((RESOURCE, "vf0"), (RESOURCE, "vf1"))


async def test_kubelet_without_allocatable_devices_has_none_and_is_logged_once(node):
    async with answering(node, None), asking(node) as client:
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                assert await client.allocatable() == ()
    assert [entry["event"] for entry in logs] == ["allocatable_devices_unknown"]


async def test_kubelet_that_refuses_to_tell_allocatable_devices_is_a_failure(node):
    async def serve(_):
        raise RefusedCallError(StatusCode.UNKNOWN, "PodResources API GetAllocatableResources disabled")

    async with answering(node, serve), asking(node) as client:
        with pytest.raises(K8sRdmaError, match=r"GetAllocatableResources: .* disabled") as failed:
            await client.allocatable()
    assert failed.value.reason is Reason.KUBELET_FAILURE
