"""What a resource offers, whatever its mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from k8s_rdma.core.devices import DevicesSeen


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedDevice:
    """A device by the id that kubelet knows.

    unhealthy: why it is, in one sentence; empty while it is healthy.
    numa_nodes: where it is attached; empty where that is not known.
    """

    id: str
    unhealthy: str = ""
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A device node, or a directory of them; the same path on the host and in the container."""

    path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a container gets (`ContainerAllocateResponse`). cdi_devices: qualified names."""

    envs: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[DeviceSpec, ...] = ()
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A question of kubelet's: which `size` of the available ones, with those that must be among them.

    beside: PCI paths (bridges from the root port down, then the device's own address) of what the pod was
        given by others, such as GPUs.
    """

    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int
    beside: tuple[tuple[str, ...], ...] = ()


class Mode(Protocol):
    """One resource. Pure: what is there is an argument."""

    @property
    def resource(self) -> str:
        """Its name, `tencent.com/rdma`."""
        ...

    def offer(self, seen: DevicesSeen) -> tuple[OfferedDevice, ...]:
        """All that there is, in a stable order."""
        ...

    def allocate(self, ids: Sequence[str], seen: DevicesSeen) -> Given:
        """What a container with these devices gets.

        K8sRdmaError (`UNKNOWN_DEVICE`, INVALID_ARGUMENT in gRPC) names an id that is not offered, or is
        unhealthy, and why.
        """
        ...

    def prefer(self, choice: Choice, seen: DevicesSeen) -> tuple[str, ...]:
        """The best of what is available; MalformedError when the question cannot be answered."""
        ...
