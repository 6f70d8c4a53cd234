"""Devices that kubelet allocated to a pod, and slots: devices whose content the agent decides at CNI ADD.

A device plugin answers kubelet with the CDI device `k8s-rdma.io/slot=<id>`. At CNI ADD the agent learns from
kubelet which slots the pod holds, and writes their content.

The messages between kubelet and a device plugin are values of this module as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MEMLOCK_UNLIMITED = (1 << 63) - 1
"""An amount of locked memory without a limit."""

DEVICE_PLUGIN_VERSION = "v1beta1"
"""The version of kubelet's device plugin API; there is only this one."""


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

    It does not list init containers that run to their end, either. Their devices are visible only if they
    were given on to the pod's other containers (`pkg/kubelet/apis/podresources/server_v1.go`).
    """

    namespace: str
    name: str
    devices: tuple[ContainerDevices, ...] = ()

    def device_ids(self, resource: str) -> tuple[str, ...]:
        """Return the devices of one resource, each once, `mlx5_2` before `mlx5_10`.

        kubelet lists them in another order each time.
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


def format_memlock(amount: int) -> str:
    """Format an amount of locked memory as annotations have it, in bytes."""
    return "unlimited" if amount == MEMLOCK_UNLIMITED else str(amount)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotInUse:
    """A slot that kubelet gave to a container of a pod.

    resource, id: as kubelet has it.
    pool: the exclusive resource of its devices; empty for all VFs that the pod was given.
    hints: whether communication libraries get its devices in variables (`core.devices.rdma_devices`).
    memlock: the bytes that its container may lock, at least; 0 for the runtime's own limit.
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
        """The device of its pool that it stands for, as kubelet has it; empty if it is all of the pod's.

        A device is named by its RDMA device's name at home, or by its PCI address if it has no RDMA device.
        """
        return self.id if self.resource == self.pool else ""


def slot_ids(count: int) -> tuple[str, ...]:
    """Return the device ids of a resource that counts no real devices."""
    return tuple(f"slot-{number}" for number in range(count))


def slot_device(resource: str, device_id: str) -> str:
    """Return the CDI device of one device of one resource: no two resources have the same."""
    return f"{resource.replace('/', '_')}.{device_id}"


def shared_device(resource: str) -> str:
    """Return the CDI device of all that a shared resource gives its holders."""
    return resource.replace("/", "_")


def shared_resource(resource: str) -> str:
    """Return the resource by which further containers of a pod share its devices of an exclusive one."""
    return f"{resource}-shared"


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

    unhealthy: why it is unhealthy, in one sentence; empty while it is healthy. Kubelet gets no reason.
    numa_nodes: where it is attached; empty if that is not known.
    """

    id: str
    unhealthy: str = ""
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A device node, or a directory of them. host_path: its path on the host, if not `path` as well."""

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
    """The place of another device, such as a GPU.

    pcie_path: PCI bridges and switches from the root port down.
    numa_node: None if that is not known.
    """

    pcie_path: tuple[str, ...]
    numa_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A question of kubelet's: which `size` of the available ones, with those that must be among them.

    neighbours: the pod's devices of other plugins; kubelet does not name these.
    """

    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int
    neighbours: tuple[Neighbour, ...] = ()
