"""`state.sock`: the node's report to whoever listens, once on connect and again after every change.

Each message is a little-endian 32-bit length and a `NodeReport`. Whole reports rather than changes: a
reader can never be out of step, and a node's report is some tens of kilobytes at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SEND_TIMEOUT_S = 10.0
"""A reader that takes longer for one report is cut off; it will connect again."""


class StatePublisher:
    """Holds the latest report and sends it to every reader."""

    def __init__(self, report: bytes) -> None:
        """Start with this report."""
        self._report = report
        self._published = 0
        self._change = asyncio.Condition()

    async def publish(self, report: bytes) -> None:
        """Replace the report; readers that have not yet had the one before never will."""
        async with self._change:
            self._report = report
            self._published += 1
            self._change.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gone = asyncio.ensure_future(reader.read())  # the reader never writes: ends when it hangs up
        sending = asyncio.ensure_future(self._send_all(writer))
        try:
            await asyncio.wait((gone, sending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, sending):
                task.cancel()
            await asyncio.gather(gone, sending, return_exceptions=True)
            writer.close()

    async def _send_all(self, writer: asyncio.StreamWriter) -> None:
        sent = -1
        while True:
            async with self._change:
                await self._change.wait_for(lambda: self._published != sent)
                sent, report = self._published, self._report
            writer.write(struct.pack("<I", len(report)) + report)
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await writer.drain()

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Serve on a Unix socket at `path`, readable by everyone: it tells nothing that `/v1/node` does not."""
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, path)
        path.chmod(0o666)
        try:
            yield
        finally:
            server.close()
            path.unlink(missing_ok=True)
