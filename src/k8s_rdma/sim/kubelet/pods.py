"""What the device manager is told of pods, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, unique

from k8s_rdma.core.devices.device_plugin_api import AllocateResponse
from k8s_rdma.errors import K8sRdmaError


@unique
class ContainerKind(StrEnum):
    """When a container runs: beside the others, before them to its end, or before and beside them."""

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
        """The container of that name; KeyError."""
        found = [each for each in self.containers if each.name == name]
        if not found:
            raise KeyError(name)
        return found[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a container has of one resource.

    numa: ids by the NUMA node that they are attached to, -1 where none is known.
    """

    ids: tuple[str, ...]
    numa: Mapping[int, tuple[str, ...]]
    given: AllocateResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How many devices there are, and how many of them are healthy."""

    capacity: int
    allocatable: int


class AdmissionError(K8sRdmaError):
    """A pod cannot have its devices; kubelet rejects it for good, with this message."""


class PreparationError(K8sRdmaError):
    """A container cannot be started now; kubelet tries again."""


class PanicError(Exception):
    """Kubelet's process would have ended here, for a mistake of its own that a plugin can make it commit."""
