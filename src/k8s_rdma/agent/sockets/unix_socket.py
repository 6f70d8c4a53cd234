"""Unix sockets with the permissions they shall have from the first moment."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError, MalformedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

ACCEPT_PAUSE_S = 0.1

LOST_CHECK_S = 2.0
"""How often a socket's path is looked at."""

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


async def lost(path: Path) -> None:
    """Return when nothing is at `path`, or not the same as now: it was removed, or covered by a mount."""
    made = _identity(path)
    while made and _identity(path) == made:  # noqa: ASYNC110  nobody tells of what a mount covers
        await asyncio.sleep(LOST_CHECK_S)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


async def serve_connections(
    listener: socket.socket, talk: Callable[[socket.socket], Awaitable[None]], *, most: int
) -> None:
    """Accept until cancelled, each connection in a task of its own that ends with this call.

    A connection that breaks ends alone; what `talk` raises otherwise ends everything, as a fault should.
    most: connections at a time; those beyond are closed, so that nobody can use up the descriptors.
    """
    loop = asyncio.get_running_loop()
    open_now = 0

    async def one(connection: socket.socket) -> None:
        nonlocal open_now
        open_now += 1
        try:
            with connection:
                await talk(connection)
        except (ConnectionError, TimeoutError):
            return
        finally:
            open_now -= 1

    async with asyncio.TaskGroup() as connections:
        while True:
            connection = await _accept(loop, listener)
            if open_now >= most:
                connection.close()
                continue
            connections.create_task(one(connection))
            await asyncio.sleep(0)  # let it count itself


async def _accept(loop: asyncio.AbstractEventLoop, listener: socket.socket) -> socket.socket:
    """The next connection; waits out a lack of descriptors."""
    while True:
        try:
            connection, _ = await loop.sock_accept(listener)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                raise
            await asyncio.sleep(ACCEPT_PAUSE_S)
        else:
            connection.setblocking(False)
            return connection
