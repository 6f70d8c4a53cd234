"""`cdi.sock`: shared resources are published as long as the device plugin that declares them is connected."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.agent.calls import AgentCall
from k8s_rdma.agent.unix_sockets import read_lines
from k8s_rdma.errors import KernelError, MalformedError
from k8s_rdma.wire.cdi import MAX_LINE_BYTES, Declared, Written, decode_declared, encode_line

if TYPE_CHECKING:
    import socket

    from k8s_rdma.agent.cdi_specs import SharedResourceSpecs
    from k8s_rdma.agent.worker import Worker

_log = structlog.get_logger()


class CdiSocket:
    """Serves `cdi.sock`; each connection is a device plugin.

    When the agent itself stops, published specifications stay, since the next agent takes them over.
    """

    def __init__(self, shared: SharedResourceSpecs, worker: Worker) -> None:
        """shared: used by the worker alone."""
        self._shared = shared
        self._worker = worker

    async def talk(self, connection: socket.socket) -> None:
        """Serve one plugin until it hangs up or breaks the protocol."""
        plugin = object()
        try:
            async for line in read_lines(connection, MAX_LINE_BYTES):
                written = await self._declare(plugin, decode_declared(line))
                await asyncio.get_running_loop().sock_sendall(connection, encode_line(written))
        except MalformedError as error:
            _log.warning("shared_devices_refused", error=error.message)
        except OSError:
            pass  # it is gone
        try:
            await self._worker.run(self._shared.end, plugin)
        except KernelError as error:
            _log.warning("device_files_not_restored", error=error.message)

    async def _declare(self, plugin: object, declared: Declared) -> Written:
        """Publish what a plugin declares; each resource has a specification, or the reason why it has not."""
        return await AgentCall(
            name="shared_devices",
            perform=partial(self._worker.run, self._shared.declare, plugin, declared),
            failed=lambda error: Written(failed=dict.fromkeys(declared.resources, error.message)),
            logs_success=False,
        ).answer()
