"""A small HTTP/1.1 server: bounded requests, persistent connections, streamed replies.

h11, which uvicorn brings along, implements the protocol. uvicorn itself takes 200 ms to stop, and only
after the watches of all clients have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import h11

_READ_BYTES = 64 * 1024
_MAX_HEAD_BYTES = 64 * 1024
_PROTOCOL_ERROR = 400
_TOO_LARGE = 413


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request. headers: names in lower case; query: the last value of each name."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An answer: JSON unless said otherwise."""

    status: int
    body: bytes
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """An answer whose parts go out as they come, until they end or the client leaves."""

    parts: AsyncIterator[bytes]
    status: int = 200
    content_type: str = "application/json"


Handler: TypeAlias = Callable[[Request], Awaitable[Response | Stream]]
Refuse: TypeAlias = Callable[[int], Response]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpService:
    """The handler of requests. refuse: the response to an invalid request (400) or an oversized one (413)."""

    handle: Handler
    refuse: Refuse
    max_body_bytes: int = 3 * 1024 * 1024


class _TooLargeError(Exception):
    """The body is longer than the service takes."""


@asynccontextmanager
async def serving(service: HttpService, host: str, port: int) -> AsyncIterator[int]:
    """Serve until the block ends; gives the port, which the system chooses when `port` is 0.

    Connections that are open at the end are cut, after streams have been ended properly.
    """
    connections: set[asyncio.Task[None]] = set()
    faults: list[BaseException] = []
    stopping = False

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if stopping:
            writer.transport.abort()
            return
        task = asyncio.create_task(_Connection(service, reader, writer).serve())
        connections.add(task)
        task.add_done_callback(partial(ended, writer))

    def ended(writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        connections.discard(task)
        writer.transport.abort()  # a task that is cancelled before it began has not closed it
        if not task.cancelled() and (fault := task.exception()):
            faults.append(fault)

    server = await asyncio.start_server(accept, host, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        stopping = True
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
    if faults:
        raise faults[0]


class _Connection:
    """One client's connection."""

    def __init__(
        self, service: HttpService, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._service = service
        self._reader = reader
        self._writer = writer
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)

    async def serve(self) -> None:
        """Answer requests until the client leaves, breaks the protocol, or the server stops."""
        try:
            while await self._exchange():
                self._h11.start_next_cycle()
        except ConnectionError:
            return
        finally:
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()

    async def _exchange(self) -> bool:
        """Handle one request; return whether another may follow."""
        try:
            request = await self._read_request()
        except h11.RemoteProtocolError:
            await self._send(self._service.refuse(_PROTOCOL_ERROR))
            return False
        except _TooLargeError:
            await self._send(self._service.refuse(_TOO_LARGE))
            return False
        if request is None:
            return False
        answer = await self._service.handle(request)
        if isinstance(answer, Stream):
            if not await self._send_stream(answer):
                return False
        else:
            await self._send(answer)
        return self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

    async def _read_request(self) -> Request | None:
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                if self._h11.they_are_waiting_for_100_continue:
                    self._write(h11.InformationalResponse(status_code=100, headers=[]))
                self._h11.receive_data(await self._reader.read(_READ_BYTES))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > self._service.max_body_bytes:
                    raise _TooLargeError
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                return _request(head, bytes(body))
            else:  # the client closed the connection between requests
                return None

    async def _send(self, response: Response) -> None:
        if self._h11.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            return
        length = str(len(response.body))
        headers = [("Content-Type", response.content_type), ("Content-Length", length)]
        # One write: head and body apart would wait for each other (Nagle, delayed acknowledgement).
        self._write(
            h11.Response(status_code=response.status, headers=headers),
            h11.Data(data=response.body),
            h11.EndOfMessage(),
        )
        await self._writer.drain()

    async def _send_stream(self, stream: Stream) -> bool:
        """Send the stream; return whether it ended with the client still connected."""
        headers = [("Content-Type", stream.content_type), ("Transfer-Encoding", "chunked")]
        self._write(h11.Response(status_code=stream.status, headers=headers))
        try:
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._send_parts(stream))
                leaving = group.create_task(self._wait_for_disconnect())
                sending.add_done_callback(lambda _: leaving.cancel())
                leaving.add_done_callback(lambda _: sending.cancel())
        finally:
            # The end is said even when we are stopped, so that the client sees an end and not a break.
            if not self._writer.is_closing():
                self._write(h11.EndOfMessage())
        return leaving.cancelled()

    async def _send_parts(self, stream: Stream) -> None:
        with contextlib.suppress(ConnectionError):
            async for part in stream.parts:
                self._write(h11.Data(data=part))
                await self._writer.drain()

    async def _wait_for_disconnect(self) -> None:
        # A client that sends more before the answer has ended is cut off: no client pipelines requests here.
        with contextlib.suppress(ConnectionError):
            await self._reader.read(1)

    def _write(self, *events: h11.Event) -> None:
        self._writer.write(b"".join(self._h11.send(event) or b"" for event in events))


def _request(head: h11.Request, body: bytes) -> Request:
    url = urlsplit(head.target.decode("ascii"))
    return Request(
        method=head.method.decode("ascii"),
        path=unquote(url.path),
        query=dict(parse_qsl(url.query, keep_blank_values=True)),
        headers={name.decode("ascii"): value.decode("latin-1") for name, value in head.headers},
        body=body,
    )
