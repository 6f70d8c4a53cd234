"""`state.sock`: the node's report to whoever listens, once on connect and again after every change.

Each message is a little-endian 32-bit length and a `NodeReport`. Whole reports rather than changes: a
reader can never be out of step, and a node's report is some tens of kilobytes at most.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

SEND_TIMEOUT_S = 10.0
"""A reader that takes longer for one report is cut off; it will connect again."""


class StatePublisher:
    """Sends the latest report to every reader; one that nobody reads is never made."""

    def __init__(self, render: Callable[[], bytes]) -> None:
        """render: makes the report of now."""
        self._render = render
        self._report: bytes | None = None
        self._published = 0
        self._change = asyncio.Condition()

    async def publish(self) -> None:
        """Tell that there is something new; readers that have not had the report before never will."""
        async with self._change:
            self._report = None
            self._published += 1
            self._change.notify_all()

    def _latest(self) -> bytes:
        if self._report is None:
            self._report = self._render()
        return self._report

    async def talk(self, connection: socket.socket) -> None:
        """Serve one reader until it hangs up (it never writes)."""
        loop = asyncio.get_running_loop()
        sending = asyncio.ensure_future(self._send_all(connection))
        hang_up = asyncio.ensure_future(loop.sock_recv(connection, 1))
        try:
            done, _ = await asyncio.wait((sending, hang_up), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (sending, hang_up):
                task.cancel()
            await asyncio.gather(sending, hang_up, return_exceptions=True)

    async def _send_all(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        sent = -1
        while True:
            async with self._change:
                while self._published == sent:
                    await self._change.wait()
                sent, report = self._published, self._latest()
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await loop.sock_sendall(connection, struct.pack("<I", len(report)) + report)
