"""Unix sockets with the permissions they shall have from the first moment."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections import Counter
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError, MalformedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

ACCEPT_PAUSE_S = 0.1

LOST_CHECK_S = 2.0
"""How often a socket's path is looked at."""

_CREDENTIALS = struct.Struct("=iII")
"""`struct ucred` (unix(7)): process, user, group."""

MAX_PATH_BYTES = 107
"""`sun_path` without its NUL (unix(7))."""


def listen_unix(path: Path, mode: int, group: int | None = None) -> socket.socket:
    """Listen at `path`, replacing what a predecessor left; nobody can connect before `mode` holds.

    group: whose the socket is; by default the process's own.
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
        _give_to(path, group)
        path.chmod(mode)
        listener.listen(128)
    except K8sRdmaError:
        listener.close()
        raise
    except OSError as error:
        listener.close()
        msg = f"cannot listen at {path}: {error.strerror}"
        raise K8sRdmaError(msg) from error
    listener.setblocking(False)
    return listener


def _give_to(path: Path, group: int | None) -> None:
    """K8sRdmaError where the process neither is in that group nor may give files away (chown(2))."""
    if group is None:
        return
    try:
        os.chown(path, -1, group)
    except OSError as error:
        msg = (
            f"stateGroup: {path} cannot be given to group {group}: {error.strerror}; the agent needs to be a "
            "member of that group (supplementalGroups of its pod)"
        )
        raise K8sRdmaError(msg) from error


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
    listener: socket.socket,
    talk: Callable[[socket.socket], Awaitable[None]],
    *,
    most: int,
    most_of_user: int | None = None,
) -> None:
    """Accept until cancelled, each connection in a task of its own that ends with this call.

    A connection that breaks ends alone; what `talk` raises otherwise ends everything, as a fault should.
    most: connections at a time; those beyond are closed, so that nobody can use up the descriptors.
    most_of_user: of them one user's, so that nobody takes the places of others; by default all.
    """
    loop = asyncio.get_running_loop()
    open_now: Counter[int] = Counter()

    async def one(connection: socket.socket, user: int) -> None:
        try:
            with connection:
                await talk(connection)
        except (ConnectionError, TimeoutError):
            return
        finally:
            open_now[user] -= 1
            if not open_now[user]:
                del open_now[user]

    async with asyncio.TaskGroup() as connections:
        while True:
            connection = await _accept(loop, listener)
            user = _user(connection)
            if open_now.total() >= most or open_now[user] >= (most_of_user or most):
                connection.close()
                continue
            open_now[user] += 1
            connections.create_task(one(connection, user))


def _user(connection: socket.socket) -> int:
    """The ID of the user that connected, as this process's user namespace has it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return int(user)


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
