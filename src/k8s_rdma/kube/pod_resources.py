"""Kubelet's PodResources API: which pod holds which devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from k8s_rdma.core.pod_devices import PodDevices


class PodResources(Protocol):
    """Answers come from kubelet's memory. K8sRdmaError (`KUBELET_FAILURE`) when there is none in time."""

    async def of_pod(self, namespace: str, name: str) -> PodDevices:
        """What one pod holds; nothing where kubelet knows no such pod."""
        ...

    async def all(self) -> tuple[PodDevices, ...]:
        """What every active pod holds."""
        ...

    async def close(self) -> None:
        """End the connection."""
        ...
