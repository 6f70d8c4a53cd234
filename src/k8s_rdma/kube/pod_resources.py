"""Kubelet's PodResources API: which pod holds which devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.core.devices.pod_devices import PodDevices
    from k8s_rdma.kube.pod_resources_client import PodResourcesClient


class PodResources(Protocol):
    """Answers come from kubelet's memory. K8sRdmaError (`KUBELET_FAILURE`) if no answer comes in time."""

    async def of_pod(self, namespace: str, name: str) -> PodDevices:
        """Read a pod's devices; K8sRdmaError also if kubelet does not know the pod, as after its start."""
        ...

    async def all(self) -> tuple[PodDevices, ...]:
        """Read the devices of all active pods."""
        ...

    async def allocatable(self) -> tuple[tuple[str, str], ...]:
        """Read resource and id of each healthy device, in use or not; empty if kubelet lacks that call."""
        ...

    async def close(self) -> None:
        """End the connection."""
        ...


class KubeletPodResources:
    """Kubelet's own, at its socket (`/var/lib/kubelet/pod-resources/kubelet.sock`).

    timeout_s: for each question, connecting and waiting for kubelet's rate limit included.
    gRPC is loaded, and kubelet connected to, by the first question.
    """

    def __init__(self, socket: Path, *, timeout_s: float) -> None:
        self._socket = socket
        self._timeout_s = timeout_s
        self._client: PodResourcesClient | None = None

    async def of_pod(self, namespace: str, name: str) -> PodDevices:
        """Implement `PodResources.of_pod`."""
        return await self._connected().of_pod(namespace, name)

    async def all(self) -> tuple[PodDevices, ...]:
        """Implement `PodResources.all`."""
        return await self._connected().all()

    async def allocatable(self) -> tuple[tuple[str, str], ...]:
        """Implement `PodResources.allocatable`."""
        return await self._connected().allocatable()

    async def close(self) -> None:
        """See `PodResources`; a later question connects again."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _connected(self) -> PodResourcesClient:
        if self._client is None:
            from k8s_rdma.kube.pod_resources_client import PodResourcesClient

            self._client = PodResourcesClient(self._socket, timeout_s=self._timeout_s)
        return self._client
