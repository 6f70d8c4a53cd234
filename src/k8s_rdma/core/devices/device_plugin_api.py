"""Messages between kubelet and a device plugin, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DEVICE_PLUGIN_VERSION = "v1beta1"
"""Of the only API of device plugins that kubelet ever had."""


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

    unhealthy: why it is, in one sentence; empty while it is healthy. Kubelet is told no reason.
    numa_nodes: where it is attached; empty where that is not known.
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

    pcie_path: PCI bridges and switches from the root port down. numa_node: None where that is not known.
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
