"""What a resource offers, whatever its mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from k8s_rdma.core.devices.device_plugin_api import Choice, DeviceSpec, Given, OfferedDevice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.devices.rdma_devices import DevicesSeen

__all__ = ["Choice", "DeviceSpec", "Given", "Mode", "OfferedDevice"]


class Mode(Protocol):
    """One resource. Pure: what is there is an argument."""

    @property
    def resource(self) -> str:
        """Its name, `tencent.com/rdma`."""
        ...

    @property
    def prefers(self) -> bool:
        """Whether some devices are better than others; else kubelet need not ask `prefer`."""
        ...

    def offer(self, seen: DevicesSeen) -> tuple[OfferedDevice, ...]:
        """All that there is, in a stable order."""
        ...

    def allocate(self, ids: Sequence[str], seen: DevicesSeen) -> Given:
        """What a container with these devices gets.

        K8sRdmaError (`UNKNOWN_DEVICE`, INVALID_ARGUMENT in gRPC) names an id that is not offered, or is
        unhealthy, and why; `TOO_MANY_DEVICES` (OUT_OF_RANGE) says how many a container may have.
        """
        ...

    def prefer(self, choice: Choice, seen: DevicesSeen) -> tuple[str, ...]:
        """The best of what is available; MalformedError when the question cannot be answered."""
        ...
