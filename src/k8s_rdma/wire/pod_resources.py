"""Kubelet's API PodResources (v1); `pb` has the messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.devices.pod_devices import ContainerDevices, PodDevices
from k8s_rdma.wire.pb import pod_resources_pb2 as pb
from k8s_rdma.wire.protobuf import Method, empty_form, form

if TYPE_CHECKING:
    from collections.abc import Sequence

POD_RESOURCES_LISTER = "v1.PodResourcesLister"

_LIST_REQUEST = empty_form(pb.ListPodResourcesRequest)
_ALLOCATABLE_REQUEST = empty_form(pb.AllocatableResourcesRequest)


class PodName(NamedTuple):
    """A pod as kubelet's API knows it, which has no other identity there."""

    namespace: str
    name: str


def _name_to(pod: PodName) -> pb.GetPodResourcesRequest:
    return pb.GetPodResourcesRequest(pod_name=pod.name, pod_namespace=pod.namespace)


def _name_from(message: pb.GetPodResourcesRequest) -> PodName:
    return PodName(namespace=message.pod_namespace, name=message.pod_name)


def _pod_to(pod: PodDevices) -> pb.PodResources:
    """Containers in the order of their first devices."""
    containers = dict.fromkeys(device.container for device in pod.devices)
    return pb.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=[
            pb.ContainerResources(
                name=container,
                devices=[_pod_devices_to(entry) for entry in pod.devices if entry.container == container],
            )
            for container in containers
        ],
    )


def _pod_from(message: pb.PodResources) -> PodDevices:
    return PodDevices(
        namespace=message.namespace,
        name=message.name,
        devices=tuple(
            _pod_devices_from(container.name, devices)
            for container in message.containers
            for devices in container.devices
        ),
    )


def _pod_devices_to(devices: ContainerDevices) -> pb.ContainerDevices:
    nodes = [pb.NUMANode(ID=node) for node in devices.numa_nodes]
    topology = pb.TopologyInfo(nodes=nodes) if nodes else None
    return pb.ContainerDevices(resource_name=devices.resource, device_ids=devices.ids, topology=topology)


def _pod_devices_from(container: str, message: pb.ContainerDevices) -> ContainerDevices:
    return ContainerDevices(
        container=container,
        resource=message.resource_name,
        ids=tuple(message.device_ids),
        numa_nodes=tuple(node.ID for node in message.topology.nodes),
    )


def _pods_to(pods: Sequence[PodDevices]) -> pb.ListPodResourcesResponse:
    return pb.ListPodResourcesResponse(pod_resources=[_pod_to(pod) for pod in pods])


def _pods_from(message: pb.ListPodResourcesResponse) -> Sequence[PodDevices]:
    return tuple(_pod_from(pod) for pod in message.pod_resources)


def _response_to(pod: PodDevices) -> pb.GetPodResourcesResponse:
    return pb.GetPodResourcesResponse(pod_resources=_pod_to(pod))


def _response_from(message: pb.GetPodResourcesResponse) -> PodDevices:
    return _pod_from(message.pod_resources)


def _allocatable_to(devices: Sequence[ContainerDevices]) -> pb.AllocatableResourcesResponse:
    return pb.AllocatableResourcesResponse(devices=[_pod_devices_to(device) for device in devices])


def _allocatable_from(message: pb.AllocatableResourcesResponse) -> Sequence[ContainerDevices]:
    return tuple(_pod_devices_from("", device) for device in message.devices)


LIST = Method(
    service=POD_RESOURCES_LISTER,
    name="List",
    request=_LIST_REQUEST,
    answer=form(pb.ListPodResourcesResponse, _pods_to, _pods_from),
)
GET_METHOD = Method(
    service=POD_RESOURCES_LISTER,
    name="Get",
    request=form(pb.GetPodResourcesRequest, _name_to, _name_from),
    answer=form(pb.GetPodResourcesResponse, _response_to, _response_from),
)
GET_ALLOCATABLE_RESOURCES = Method(
    service=POD_RESOURCES_LISTER,
    name="GetAllocatableResources",
    request=_ALLOCATABLE_REQUEST,
    answer=form(pb.AllocatableResourcesResponse, _allocatable_to, _allocatable_from),
)
