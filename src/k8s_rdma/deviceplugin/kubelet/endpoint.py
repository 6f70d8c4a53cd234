"""A gRPC server at a socket in kubelet's directory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k8s_rdma.config.devices import HUSTCAT_RESOURCE
from k8s_rdma.deviceplugin.kubelet.followers import Followers
from k8s_rdma.deviceplugin.kubelet.sockets import SocketFile, socket_at
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.kube.grpc_calls import Server, add_service, address, new_server

if TYPE_CHECKING:
    from k8s_rdma.kube.grpc_calls import Handler
    from k8s_rdma.wire.protobuf import Method

    Handlers = dict[Method[Any, Any], Handler]

GRACE_S = 1.0
"""For calls under way when an endpoint is closed; they wait for nobody but kubelet."""

MAX_PATH_BYTES = 107
"""`sun_path` without its NUL (unix(7))."""

_LONGEST_NAME = 60
_SUFFIX = ".sock"


def socket_name(resource: str) -> str:
    """No two resources have the same; hustcat's has the name that it always had."""
    if resource == HUSTCAT_RESOURCE:
        return f"rdma{_SUFFIX}"
    name = resource.replace("/", "_")
    if len(name) > _LONGEST_NAME - len(_SUFFIX):
        digest = sha256(resource.encode()).hexdigest()[:12]
        name = f"{name[: _LONGEST_NAME - len(_SUFFIX) - len(digest) - 1]}-{digest}"
    return f"{name}{_SUFFIX}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What serves a resource; it may be at its path no more.

    made: the socket that it was opened with.
    """

    path: Path
    made: SocketFile
    followers: Followers
    server: Server

    def is_there(self) -> bool:
        """Whether who connects to the path comes here."""
        return socket_at(self.path) == self.made

    async def close(self) -> None:
        """Remove the socket, unless it is a successor's; answer what is under way, and end."""
        self.followers.end()
        if self.is_there():
            self.path.unlink(missing_ok=True)
        await self.server.stop(GRACE_S)


async def open_endpoint(path: Path, handlers: Handlers, followers: Followers) -> Endpoint:
    """Serve at a path, in place of whatever socket is there.

    It is made under another name and then moved: nobody finds it before it serves, and gRPC, which removes
    the path that it was given when it ends, removes no successor's. K8sRdmaError when there can be none.
    """
    made_at = _unseen(path)
    server = new_server()
    add_service(server, handlers)
    try:
        await _begin(server, made_at)
        made = socket_at(made_at)
        made_at.rename(path)
    except (RuntimeError, OSError) as error:  # the former is gRPC's word for the latter
        await server.stop(None)
        why = error.strerror if isinstance(error, OSError) else _why_not(path)
        raise K8sRdmaError(f"cannot serve at {path}: {why}") from error
    if made is None or socket_at(path) != made:
        await server.stop(None)
        raise K8sRdmaError(f"cannot serve at {path}: somebody else has just made it")
    return Endpoint(path=path, made=made, followers=followers, server=server)


async def _begin(server: Server, at: Path) -> None:
    """Also without a socket, where there can be none: gRPC frees no server that never began."""
    try:
        server.add_insecure_port(address(at))
    finally:
        await _start(server)


async def _start(server: Server) -> None:
    """As a whole, also when cancelled: one that has half begun can neither be used nor ended."""
    starting = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.gather(starting, return_exceptions=True)
        await server.stop(None)
        raise


def check_path(path: Path) -> None:
    """MalformedError when no socket can have such a long one."""
    longest = _unseen(path)
    if (size := len(bytes(longest))) > MAX_PATH_BYTES:
        msg = f"kubeletDir: the socket {longest} would have a path of {size} bytes, {MAX_PATH_BYTES} at most"
        raise MalformedError(msg)


def _unseen(path: Path) -> Path:
    return path.with_name(f".{path.name}")


def _why_not(path: Path) -> str:
    """What gRPC says to its own log alone."""
    if not path.parent.is_dir():
        return f"there is no directory {path.parent}"
    return "the directory takes no socket; may this process write to it?"
