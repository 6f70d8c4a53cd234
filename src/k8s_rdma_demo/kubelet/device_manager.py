"""Kubelet's device manager (plugins, devices allocated to containers) and its PodResources API v1.

Source: `pkg/kubelet/cm/devicemanager/manager.go`; calls and their order as recorded from kubelet 1.36;
`pkg/kubelet/apis/podresources/server_v1.go`, `pkg/kubelet/cm/container_manager.go` (one entry for each
device and NUMA node) and `pkg/kubelet/apis/grpc/ratelimit.go`.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import structlog

from k8s_rdma.core.devices.pod_devices import (
    AllocateResponse,
    ContainerDevices,
    OfferedDevice,
    PluginRegistration,
    PodDevices,
)
from k8s_rdma.kube import grpc_calls
from k8s_rdma.kube.grpc_calls import Handler, RefusedCallError, StatusCode
from k8s_rdma.wire.device_plugin import REGISTER
from k8s_rdma.wire.pod_resources import GET_ALLOCATABLE_RESOURCES, GET_METHOD, LIST, PodName
from k8s_rdma_demo.kubelet.admission import Admission, shuffled
from k8s_rdma_demo.kubelet.plugins import ListedDevices, PluginClient, PluginError, check_registration
from k8s_rdma_demo.kubelet.pods import CHECKPOINT, Capacity, ContainerKind, DeviceAllocations, DevicePod

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from k8s_rdma.wire.protobuf import Method

RequestT = TypeVar("RequestT")
Answer = TypeVar("Answer")
KUBELET_SOCKET = "kubelet.sock"
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """A rate limit of calls and its burst. Source: `pkg/kubelet/apis/podresources/constants.go`."""

    per_second: float = 100.0
    burst: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceManagerConfig:
    """The configuration of a device manager.

    plugin_dir: for the sockets of kubelet and plugins (`/var/lib/kubelet/device-plugins`).
    pod_resources: the socket of the PodResources API (`/var/lib/kubelet/pod-resources/kubelet.sock`).
    rate_limit: of that API, if it has one. get: whether it has Get, which older kubelets lack.
    stop_grace_s: how long devices of a plugin that is gone are counted as unhealthy ones.
    dial_timeout_s: how long a plugin that registers may take to serve.
    seed: of all orders that are drawn.
    """

    plugin_dir: Path
    pod_resources: Path
    rate_limit: RateLimit | None = field(default_factory=RateLimit)
    get: bool = True
    stop_grace_s: float = 300.0
    dial_timeout_s: float = 10.0
    seed: int | None = None


@asynccontextmanager
async def running_device_manager(config: DeviceManagerConfig) -> AsyncIterator[DeviceManager]:
    """Run a device manager until the block ends: then kubelet has stopped, plugins and pods go on.

    Entering again is kubelet's restart: sockets are deleted, the pods' allocations are read again, and no
    resource has any device until its plugin registers.
    """
    manager = DeviceManager(config)
    async with in_background(manager.run()):
        await manager.started.wait()
        yield manager


class DeviceManager:
    """A device manager; use it while `run` serves. registrations: all that succeeded, in order."""

    def __init__(self, config: DeviceManagerConfig) -> None:
        self.started = asyncio.Event()
        self.registrations: list[PluginRegistration] = []
        self._config = config
        self._allocations = DeviceAllocations()
        self._listed: dict[str, ListedDevices] = {}
        self._plugins: dict[str, PluginClient] = {}
        self._random = Random(config.seed)
        self._pods: dict[str, DevicePod] = {}
        self._changed = asyncio.Condition()
        self._group = asyncio.TaskGroup()
        self._admission = Admission(
            allocations=self._allocations,
            listed=self._listed,
            plugins=self._plugins,
            random=self._random,
            save=self._save,
        )

    async def run(self) -> NoReturn:
        """Serve until cancelled."""
        self._clear_directory()
        for resource in self._allocations.load(self._config.plugin_dir):
            self._listed[resource] = ListedDevices(stopped=self._now())
        registry = grpc_calls.new_server()
        grpc_calls.add_service(registry, {REGISTER: grpc_calls.handler(REGISTER, self._register)})
        registry.add_insecure_port(grpc_calls.address(self._config.plugin_dir / KUBELET_SOCKET))
        async with self._group as group, self._serving_pod_resources():
            await registry.start()
            try:
                self.started.set()
                await group.create_task(asyncio.Event().wait())
            finally:
                await self._disconnect_all()
                await registry.stop(None)
        raise AssertionError

    # Pods

    async def admit(self, pod: DevicePod, *, running: frozenset[str] = frozenset()) -> None:
        """Give a pod its devices, container by container; AdmissionError: kubelet rejects it.

        running: containers that a former kubelet started: they keep their devices, whichever plugin serves
            now.
        """
        self._pods[pod.uid] = pod
        try:
            await self._admission.admit(pod, running)
        except BaseException:
            await self.release(pod.uid)
            raise
        await self._notify()

    async def prepare(self, pod: DevicePod, container: str) -> AllocateResponse:
        """Return the runtime's additions to a container, before it starts; PreparationError."""
        return await self._admission.prepare(pod, pod.container(container))

    async def release(self, uid: str) -> None:
        """Free the devices of a pod that is not active any more."""
        self._pods.pop(uid, None)
        self._allocations.drop(uid)
        self._save()
        await self._notify()

    def allocated_devices(self, pod: DevicePod, container: str) -> dict[str, tuple[str, ...]]:
        """Return a container's devices, by resource."""
        return {
            name: allocation.ids
            for name, allocation in self._allocations.of_container(pod.uid, container).items()
        }

    # The node

    def capacity(self) -> dict[str, Capacity]:
        """Count the devices of each resource, as the node's status reports them."""
        for resource, listed in list(self._listed.items()):
            if listed.stopped is not None and self._now() - listed.stopped >= self._config.stop_grace_s:
                del self._listed[resource]
                self._save()
        return {
            resource: Capacity(
                capacity=len(listed.healthy) + len(listed.unhealthy), allocatable=len(listed.healthy)
            )
            for resource, listed in self._listed.items()
        }

    def devices(self, resource: str) -> tuple[OfferedDevice, ...]:
        """Return the devices that plugins listed last, those of stopped plugins included."""
        return tuple(self._listed[resource].devices.values()) if resource in self._listed else ()

    async def wait_for(self, condition: Callable[[], object]) -> None:
        """Return once a condition of plugins, devices and pods is true."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def changes(self) -> None:
        """Return at the next change."""
        async with self._changed:
            await self._changed.wait()

    # Plugins

    async def _register(self, registration: PluginRegistration) -> None:
        check_registration(registration)
        resource = registration.resource
        plugin = PluginClient(resource, self._config.plugin_dir / registration.endpoint)
        self._plugins[resource] = plugin
        try:
            await plugin.connect(timeout_s=self._config.dial_timeout_s)
        except PluginError as error:
            self._plugins.pop(resource, None)
            await plugin.close()
            raise RefusedCallError(StatusCode.UNKNOWN, error.message) from error
        self._listed.setdefault(resource, ListedDevices()).start(plugin.options)
        self.registrations.append(registration)
        self._group.create_task(self._follow(plugin))
        await self._notify()

    async def _follow(self, plugin: PluginClient) -> None:
        """Take the plugin's lists. Their end is that of whichever plugin is registered for the resource."""
        try:
            async for devices in plugin.lists():
                self._listed.setdefault(plugin.resource, ListedDevices()).update(devices)
                self._save()
                await self._notify()
        except PluginError as error:
            _log.info("device_plugin.lost", resource=plugin.resource, error=error.message)
        await plugin.close()
        if registered := self._plugins.pop(plugin.resource, None):
            await registered.close()
            self._listed[plugin.resource].stop(self._now())
            await self._notify()

    async def _disconnect_all(self) -> None:
        for plugin in self._plugins.values():
            await plugin.close()

    # The rest

    def _clear_directory(self) -> None:
        """Remove the sockets in the directory: when kubelet starts, all of them are stale."""
        directory = self._config.plugin_dir
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for path in directory.iterdir():
            if path.name != CHECKPOINT and stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink(missing_ok=True)

    def _save(self) -> None:
        healthy = {resource: listed.healthy for resource, listed in self._listed.items()}
        self._allocations.save(self._config.plugin_dir, healthy)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    @asynccontextmanager
    async def _serving_pod_resources(self) -> AsyncIterator[None]:
        server = PodResourcesServer(
            pods=self._pods,
            allocations=self._allocations,
            listed=self._listed,
            random=self._random,
            rate_limit=self._config.rate_limit,
        )
        async with server.serving(self._config.pod_resources, get=self._config.get):
            yield

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


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
    """The PodResources service. pods: by UID, from admission on; ended init containers are not listed."""

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

    def _limited(self, method: Method[RequestT, Answer], serve: Callable[[RequestT], Answer]) -> Handler:
        async def answer(request: RequestT) -> Answer:
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
        devices = [device for name in containers for device in self._container_devices(pod.uid, name)]
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


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run `work` beside the block and cancel it at the block's end.

    An exception of `work` ends the block and is raised by it; one of the block is raised unchanged.
    """
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            yield
            task.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
