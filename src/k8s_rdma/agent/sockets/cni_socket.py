"""`cni.sock`: one call of the CNI executable a connection, with the pod's namespace as a descriptor."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.frame import Request, decode_request, encode_reply, request_bytes_missing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from k8s_rdma.wire.frame import Reply

    StillWaiting = Callable[[], bool]
    Handler = Callable[[Request, int | None, StillWaiting], Awaitable[Reply]]

RECEIVE_TIMEOUT_S = 5.0
"""The executable has read all of its input before it connects, so a frame arrives at once or not at all."""

CHUNK_BYTES = 256 << 10


class CniSocket:
    """Speaks the frame protocol; what a call means is the handler's business.

    The handler gets the namespace's descriptor (None when none came) and must not keep it: it is closed
    when the handler returns. It is also told how to ask whether the caller still waits: for one that has
    given up a DEL may have come and gone, so what an ADD gave it now would be nobody's.
    """

    def __init__(self, handler: Handler) -> None:
        """Hand every whole request to `handler`."""
        self._handler = handler

    async def talk(self, connection: socket.socket) -> None:
        """Serve one connection. A caller that goes away meanwhile does not stop what has begun."""
        with ExitStack() as descriptors:
            try:
                async with asyncio.timeout(RECEIVE_TIMEOUT_S):
                    request, netns = await _receive(connection, descriptors)
            except MalformedError:
                return  # not our executable: it gets no answer, and reports a cut-off reply if it was

            def still_waiting() -> bool:
                return not _given_up(connection, request)

            if not still_waiting():
                return
            reply = await self._handler(request, netns, still_waiting)
            await asyncio.get_running_loop().sock_sendall(connection, encode_reply(reply))


async def _receive(connection: socket.socket, descriptors: ExitStack) -> tuple[Request, int | None]:
    data = bytearray()
    netns = None
    while missing := request_bytes_missing(data):
        await _readable(connection)
        chunk, received, _, _ = socket.recv_fds(connection, min(missing, CHUNK_BYTES), 1)
        for descriptor in received:
            descriptors.callback(os.close, descriptor)
            netns = descriptor
        if not chunk:
            raise ConnectionResetError
        data += chunk
    return decode_request(data), netns


def _given_up(connection: socket.socket, request: Request) -> bool:
    """Whether the caller no longer waits: its deadline has passed, or it is gone."""
    if 0 < request.deadline_ms <= time.monotonic() * 1000:
        return True
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


async def _readable(connection: socket.socket) -> None:
    """Wait until there is something to read; asyncio has no call that receives descriptors."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
