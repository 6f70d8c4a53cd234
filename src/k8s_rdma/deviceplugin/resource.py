"""One resource: its devices, kubelet's calls and their counts, its gRPC server and registration with kubelet.

Kubelet's ListAndWatch calls follow an observable value and wait for its changes.
"""

from __future__ import annotations

import asyncio
import socket
import stat
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import structlog

from k8s_rdma.config.devices import HUSTCAT_RESOURCE
from k8s_rdma.core.devices.pod_devices import (
    AllocateResponse,
    Choice,
    OfferedDevice,
    PluginOptions,
    PluginRegistration,
)
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.kube.grpc_calls import (
    AioRpcError,
    Handler,
    Server,
    add_service,
    address,
    call,
    connect,
    handler,
    new_server,
    stream_handler,
)
from k8s_rdma.wire import device_plugin as api
from k8s_rdma.wire.device_plugin import REGISTER
from k8s_rdma.wire.protobuf import Form, Method

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from k8s_rdma.core.devices.rdma_devices import DeviceInventory
    from k8s_rdma.deviceplugin.modes import Mode


if TYPE_CHECKING:
    Complete = Callable[[str, Choice], Awaitable[Choice]]

_log = structlog.get_logger()

SHOWN = 4
"""Devices whose reasons are listed; when a PF's fault makes many unhealthy, that is enough."""

_RAW: Form[bytes] = Form(encode=bytes, decode=bytes)
_LISTS: Method[None, bytes] = Method(
    service=api.LIST_AND_WATCH.service,
    name=api.LIST_AND_WATCH.name,
    request=api.LIST_AND_WATCH.request,
    answer=_RAW,
    streams=True,
)

T = TypeVar("T")
PREFIX = "k8s_rdma_device_plugin_"
"""The beginning of the names of metrics."""

KUBELET_SOCKET = "kubelet.sock"

TIMEOUT_S = 15.0
"""Kubelet itself tries to connect to a plugin for 10 s (Kubernetes 1.36,
`pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go`)."""

GRACE_S = 1.0
"""Time for the calls under way when an endpoint closes; they wait for kubelet only."""

MAX_PATH_BYTES = 107
"""`sun_path` without its NUL (unix(7))."""
_LONGEST_NAME = 60
_SUFFIX = ".sock"


class Resource:
    """Resource of a mode, with its last list of devices."""

    def __init__(self, mode: Mode, devices: InventorySource, complete: Complete) -> None:
        """Serve a mode. complete: adds to kubelet's request for a preference the devices that the pod has."""
        self.name = mode.resource
        self.counts = ResourceCounts()
        self.devices: tuple[OfferedDevice, ...] = ()
        self.message = api.LIST_AND_WATCH.answer.encode(())
        """Encoded list for kubelet, shared by all that follow it."""
        self.fault = _fault(self.devices)
        """Reason why no container can have any of it; empty when one can."""
        self._logged_fault = ""
        self._mode = mode
        self._devices = devices
        self._complete = complete
        self._options = PluginOptions(preferred_allocation=mode.prefers)

    def update(self) -> bool:
        """Compute the list from the current inventory; report whether it differs for kubelet."""
        devices = self._mode.offer(self._devices.inventory)
        if devices == self.devices:
            return False
        self.devices = devices
        self.fault = _fault(devices)
        message = api.LIST_AND_WATCH.answer.encode(devices)
        changed, self.message = message != self.message, message
        return changed

    @property
    def unhealthy(self) -> str:
        """Names of the unhealthy devices, and the reasons."""
        return _reasons(self.devices)

    def log_fault(self) -> None:
        """Log a fault, and its end, once."""
        if self.fault == self._logged_fault:
            return
        self._logged_fault = self.fault
        if self.fault:
            _log.warning("resource_unusable", resource=self.name, why=self.fault, devices=len(self.devices))
        else:
            _log.info("resource_usable", resource=self.name)

    def registration(self, endpoint: str) -> PluginRegistration:
        """Return the registration for kubelet, with a socket's name."""
        return PluginRegistration(resource=self.name, endpoint=endpoint, options=self._options)

    def handlers(self, followers: Followers) -> Handlers:
        """Return the handlers of kubelet's API for an endpoint."""
        return {
            api.GET_DEVICE_PLUGIN_OPTIONS: handler(api.GET_DEVICE_PLUGIN_OPTIONS, self._get_options),
            _LISTS: stream_handler(_LISTS, followers.follow),
            api.GET_PREFERRED_ALLOCATION: handler(api.GET_PREFERRED_ALLOCATION, self._prefer),
            api.ALLOCATE: handler(api.ALLOCATE, self._allocate),
            api.PRE_START_CONTAINER: handler(api.PRE_START_CONTAINER, self._pre_start),
        }

    async def _get_options(self, _request: None) -> PluginOptions:
        return self._options

    async def _prefer(self, choices: Sequence[Choice]) -> Sequence[tuple[str, ...]]:
        completed = [await self._complete(self.name, choice) for choice in choices]
        return [self._mode.prefer(choice, self._devices.inventory) for choice in completed]

    async def _allocate(self, containers: Sequence[tuple[str, ...]]) -> Sequence[AllocateResponse]:
        """Allocate for all containers, or refuse all: kubelet drops the whole response if one fails."""
        started = monotonic()
        inventory = self._devices.inventory
        try:
            allocations = [self._mode.allocate(ids, inventory) for ids in containers]
        except K8sRdmaError as error:
            self.counts.refusals[error.reason] += 1
            _log.warning("not_allocated", resource=self.name, devices=containers, error=error.message)
            raise
        self.counts.allocations += len(allocations)
        took_ms = (monotonic() - started) * 1000
        _log.info("allocated", resource=self.name, devices=containers, took_ms=round(took_ms, 3))
        return allocations

    async def _pre_start(self, _ids: tuple[str, ...]) -> None:
        """Answer without effect; the plugin's options do not ask kubelet to make this call."""


