"""Kubelet's API of device plugins (v1beta1); `pb` has the messages."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.pod_devices import (
    AllocateResponse,
    Choice,
    DeviceSpec,
    Mount,
    OfferedDevice,
    PluginOptions,
    PluginRegistration,
)
from k8s_rdma.wire.pb import device_plugin_pb2 as pb
from k8s_rdma.wire.protobuf import Method, empty_form, form

if TYPE_CHECKING:
    from collections.abc import Sequence

REGISTRATION = "v1beta1.Registration"
DEVICE_PLUGIN = "v1beta1.DevicePlugin"

_HEALTHY = "Healthy"
_UNHEALTHY = "Unhealthy"

Ids = tuple[str, ...]
"""The ids of devices of one resource."""

_EMPTY = empty_form(pb.Empty)
_STARTED = empty_form(pb.PreStartContainerResponse)


def _options_to(options: PluginOptions) -> pb.DevicePluginOptions:
    return pb.DevicePluginOptions(
        pre_start_required=options.pre_start_required,
        get_preferred_allocation_available=options.preferred_allocation,
    )


def _options_from(message: pb.DevicePluginOptions) -> PluginOptions:
    return PluginOptions(
        pre_start_required=message.pre_start_required,
        preferred_allocation=message.get_preferred_allocation_available,
    )


def _registration_to(registration: PluginRegistration) -> pb.RegisterRequest:
    return pb.RegisterRequest(
        version=registration.version,
        endpoint=registration.endpoint,
        resource_name=registration.resource,
        options=_options_to(registration.options),
    )


def _registration_from(message: pb.RegisterRequest) -> PluginRegistration:
    return PluginRegistration(
        version=message.version,
        endpoint=message.endpoint,
        resource=message.resource_name,
        options=_options_from(message.options),
    )


def _devices_to(devices: Sequence[OfferedDevice]) -> pb.ListAndWatchResponse:
    """Fill a response in place: separate messages take twice the time."""
    message = pb.ListAndWatchResponse()
    for device in devices:
        listed = message.devices.add(ID=device.id, health=_UNHEALTHY if device.unhealthy else _HEALTHY)
        if device.numa_nodes:
            listed.topology.CopyFrom(_topology(device.numa_nodes))
    return message


@lru_cache(maxsize=64)
def _topology(numa_nodes: tuple[int, ...]) -> pb.TopologyInfo:
    return pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in numa_nodes])


def _devices_from(message: pb.ListAndWatchResponse) -> Sequence[OfferedDevice]:
    return tuple(
        OfferedDevice(
            id=device.ID,
            unhealthy="" if device.health == _HEALTHY else f"its plugin says {device.health or 'nothing'}",
            numa_nodes=tuple(node.ID for node in device.topology.nodes),
        )
        for device in message.devices
    )


def _choices_to(choices: Sequence[Choice]) -> pb.PreferredAllocationRequest:
    return pb.PreferredAllocationRequest(
        container_requests=[
            pb.ContainerPreferredAllocationRequest(
                available_deviceIDs=choice.available,
                must_include_deviceIDs=choice.must_include,
                allocation_size=choice.size,
            )
            for choice in choices
        ]
    )


def _choices_from(message: pb.PreferredAllocationRequest) -> Sequence[Choice]:
    return tuple(
        Choice(
            available=tuple(request.available_deviceIDs),
            must_include=tuple(request.must_include_deviceIDs),
            size=request.allocation_size,
        )
        for request in message.container_requests
    )


def _preferred_to(preferred: Sequence[Ids]) -> pb.PreferredAllocationResponse:
    answers = [pb.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in preferred]
    return pb.PreferredAllocationResponse(container_responses=answers)


def _preferred_from(message: pb.PreferredAllocationResponse) -> Sequence[Ids]:
    return tuple(tuple(answer.deviceIDs) for answer in message.container_responses)


def _allocate_to(containers: Sequence[Ids]) -> pb.AllocateRequest:
    requests = [pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
    return pb.AllocateRequest(container_requests=requests)


def _allocate_from(message: pb.AllocateRequest) -> Sequence[Ids]:
    return tuple(tuple(request.devices_ids) for request in message.container_requests)


def _allocation_to(containers: Sequence[AllocateResponse]) -> pb.AllocateResponse:
    return pb.AllocateResponse(container_responses=[_container_to(container) for container in containers])


def _container_to(response: AllocateResponse) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=dict(response.envs),
        annotations=dict(response.annotations),
        devices=[
            pb.DeviceSpec(
                container_path=device.path,
                host_path=device.host_path or device.path,
                permissions=device.permissions,
            )
            for device in response.devices
        ],
        mounts=[
            pb.Mount(container_path=mount.path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in response.mounts
        ],
        cdi_devices=[pb.CDIDevice(name=name) for name in response.cdi_devices],
    )


def _allocation_from(message: pb.AllocateResponse) -> Sequence[AllocateResponse]:
    return tuple(_container_from(answer) for answer in message.container_responses)


def _container_from(message: pb.ContainerAllocateResponse) -> AllocateResponse:
    return AllocateResponse(
        envs=dict(message.envs),
        annotations=dict(message.annotations),
        devices=tuple(
            DeviceSpec(
                path=device.container_path,
                permissions=device.permissions,
                host_path="" if device.host_path == device.container_path else device.host_path,
            )
            for device in message.devices
        ),
        mounts=tuple(
            Mount(path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in message.mounts
        ),
        cdi_devices=tuple(cdi_device.name for cdi_device in message.cdi_devices),
    )


def _ids_to(ids: Ids) -> pb.PreStartContainerRequest:
    return pb.PreStartContainerRequest(devices_ids=ids)


def _ids_from(message: pb.PreStartContainerRequest) -> Ids:
    return tuple(message.devices_ids)


CONTAINER_ALLOCATE_RESPONSE = form(pb.ContainerAllocateResponse, _container_to, _container_from)
"""The response for one container, as kubelet keeps it."""


REGISTER = Method(
    service=REGISTRATION,
    name="Register",
    request=form(pb.RegisterRequest, _registration_to, _registration_from),
    answer=_EMPTY,
)
GET_DEVICE_PLUGIN_OPTIONS = Method(
    service=DEVICE_PLUGIN,
    name="GetDevicePluginOptions",
    request=_EMPTY,
    answer=form(pb.DevicePluginOptions, _options_to, _options_from),
)
LIST_AND_WATCH = Method(
    service=DEVICE_PLUGIN,
    name="ListAndWatch",
    request=_EMPTY,
    answer=form(pb.ListAndWatchResponse, _devices_to, _devices_from),
    streams=True,
)
GET_PREFERRED_ALLOCATION = Method(
    service=DEVICE_PLUGIN,
    name="GetPreferredAllocation",
    request=form(pb.PreferredAllocationRequest, _choices_to, _choices_from),
    answer=form(pb.PreferredAllocationResponse, _preferred_to, _preferred_from),
)
ALLOCATE = Method(
    service=DEVICE_PLUGIN,
    name="Allocate",
    request=form(pb.AllocateRequest, _allocate_to, _allocate_from),
    answer=form(pb.AllocateResponse, _allocation_to, _allocation_from),
)
PRE_START_CONTAINER = Method(
    service=DEVICE_PLUGIN,
    name="PreStartContainer",
    request=form(pb.PreStartContainerRequest, _ids_to, _ids_from),
    answer=_STARTED,
)
