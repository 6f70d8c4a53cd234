"""Kubelet's PodResources API v1.

Source: `pkg/kubelet/apis/podresources/server_v1.go`, `pkg/kubelet/cm/container_manager.go` (one entry for
each device and NUMA node) and `pkg/kubelet/apis/grpc/ratelimit.go`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from k8s_rdma.core.devices.pod_devices import ContainerDevices, PodDevices
from k8s_rdma.kube import grpc_calls
from k8s_rdma.kube.grpc_calls import Handler, RefusedCallError, StatusCode
from k8s_rdma.wire.pod_resources import GET_ALLOCATABLE_RESOURCES, GET_METHOD, LIST, PodName
from k8s_rdma_demo.kubelet.admission import shuffled
from k8s_rdma_demo.kubelet.plugins import ListedDevices
from k8s_rdma_demo.kubelet.pods import ContainerKind, DeviceAllocations, DevicePod

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.wire.protobuf import Method

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """A rate limit of calls and its burst. Source: `pkg/kubelet/apis/podresources/constants.go`."""

    per_second: float = 100.0
    burst: int = 10


class TokenBucket:
    """Lets through as many as a limit allows, by the loop's clock."""

    def __init__(self, limit: RateLimit) -> None:
        self._limit = limit
        self._tokens = float(limit.burst)
        self._filled_at = asyncio.get_running_loop().time()

    def try_acquire(self) -> bool:
        """Take a token if there is one; return whether the call may pass."""
        now = asyncio.get_running_loop().time()
        grown = self._tokens + (now - self._filled_at) * self._limit.per_second
        self._tokens, self._filled_at = min(float(self._limit.burst), grown), now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


@dataclass(slots=True, kw_only=True)
class PodResourcesServer:
    """pods: by UID, those that are admitted or about to be. Init containers that end are never told of."""

    pods: Mapping[str, DevicePod]
    allocations: DeviceAllocations
    listed: Mapping[str, ListedDevices]
    random: Random
    rate_limit: RateLimit | None
    _bucket: TokenBucket | None = field(default=None, init=False)

    @asynccontextmanager
    async def serving(self, socket: Path, *, get: bool) -> AsyncIterator[None]:
        """Answer at a socket until the block ends. get: whether Get is among the methods."""
        self._bucket = TokenBucket(self.rate_limit) if self.rate_limit is not None else None
        _clear(socket)
        server = grpc_calls.new_server()
        handlers: dict[Method[Any, Any], Handler] = {
            LIST: self._limited(LIST, self._list),
            GET_ALLOCATABLE_RESOURCES: self._limited(GET_ALLOCATABLE_RESOURCES, self._allocatable),
        }
        if get:
            handlers[GET_METHOD] = self._limited(GET_METHOD, self._get_pod)
        grpc_calls.add_service(server, handlers)
        server.add_insecure_port(grpc_calls.address(socket))
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)

    def _limited(self, method: Method[Asked, Answer], serve: Callable[[Asked], Answer]) -> Handler:
        async def answer(request: Asked) -> Answer:
            if self._bucket is not None and not self._bucket.try_acquire():
                raise RefusedCallError(StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            return serve(request)

        return grpc_calls.handler(method, answer)

    def _list(self, _: None) -> Sequence[PodDevices]:
        return tuple(self._pod_devices(pod) for pod in self.pods.values())

    def _get_pod(self, request: PodName) -> PodDevices:
        for pod in self.pods.values():
            if (pod.namespace, pod.name) == request:
                return self._pod_devices(pod)
        message = f"pod {request.name} in namespace {request.namespace} not found"
        raise RefusedCallError(StatusCode.UNKNOWN, message)

    def _allocatable(self, _: None) -> Sequence[ContainerDevices]:
        return tuple(
            ContainerDevices(container="", resource=resource, ids=(device,), numa_nodes=nodes)
            for resource, listed in self.listed.items()
            for device in shuffled(listed.healthy, self.random)
            for nodes in _separately(listed.devices[device].numa_nodes)
        )

    def _pod_devices(self, pod: DevicePod) -> PodDevices:
        containers = [entry.name for entry in pod.containers if entry.kind is not ContainerKind.INIT]
        devices = [each for name in containers for each in self._container_devices(pod.uid, name)]
        return PodDevices(namespace=pod.namespace, name=pod.name, devices=tuple(devices))

    def _container_devices(self, uid: str, container: str) -> list[ContainerDevices]:
        entries = [
            ContainerDevices(
                container=container, resource=resource, ids=(device,), numa_nodes=(node,) if node >= 0 else ()
            )
            for resource, allocation in self.allocations.of_container(uid, container).items()
            for node, ids in allocation.numa.items()
            for device in ids
        ]
        self.random.shuffle(entries)
        return entries


def _separately(numa_nodes: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
    return [(node,) for node in numa_nodes] or [()]


def _clear(socket: Path) -> None:
    socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