@dataclass(slots=True, kw_only=True)
class ResourceCounts:
    """Counts since the process started.

    allocations: containers that got devices.
    refusals: refused allocations, by reason.
    registrations: with kubelet, by whether it took them.
    """

    allocations: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    registrations: Counter[bool] = field(default_factory=Counter)


class InventorySource(Protocol):
    """A source of observed devices."""

    @property
    def inventory(self) -> DeviceInventory:
        """Return the current inventory."""
        ...


def _fault(devices: Sequence[OfferedDevice]) -> str:
    """Return the fault of all devices; counted devices share one."""
    if not devices:
        return "it has no devices: none is selected, or its count is 0"
    if not all(device.unhealthy for device in devices):
        return ""
    first = devices[0].unhealthy
    if all(device.unhealthy == first for device in devices):
        return first
    return _reasons(devices)


def _reasons(devices: Sequence[OfferedDevice]) -> str:
    """Summarize the faults of the unhealthy devices."""
    unhealthy = [device for device in devices if device.unhealthy]
    if not unhealthy:
        return ""
    reasons = [f"{device.id}: {device.unhealthy}" for device in unhealthy[:SHOWN]]
    if len(unhealthy) > SHOWN:
        reasons.append(f"and {len(unhealthy) - SHOWN} more")
    return f"{len(unhealthy)} of {len(devices)} devices are unhealthy: {'; '.join(reasons)}"


if TYPE_CHECKING:
    Handlers = dict[Method[Any, Any], Handler]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceEndpoint:
    """The gRPC server of a resource; another process's socket may have replaced its own.

    socket_file: the socket that it was opened with.
    """

    path: Path
    socket_file: SocketFile
    followers: Followers
    server: Server

    def exists(self) -> bool:
        """Report whether connections to the path arrive here."""
        return socket_at(self.path) == self.socket_file

    async def close(self) -> None:
        """Remove the socket, unless it is a successor's; finish the calls under way, and stop."""
        self.followers.end()
        if self.exists():
            self.path.unlink(missing_ok=True)
        await self.server.stop(GRACE_S)


async def open_endpoint(path: Path, handlers: Handlers, followers: Followers) -> ResourceEndpoint:
    """Serve at a path, in place of any socket there.

    The socket is created under a temporary name and then renamed. So clients cannot connect to it before it
    serves, and gRPC, which removes the path that it was given when it stops, does not remove a successor's.
    K8sRdmaError if it cannot serve.
    """
    temporary = _temporary_path(path)
    server = new_server()
    add_service(server, handlers)
    try:
        await _begin(server, temporary)
        identity = socket_at(temporary)
        temporary.rename(path)
    except (RuntimeError, OSError) as error:  # the former is gRPC's word for the latter
        await server.stop(None)
        why = error.strerror if isinstance(error, OSError) else _diagnose(path)
        raise K8sRdmaError(f"cannot serve at {path}: {why}") from error
    if identity is None or socket_at(path) != identity:
        await server.stop(None)
        raise K8sRdmaError(f"cannot serve at {path}: another process has just created it")
    return ResourceEndpoint(path=path, socket_file=identity, followers=followers, server=server)


