"""A gRPC server at a socket in kubelet's directory, and its registration with kubelet.

Kubelet's ListAndWatch calls follow an observable value and wait for its changes.
"""

from __future__ import annotations

import asyncio
import socket
import stat
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from k8s_rdma.config.devices import HUSTCAT_RESOURCE
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.kube.grpc_calls import (
    AioRpcError,
    Handler,
    Server,
    add_service,
    address,
    call,
    connect,
    new_server,
)
from k8s_rdma.wire.kubelet import REGISTER

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from k8s_rdma.core.devices.device_plugin_api import PluginRegistration
    from k8s_rdma.wire.protobuf import Method

    Handlers = dict[Method[Any, Any], Handler]

T = TypeVar("T")
KUBELET_SOCKET = "kubelet.sock"

TIMEOUT_S = 15.0
"""Kubelet itself tries to connect to a plugin for 10 s (Kubernetes 1.36,
`pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go`)."""

GRACE_S = 1.0
"""Time for the calls under way when an endpoint closes; they wait for nothing but kubelet."""

MAX_PATH_BYTES = 107
"""`sun_path` without its NUL (unix(7))."""
_LONGEST_NAME = 60
_SUFFIX = ".sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
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


async def open_endpoint(path: Path, handlers: Handlers, followers: Followers) -> Endpoint:
    """Serve at a path, in place of any socket there.

    The socket is created under a temporary name and then renamed: nothing connects to it before it serves,
    and gRPC, which removes the path that it was given when it stops, does not remove a successor's socket.
    K8sRdmaError when it cannot serve.
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
    return Endpoint(path=path, socket_file=identity, followers=followers, server=server)


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


def check_path(path: Path) -> None:
    """Check that the path is short enough for a socket; MalformedError if it is not."""
    temporary = _temporary_path(path)
    if (size := len(bytes(temporary))) > MAX_PATH_BYTES:
        msg = (
            f"kubeletDir: the socket {temporary} would have a path of {size} bytes, {MAX_PATH_BYTES} at most"
        )
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
    """Return the socket at a path; None when there is none."""
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
