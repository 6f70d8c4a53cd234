"""Pods and their device allocations, with kubelet's checkpoint file.

The file is `kubelet_internal_checkpoint` (`pkg/kubelet/cm/devicemanager/checkpoint`) without a valid
checksum, which depends on how Go prints values.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, unique
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.core.devices.pod_devices import AllocateResponse
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.device_plugin import CONTAINER_ALLOCATE_RESPONSE
from k8s_rdma.wire.json import decode

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINT = "kubelet_internal_checkpoint"


@unique
class ContainerKind(StrEnum):
    """The time when a container runs: with the others, before them to its end, or before and with them."""

    APP = "app"
    INIT = "init"
    SIDECAR = "sidecar"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceContainer:
    """A container. limits: how much of each resource it may have, whole numbers alone."""

    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    kind: ContainerKind = ContainerKind.APP


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePod:
    """A pod; containers: in the order in which they start."""

    namespace: str
    name: str
    uid: str
    containers: tuple[DeviceContainer, ...]

    def container(self, name: str) -> DeviceContainer:
        """Return the container of that name; KeyError."""
        found = [container for container in self.containers if container.name == name]
        if not found:
            raise KeyError(name)
        return found[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAllocation:
    """The devices of one resource that a container has.

    numa: ids by the NUMA node that they are attached to, -1 if it is unknown.
    """

    ids: tuple[str, ...]
    numa: Mapping[int, tuple[str, ...]]
    response: AllocateResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The number of devices, and of healthy ones."""

    capacity: int
    allocatable: int


class AdmissionError(K8sRdmaError):
    """A pod cannot have its devices; kubelet rejects it for good, with this message."""


class PreparationError(K8sRdmaError):
    """A container cannot be started now; kubelet tries again."""


class PanicError(Exception):
    """Kubelet's process would have ended here, for a mistake of its own that a plugin can make it commit."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, tuple[str, ...]] = msgspec.field(name="DeviceIDs")
    alloc_resp: str


class _Data(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    pod_device_entries: tuple[_Entry, ...] | None = None
    registered_devices: dict[str, tuple[str, ...] | None] = {}


class _Checkpoint(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    data: _Data


_decoder = msgspec.json.Decoder(_Checkpoint)


class DeviceAllocations:
    """The allocations of devices, by pod's UID, container and resource."""

    def __init__(self) -> None:
        self._allocations: dict[tuple[str, str, str], DeviceAllocation] = {}

    def insert(self, uid: str, container: str, resource: str, allocation: DeviceAllocation) -> None:
        """Add a container's allocation."""
        self._allocations[uid, container, resource] = allocation

    def get(self, uid: str, container: str, resource: str) -> DeviceAllocation | None:
        """Return a container's devices of a resource, if any."""
        return self._allocations.get((uid, container, resource))

    def of_container(self, uid: str, container: str) -> dict[str, DeviceAllocation]:
        """Return a container's devices by resource."""
        return {
            key[2]: allocation for key, allocation in self._allocations.items() if key[:2] == (uid, container)
        }

    def in_use(self, resource: str) -> set[str]:
        """Return the allocated devices of a resource."""
        return {
            device
            for key, allocation in self._allocations.items()
            if key[2] == resource
            for device in allocation.ids
        }

    def resources(self) -> set[str]:
        """Return the resources with devices in use."""
        return {resource for _, _, resource in self._allocations}

    def drop(self, uid: str) -> None:
        """Free the devices of a pod that is over."""
        self._allocations = {
            key: allocation for key, allocation in self._allocations.items() if key[0] != uid
        }

    def save(self, directory: Path, healthy: Mapping[str, Iterable[str]]) -> None:
        """Write the checkpoint, whole or not at all. healthy: devices by resource."""
        entries = tuple(
            _Entry(
                pod_uid=uid,
                container_name=container,
                resource_name=resource,
                device_ids={str(node): ids for node, ids in allocation.numa.items()},
                alloc_resp=b64encode(CONTAINER_ALLOCATE_RESPONSE.encode(allocation.response)).decode(),
            )
            for (uid, container, resource), allocation in self._allocations.items()
        )
        registered: dict[str, tuple[str, ...] | None] = {name: tuple(ids) for name, ids in healthy.items()}
        data = _Data(pod_device_entries=entries, registered_devices=registered)
        written = directory / f".{CHECKPOINT}.new"
        written.write_bytes(msgspec.json.encode(_Checkpoint(data=data)))
        written.replace(directory / CHECKPOINT)

    def load(self, directory: Path) -> tuple[str, ...]:
        """Read the checkpoint, if there is one; return the resources that were registered. MalformedError."""
        try:
            content = (directory / CHECKPOINT).read_bytes()
        except FileNotFoundError:
            return ()
        data = decode(content, _decoder, CHECKPOINT).data
        for entry in data.pod_device_entries or ():
            numa = {int(node): ids for node, ids in entry.device_ids.items()}
            allocation = DeviceAllocation(
                ids=tuple(dict.fromkeys(device for ids in numa.values() for device in ids)),
                numa=numa,
                response=CONTAINER_ALLOCATE_RESPONSE.decode(b64decode(entry.alloc_resp)),
            )
            self.insert(entry.pod_uid, entry.container_name, entry.resource_name, allocation)
        return tuple(data.registered_devices)