async def _begin(server: Server, path: Path) -> None:
    """Start a server at a path, even if it cannot have the path: gRPC frees only started servers."""
    try:
        server.add_insecure_port(address(path))
    finally:
        await _start(server)


async def _start(server: Server) -> None:
    """Start a server completely, even when cancelled: a half-started one can be neither used nor stopped."""
    starting = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.gather(starting, return_exceptions=True)
        await server.stop(None)
        raise


def check_path(path: Path, key: str = "kubeletDir") -> None:
    """Check that the path is short enough for a socket; MalformedError, which names the key, if it is not."""
    temporary = _temporary_path(path)
    if (size := len(bytes(temporary))) > MAX_PATH_BYTES:
        msg = f"{key}: the socket {temporary} would have a path of {size} bytes, {MAX_PATH_BYTES} at most"
        raise MalformedError(msg)


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}")


def _diagnose(path: Path) -> str:
    """Find the reason for an error that gRPC writes to its own log only."""
    if not path.parent.is_dir():
        return f"there is no directory {path.parent}"
    return "the directory takes no socket; can this process write to it?"


class SocketFile(NamedTuple):
    """The identity of a socket among all that a path ever has; inodes are reused, with another time."""

    device: int
    inode: int
    made_ns: int


def socket_at(path: Path) -> SocketFile | None:
    """Return the socket at a path, if there is one."""
    try:
        found = path.lstat()
    except OSError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        return None
    return SocketFile(found.st_dev, found.st_ino, found.st_mtime_ns)


def is_served(path: Path) -> bool:
    """Report whether a process listens at a socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # it listens, and its queue is full
            return True
        except OSError:
            return False
        return True


def socket_name(resource: str) -> str:
    """Return the socket's name, unique for each resource.

    Hustcat's resource keeps the name of its own plugin.
    """
    if resource == HUSTCAT_RESOURCE:
        return f"rdma{_SUFFIX}"
    name = resource.replace("/", "_")
    if len(name) > _LONGEST_NAME - len(_SUFFIX):
        digest = sha256(resource.encode()).hexdigest()[:12]
        name = f"{name[: _LONGEST_NAME - len(_SUFFIX) - len(digest) - 1]}-{digest}"
    return f"{name}{_SUFFIX}"


async def register(kubelet: Path, registration: PluginRegistration) -> None:
    """Register with the kubelet at a socket. K8sRdmaError (`KUBELET_FAILURE`) when it refuses."""
    channel = connect(kubelet)
    try:
        await call(channel, REGISTER, registration, timeout_s=TIMEOUT_S)
    except AioRpcError as error:
        msg = f"kubelet at {kubelet}: {error.code().name}: {error.details()}"
        raise K8sRdmaError(msg, reason=Reason.KUBELET_FAILURE) from error
    finally:
        await channel.close()


class Followers:
    """Streams of the encoded device list.

    Each starts with the current list and gets every change until `end`.
    """

    def __init__(self, message: bytes, changed: Callable[[], None]) -> None:
        """Start without streams. changed: called when a stream begins or ends."""
        self._message = Observable[bytes | None](message)
        self._changed = changed
        self.count = 0

    def publish(self, message: bytes) -> None:
        """Send a new list."""
        self._message.publish(message)

    def end(self) -> None:
        """End all streams."""
        self._message.publish(None)

    async def follow(self, _request: None) -> AsyncGenerator[bytes, None]:
        """Yield the current list and every change."""
        self.count += 1
        self._changed()
        try:
            message = self._message.value
            while message is not None:
                yield message
                message = await self._message.wait_for_change(message)
        finally:
            self.count -= 1
            self._changed()


class Observable(Generic[T]):
    """A value that tasks wait on.

    A slow task misses values in between, never the last. For one event loop.
    """

    def __init__(self, value: T) -> None:
        self.value = value
        self._changed = asyncio.Event()

    def publish(self, value: T) -> None:
        """Set the value; an equal one wakes no task."""
        if value == self.value:
            return
        self.value = value
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self, previous: T) -> T:
        """Return the value once it is another object than `previous`."""
        while self.value is previous:
            await self._changed.wait()
        return self.value
