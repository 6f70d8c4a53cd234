"""Devices that kubelet allocated to a pod, and slots: devices whose content the agent decides at CNI ADD.

A device plugin answers kubelet with the CDI device `k8s-rdma.io/slot=<id>`. At CNI ADD the agent learns
from kubelet which slots the pod holds, and writes what they are.

The messages between kubelet and a device plugin are values of this module, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerDevices:
    """The devices of one resource and one container; ids as the resource's plugin listed them."""

    container: str
    resource: str
    ids: tuple[str, ...]
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDevices:
    """The devices of all containers of a pod; kubelet's API knows no UIDs.

    Nor does it know init containers that run to their end: what they were given is seen only as far as it was
    given on to the pod's other containers (`pkg/kubelet/apis/podresources/server_v1.go`).
    """

    namespace: str
    name: str
    devices: tuple[ContainerDevices, ...] = ()

    def device_ids(self, resource: str) -> tuple[str, ...]:
        """The devices of one resource, none twice, `mlx5_2` before `mlx5_10`.

        Kubelet itself names them in another order each time that it is asked.
        """
        ids = {
            device_id for device in self.devices if device.resource == resource for device_id in device.ids
        }
        return tuple(sorted(ids, key=_by_numbers))


def _by_numbers(device_id: str) -> tuple[list[str], list[int], str]:
    """Sort an id by its text, then by its numbers, then by itself, so that no two are equal."""
    return (
        re.split(r"[0-9]+", device_id),
        [int(digits) for digits in re.findall(r"[0-9]+", device_id)],
        device_id,
    )


MEMLOCK_UNLIMITED = (1 << 63) - 1
"""An amount of locked memory without a limit."""


def format_memlock(amount: int) -> str:
    """Format an amount of locked memory as annotations have it, in bytes."""
    return "unlimited" if amount == MEMLOCK_UNLIMITED else str(amount)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotInUse:
    """A slot that kubelet gave to a container of a pod.

    resource, id: as kubelet has it.
    pool: the exclusive resource of whose devices it is; empty for all VFs that the pod was given.
    hints: whether communication libraries get its devices in variables (`core.devices.rdma_devices`).
    memlock: the bytes that its container may lock, at least; 0 for what the runtime gives it.
    memlock_required: whether the container may not start with less.
    """

    resource: str
    id: str
    pool: str = ""
    hints: bool = field(default=False, compare=False)
    memlock: int = field(default=0, compare=False)
    memlock_required: bool = field(default=False, compare=False)

    @property
    def device(self) -> str:
        """The name of the slot's CDI device."""
        return slot_device(self.resource, self.id)

    @property
    def one_device(self) -> str:
        """The device of its pool that it is, as kubelet has it; empty for all that the pod holds.

        Its RDMA device's name at home, or its PCI address where it has none.
        """
        return self.id if self.resource == self.pool else ""


def slot_ids(count: int) -> tuple[str, ...]:
    """The device ids of a resource that counts nothing real."""
    return tuple(f"slot-{number}" for number in range(count))


def slot_device(resource: str, device_id: str) -> str:
    """The CDI device of one device of one resource: no two resources have the same."""
    return f"{resource.replace('/', '_')}.{device_id}"


def shared_device(resource: str) -> str:
    """The CDI device of all that a shared resource gives its holders."""
    return resource.replace("/", "_")


def shared_resource(resource: str) -> str:
    """The resource by which further containers of a pod ask for what the pod holds of an exclusive one."""
    return f"{resource}-shared"


DEVICE_PLUGIN_VERSION = "v1beta1"
"""The version of kubelet's device plugin API; there is only this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginOptions:
    """The optional calls that a plugin implements."""

    pre_start_required: bool = False
    preferred_allocation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRegistration:
    """The registration of a plugin. endpoint: its socket's name in kubelet's directory."""

    resource: str
    endpoint: str
    version: str = DEVICE_PLUGIN_VERSION
    options: PluginOptions = PluginOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedDevice:
    """A device by the id that kubelet knows.

    unhealthy: why it is, in one sentence; empty while it is healthy. Kubelet gets no reason.
    numa_nodes: where it is attached; empty if that is not known.
    """

    id: str
    unhealthy: str = ""
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A device node, or a directory of them. host_path: where the host has it, if not at `path` as well."""

    path: str
    permissions: str = "rw"
    host_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or directory of the host, bound into the container."""

    path: str
    host_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateResponse:
    """The devices of a container (`ContainerAllocateResponse`). cdi_devices: qualified names."""

    envs: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[DeviceSpec, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """The place where another device, such as a GPU, is attached.

    pcie_path: PCI bridges and switches from the root port down. numa_node: None if that is not known.
    """

    pcie_path: tuple[str, ...]
    numa_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A question of kubelet's: which `size` of the available ones, with those that must be among them.

    neighbours: what the pod was given by others; kubelet does not say that.
    """

    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int
    neighbours: tuple[Neighbour, ...] = ()
