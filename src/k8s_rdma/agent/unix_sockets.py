"""Unix sockets of the agent, with their permissions from the first moment, and `cni.sock`.

On `cni.sock` a connection is one call of the CNI executable, with the pod's namespace as a descriptor.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.wire.cni_socket import Reply, SocketRequest, decode_request, encode_reply, request_bytes_missing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


StillWaiting = Callable[[], bool]
Handler = Callable[[SocketRequest, int | None, StillWaiting], Awaitable[Reply]]


RECEIVE_TIMEOUT_S = 5.0
"""The longest time for a frame: the executable reads all of its input before it connects."""

CHUNK_BYTES = 256 << 10
LINE_CHUNK_BYTES = 64 << 10
ACCEPT_PAUSE_S = 0.1

LOST_CHECK_S = 5.0
"""The interval of checks of a socket's path."""

MAX_PATH_BYTES = 107
"""The size of `sun_path` without its NUL (unix(7))."""

_CREDENTIALS = struct.Struct("=iII")
"""The layout of `struct ucred` (unix(7)): process, user, group."""


class CniSocket:
    """Serves `cni.sock`: decodes frames, and passes each call to the handler.

    The handler gets the namespace's descriptor, or None if the caller sent no descriptor. It must not keep
    it, because it is closed when the handler returns. It also gets a function that reports whether the caller
    still waits: for one that has given up, the DEL may already be over, and interfaces of a later ADD would
    leak.
    """

    def __init__(self, handler: Handler) -> None:
        """Hand every whole request to `handler`."""
        self._handler = handler

    async def talk(self, connection: socket.socket) -> None:
        """Serve one connection. A caller that hangs up does not stop a call that has begun."""
        with ExitStack() as descriptors:
            try:
                async with asyncio.timeout(RECEIVE_TIMEOUT_S):
                    request, netns = await _receive(connection, descriptors)
            except MalformedError:
                return  # not our executable: it gets no answer, and reports a cut-off reply if it was

            def still_waiting() -> bool:
                return not _is_abandoned(connection, request)

            if not still_waiting():
                return
            reply = await self._handler(request, netns, still_waiting)
            await asyncio.get_running_loop().sock_sendall(connection, encode_reply(reply))


def listen_unix(path: Path, mode: int, group: int | None = None) -> socket.socket:
    """Listen at `path`, in place of a predecessor's socket; no process can connect before `mode` applies.

    group: the socket's group; by default the process's own.
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
        _set_group(path, group)
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


async def serve_connections(
    listener: socket.socket,
    talk: Callable[[socket.socket], Awaitable[None]],
    *,
    limit: int,
    most_of_user: int | None = None,
) -> None:
    """Accept until cancelled, each connection in a task of its own that ends with this call.

    A broken connection ends alone; any other error of `talk` ends everything, as a fault should.
    limit: connections at a time; further ones are closed, so that clients cannot use up the descriptors.
    most_of_user: connections of one user, so that no user takes the places of others; by default `limit`.
    """
    open_now: Counter[int] = Counter()

    async def serve_one(connection: socket.socket) -> None:
        with suppress(ConnectionError, TimeoutError):
            await talk(connection)

    def end(connection: socket.socket, user: int, _task: asyncio.Task[None]) -> None:
        connection.close()
        open_now[user] -= 1
        if not open_now[user]:
            del open_now[user]

    async with asyncio.TaskGroup() as connections:
        while True:
            connection = await _accept(listener)
            user = _user(connection)
            if open_now.total() >= limit or open_now[user] >= (most_of_user or limit):
                connection.close()
                continue
            open_now[user] += 1
            task = connections.create_task(serve_one(connection))
            # A task that is cancelled before its first step does not close the connection.
            task.add_done_callback(partial(end, connection, user))


async def wait_until_removed(path: Path) -> None:
    """Wait until the file at `path` was removed, replaced, or covered by a mount."""
    identity = _identity(path)
    while identity and _identity(path) == identity:  # noqa: ASYNC110  a mount over the file makes no event
        await asyncio.sleep(LOST_CHECK_S)


async def _receive(connection: socket.socket, descriptors: ExitStack) -> tuple[SocketRequest, int | None]:
    data = bytearray()
    netns = None
    while missing := request_bytes_missing(data):
        try:
            chunk, received, _, _ = socket.recv_fds(connection, min(missing, CHUNK_BYTES), 1)
        except BlockingIOError:
            await _readable(connection)
            continue
        for descriptor in received:
            descriptors.callback(os.close, descriptor)
            netns = descriptor
        if not chunk:
            raise ConnectionResetError
        data += chunk
    return decode_request(data), netns


def _is_abandoned(connection: socket.socket, request: SocketRequest) -> bool:
    """Report whether the caller no longer waits: its deadline has passed, or it hung up."""
    return 0 < request.deadline_ms <= time.monotonic() * 1000 or is_hung_up(connection)


def is_hung_up(connection: socket.socket) -> bool:
    """Report whether the peer of a connection, from which no more is to come, has closed it."""
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


async def _readable(connection: socket.socket) -> None:
    """Wait until there is something to read, or to accept; asyncio has no call that receives descriptors.

    The loop gets the descriptor's number: for a socket object that it does not know, Python 3.11 makes the
    text of an error each time, with four system calls (`_SelectorMapping`, Lib/selectors.py).
    """
    loop, descriptor = asyncio.get_running_loop(), connection.fileno()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def read_lines(connection: socket.socket, limit: int) -> AsyncGenerator[bytes, None]:
    """Receive whole lines; MalformedError for one of more than `limit` bytes."""
    loop, data = asyncio.get_running_loop(), b""
    while chunk := await loop.sock_recv(connection, LINE_CHUNK_BYTES):
        data += chunk
        *lines, data = data.split(b"\n")
        for line in lines:
            yield line
        if len(data) > limit:
            msg = f"a line of more than {limit} bytes"
            raise MalformedError(msg)


def _set_group(path: Path, group: int | None) -> None:
    """Set the group of a file; K8sRdmaError if the process may not do that (chown(2))."""
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


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


async def _accept(listener: socket.socket) -> socket.socket:
    """Accept the next connection; wait while there are no free descriptors.

    Once it is accepted, there is no await: `sock_accept` loses a connection if it is cancelled then.
    """
    while True:
        await _readable(listener)
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                raise
            await asyncio.sleep(ACCEPT_PAUSE_S)
        else:
            connection.setblocking(False)
            return connection


def _user(connection: socket.socket) -> int:
    """Read the ID of the connected user, in this process's user namespace."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return int(user)
