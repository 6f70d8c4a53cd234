"""Follows the agent's `state.sock` (`wire.state`) for whoever reads it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import structlog

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.rest import decode_report
from k8s_rdma.wire.state import HEADER, Kind, decode_counters, decode_header, encode_message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path
    from typing import NoReturn

    from k8s_rdma.wire.rest import NodeReport
    from k8s_rdma.wire.state import Counters

_log = structlog.get_logger()

FIRST_REPORT_TIMEOUT_S = 10.0
"""An agent sends its report at once on connect; afterwards only when something changed."""

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 5.0


class StateReader(Protocol):
    """What is done with what the agent says."""

    def reported(self, report: NodeReport) -> None:
        """The node's state is this."""
        ...

    def connected(self, sample: Callable[[], None]) -> None:
        """The first report has come; `sample` asks for counters."""
        ...

    def counted(self, counters: Counters) -> None:
        """The answer to `sample`."""
        ...

    def disconnected(self) -> None:
        """No answer will come any more; also after an attempt that never was `connected`."""
        ...

    async def away(self, why: str) -> None:
        """An attempt to follow the agent ended; the next one begins later than this returns."""
        ...


async def follow_agent(
    socket: Path,
    reader: StateReader,
    *,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    first_report_timeout_s: float = FIRST_REPORT_TIMEOUT_S,
) -> NoReturn:
    """Have the reader told, again and again, until cancelled."""
    retry_s = FIRST_RETRY_S
    while True:
        link = _Link(socket, reader, first_report_timeout_s)
        try:
            await link.follow()
        except (OSError, EOFError, MalformedError) as error:
            why = _why(error)
            if link.connected:
                retry_s = FIRST_RETRY_S
                _log.warning("agent_lost", socket=str(socket), why=why)
            await reader.away(why)
        await pause(retry_s)
        retry_s = min(2 * retry_s, LAST_RETRY_S)


class _Link:
    """One connection."""

    def __init__(self, socket: Path, reader: StateReader, first_report_timeout_s: float) -> None:
        self._socket = socket
        self._reader = reader
        self._first_report_timeout_s = first_report_timeout_s
        self.connected = False

    async def follow(self) -> NoReturn:
        incoming, writer = await asyncio.open_unix_connection(self._socket)
        try:
            async with asyncio.timeout(self._first_report_timeout_s):
                await self._receive(incoming)
            self.connected = True
            _log.info("agent_connected", socket=str(self._socket))
            self._reader.connected(lambda: writer.write(encode_message(Kind.SAMPLE)))
            while True:
                await self._receive(incoming)
        finally:
            self._reader.disconnected()
            writer.close()

    async def _receive(self, incoming: asyncio.StreamReader) -> None:
        kind, length = decode_header(await incoming.readexactly(HEADER.size))
        body = await incoming.readexactly(length)
        if kind is Kind.COUNTERS:
            self._reader.counted(decode_counters(body))
        else:
            self._reader.reported(decode_report(body))


def _why(error: OSError | EOFError | MalformedError) -> str:
    match error:
        case MalformedError():
            return error.message
        case TimeoutError():
            return "it takes connections but sends no report"
        case OSError():
            return f"state.sock: {error.strerror or error}"
        case _:
            return "it closed the connection"
