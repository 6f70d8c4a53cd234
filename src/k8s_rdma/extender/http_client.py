"""GET and POST over one kept-alive connection: what asking a thousand nodes at once needs, and no more.

A general client costs more than the answer: side by side (`bench/test_extender.py`), 1,000 nodes over open
connections take 0.06 to 0.2 s here, and several seconds through httpx, whose pool looks at every
connection for every request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import httptools

MAX_ANSWER = 8 * 1024 * 1024
"""Bytes of an answer with its head. A report of 8 PFs with 128 pods each is about 1 MiB."""

_MAX_ETAG = 256
"""Characters of an ETag that is kept: each of the next questions has it twice."""


class HttpGetError(OSError):
    """The peer does not speak HTTP, answers too much, or closed the connection before its answer's end."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response; `etag` as sent, quotes included."""

    status: int
    etag: str | None
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The TLS context that verifies servers, and the credentials that are shown to them.

    tls: the context for the next connection; None for plain HTTP. server_name: whose certificate is expected;
    None for that of the address which is asked. token: sent as bearer token with every question.
    """

    tls: Callable[[], ssl.SSLContext] | None = None
    server_name: str | None = None
    token: Callable[[], str] | None = None


PLAIN = Security()


class _Exchange(asyncio.Protocol):
    """A connection with one request at a time. Callbacks are httptools' own (llhttp)."""

    def __init__(self) -> None:
        self.reusable = True
        self.answered_nothing = True
        self.received = 0
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._answer: asyncio.Future[HttpResponse] | None = None
        self._etag: str | None = None
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it

    async def get(self, request: bytes) -> HttpResponse:
        self._answer = asyncio.get_running_loop().create_future()
        self._etag, self._body, self.received, self.answered_nothing = None, bytearray(), 0, True
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        self.reusable = False
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self.answered_nothing = False
        if self._answer is None or self._answer.done():
            self._fail("speaks without being asked")
            return
        self.received += len(data)
        if self.received > MAX_ANSWER:  # the parser would keep an endless field, as well as a body
            self._fail(f"answers more than {MAX_ANSWER} bytes")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("goes on in another protocol")
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"connection lost before the answer's end: {exc or 'closed by the peer'}")

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # a second answer would be taken for that of the next question

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"etag" and len(value) <= _MAX_ETAG:
            self._etag = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        self.reusable = self.reusable and self._parser.should_keep_alive()
        if self._answer and not self._answer.done():
            self._answer.set_result(HttpResponse(status, self._etag, bytes(self._body)))

    def _fail(self, why: str) -> None:
        self.close()
        if self._answer and not self._answer.done():
            self._answer.set_exception(HttpGetError(why))


class HttpPeer:
    """A server at one address; one question at a time, over a connection that is kept.

    received: bytes of answers, heads and broken ones included.
    """

    def __init__(self, host: str, port: int, security: Security = PLAIN) -> None:
        self.received = 0
        self.host = host
        self.port = port
        self._security = security
        shown = f"[{host}]" if ":" in host else host
        self._head = f"Host: {shown}:{port}\r\nAccept: application/json\r\n"
        self._exchange: _Exchange | None = None

    async def get(self, path: str, *, etag: str | None = None) -> HttpResponse:
        """Ask for a path, on condition that it is not `etag` any more (RFC 9110, 13.1.2).

        OSError when there is no answer. A kept connection that the peer has closed meanwhile is made anew,
        once. Cancelling the question closes the connection.
        """
        return await self._request(f"GET {path}", f"If-None-Match: {etag}\r\n" if etag else "")

    async def post(self, path: str, body: bytes) -> HttpResponse:
        """Send a body, which may arrive twice if a kept connection was closed. OSError as `get`."""
        fields = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return await self._request(f"POST {path}", fields, body)

    async def _request(self, line: str, fields: str, body: bytes = b"") -> HttpResponse:
        token = self._security.token
        bearer = f"Authorization: Bearer {token()}\r\n" if token else ""
        request = f"{line} HTTP/1.1\r\n{self._head}{bearer}{fields}\r\n".encode("latin-1") + body
        exchange = self._exchange
        if exchange is not None and exchange.reusable:
            try:
                return await self._send(exchange, request)
            except HttpGetError:
                if not exchange.answered_nothing:
                    raise
        return await self._send(await self._connect(), request)

    def close(self) -> None:
        """Close the connection."""
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    async def _connect(self) -> _Exchange:
        loop, security = asyncio.get_running_loop(), self._security
        tls = security.tls() if security.tls else None
        name = (security.server_name or self.host) if tls else None
        _, self._exchange = await loop.create_connection(
            _Exchange, self.host, self.port, ssl=tls, server_hostname=name
        )
        return self._exchange

    async def _send(self, exchange: _Exchange, request: bytes) -> HttpResponse:
        try:
            answer = await exchange.get(request)
        except BaseException:  # cancellation too: the answer would be taken for the next question's
            exchange.close()
            raise
        finally:
            self.received += exchange.received
        if not exchange.reusable:
            exchange.close()
        return answer
