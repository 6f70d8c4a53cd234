"""Unix sockets with the permissions they shall have from the first moment."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError, MalformedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

MAX_PATH_BYTES = 107
"""`sun_path` without its NUL (unix(7))."""


def listen_unix(path: Path, mode: int) -> socket.socket:
    """Listen at `path`, replacing what a predecessor left; nobody can connect before `mode` holds.

    MalformedError when the path is longer than a socket's may be, K8sRdmaError when there can be no socket.
    """
    if len(bytes(path)) > MAX_PATH_BYTES:
        size = len(bytes(path))
        msg = f"runDir: the socket {path} would have a path of {size} bytes, {MAX_PATH_BYTES} at most"
        raise MalformedError(msg)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(128)
    except OSError as error:
        listener.close()
        msg = f"cannot listen at {path}: {error.strerror}"
        raise K8sRdmaError(msg) from error
    listener.setblocking(False)
    return listener


async def serve_connections(
    listener: socket.socket, talk: Callable[[socket.socket], Awaitable[None]]
) -> None:
    """Accept until cancelled, each connection in a task of its own that ends with this call.

    A connection that breaks ends alone; what `talk` raises otherwise ends everything, as a fault should.
    """
    loop = asyncio.get_running_loop()

    async def one(connection: socket.socket) -> None:
        with connection:
            try:
                await talk(connection)
            except (ConnectionError, TimeoutError):
                return

    async with asyncio.TaskGroup() as connections:
        while True:
            connection, _ = await loop.sock_accept(listener)
            connection.setblocking(False)
            connections.create_task(one(connection))
