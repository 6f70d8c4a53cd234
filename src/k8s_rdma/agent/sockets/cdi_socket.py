"""`cdi.sock`: what the device plugin declares is published as long as it is there (`wire.shared_devices`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.errors import KernelError, MalformedError
from k8s_rdma.wire.shared_devices import MAX_LINE_BYTES, decode_declared, encode_line

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator

    from k8s_rdma.agent.shared_files import SharedFiles
    from k8s_rdma.agent.worker import Worker

_log = structlog.get_logger()

CHUNK_BYTES = 64 << 10


class CdiSocket:
    """Speaks the protocol; a connection is a plugin.

    When the agent itself stops, what is published stays, as the next one goes on with it.
    """

    def __init__(self, shared: SharedFiles, worker: Worker) -> None:
        """shared: used by the worker alone."""
        self._shared = shared
        self._worker = worker

    async def talk(self, connection: socket.socket) -> None:
        """Serve one plugin until it hangs up, or says what no plugin says."""
        plugin = object()
        try:
            async for line in _lines(connection):
                written = await self._worker.run(self._shared.declare, plugin, decode_declared(line))
                await asyncio.get_running_loop().sock_sendall(connection, encode_line(written))
        except MalformedError as error:
            _log.warning("shared_devices_refused", error=error.message)
        except OSError:
            pass  # it is gone
        try:
            await self._worker.run(self._shared.end, plugin)
        except KernelError as error:
            _log.warning("device_files_not_restored", error=error.message)


async def _lines(connection: socket.socket) -> AsyncIterator[bytes]:
    """Whole ones; MalformedError for one that is too long."""
    loop, data = asyncio.get_running_loop(), b""
    while chunk := await loop.sock_recv(connection, CHUNK_BYTES):
        data += chunk
        *lines, data = data.split(b"\n")
        for line in lines:
            yield line
        if len(data) > MAX_LINE_BYTES:
            msg = f"cdi.sock: a line of more than {MAX_LINE_BYTES} bytes"
            raise MalformedError(msg)
