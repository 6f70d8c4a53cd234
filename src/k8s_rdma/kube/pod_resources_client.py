"""A connection to kubelet's PodResources API."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import structlog

from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.kube import grpc_calls
from k8s_rdma.kube.grpc_calls import AioRpcError, StatusCode
from k8s_rdma.wire.pod_resources import GET_ALLOCATABLE_RESOURCES, GET_METHOD, LIST, PodName

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.core.devices.pod_devices import PodDevices
    from k8s_rdma.wire.protobuf import Method

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

_PASSING = frozenset({StatusCode.RESOURCE_EXHAUSTED, StatusCode.UNAVAILABLE})
"""Kubelet's rate limit (Kubernetes `pkg/kubelet/apis/podresources/constants.go`: 100/s); its restart."""

_NO_GET = frozenset({StatusCode.UNIMPLEMENTED, StatusCode.UNKNOWN, StatusCode.NOT_FOUND})
"""A kubelet without Get; one that has it switched off, or knows no such pod, says UNKNOWN to both."""

_PAUSE_S = 0.05

_log = structlog.get_logger()


class PodResourcesClient:
    """See `pod_resources.KubeletPodResources`, which makes one of these when it is first asked."""

    def __init__(self, socket: Path, *, timeout_s: float) -> None:
        self._socket = socket
        self._timeout_s = timeout_s
        self._channel = grpc_calls.connect(socket)
        self._implements_allocatable = True

    async def of_pod(self, namespace: str, name: str) -> PodDevices:
        """Read a pod's devices, by List if Get has no answer.

        A pod that kubelet does not know may hold devices. After its start kubelet knows no pods until the API
        server has sent them, and an ADD that was begun for the former kubelet goes on (CRI-O 1.36,
        `server/sandbox_run_linux.go`; containerd breaks it off). The call does not wait for it, because CRI-O
        keeps the new kubelet's own request waiting as long as that ADD lasts, and minutes beyond.
        """
        deadline = self._deadline()
        try:
            return await self._call(GET_METHOD, PodName(namespace=namespace, name=name), deadline)
        except AioRpcError as error:
            if error.code() not in _NO_GET:
                raise self._failure(GET_METHOD, error.details()) from error
        for pod in await self._list(deadline):
            if (pod.namespace, pod.name) == (namespace, name):
                return pod
        msg = f"kubelet at {self._socket} knows no pod {namespace}/{name}; try again when it does"
        raise K8sRdmaError(msg, reason=Reason.KUBELET_FAILURE)

    async def all(self) -> tuple[PodDevices, ...]:
        """Read the devices of all active pods."""
        return await self._list(self._deadline())

    async def allocatable(self) -> tuple[tuple[str, str], ...]:
        """Read resource and id of each healthy device; empty for a kubelet before 1.21, which lacks the call.

        Kubelet names a device once for each of its NUMA nodes, in another order each time.
        """
        try:
            devices = await self._call(GET_ALLOCATABLE_RESOURCES, None, self._deadline())
        except AioRpcError as error:
            if error.code() is not StatusCode.UNIMPLEMENTED:
                raise self._failure(GET_ALLOCATABLE_RESOURCES, error.details()) from error
            if self._implements_allocatable:
                _log.warning("allocatable_devices_unknown", socket=str(self._socket), error=error.details())
            self._implements_allocatable = False
            return ()
        pairs = ((entry.resource, device_id) for entry in devices for device_id in entry.ids)
        return tuple(dict.fromkeys(pairs))

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout_s

    async def _list(self, deadline: float) -> tuple[PodDevices, ...]:
        try:
            pods = await self._call(LIST, None, deadline)
        except AioRpcError as error:
            raise self._failure(LIST, error.details()) from error
        return tuple(pods)

    async def _call(self, method: Method[Asked, Answer], request: Asked, deadline: float) -> Answer:
        """Ask until kubelet answers other than that it cannot now; its last word when the time is over."""
        now = asyncio.get_running_loop().time
        refused: AioRpcError | None = None
        while True:
            try:
                return await grpc_calls.call(
                    self._channel, method, request, timeout_s=max(0.0, deadline - now())
                )
            except AioRpcError as error:
                if refused is not None and error.code() is StatusCode.DEADLINE_EXCEEDED:
                    raise refused from error
                if error.code() not in _PASSING or now() + _PAUSE_S >= deadline:
                    raise
                refused = error
            except MalformedError as error:
                raise self._failure(method, error.message) from error
            await asyncio.sleep(_PAUSE_S)

    def _failure(self, method: Method[Asked, Answer], why: str | None) -> K8sRdmaError:
        return K8sRdmaError(
            f"kubelet at {self._socket} does not say what pods hold: {method.name}: {why or 'no reason'}",
            reason=Reason.KUBELET_FAILURE,
        )
