"""HTTP/1.1 on one connection: uvicorn's ASGI cycle behind a reader of our own, which holds clients to limits.

uvicorn's own protocol with httptools has no bound for the length of a head, for the time that a request takes
to come and an answer to go, and for the requests that a client sends ahead (pipelining). Here a connection
has one request at a time, and one a read. Further bytes with a request or before its answer end the
connection (RFC 9112, section 9.3.2, has the client ask again). So requests are not queued, the memory of a
connection is bounded, and no client has many requests answered while others wait.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from enum import Enum, auto, unique
from functools import lru_cache
from http import HTTPStatus
from math import inf
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.protocols.utils import get_remote_addr

from k8s_rdma.errors import Reason
from k8s_rdma.http_server.asgi import (
    BODY_SINK,
    Application,
    BodySink,
    Fields,
    Message,
    Scope,
    ServerTls,
    certificate_names,
    error_answer,
    render_head,
)
from k8s_rdma.http_server.connections import (
    LARGE_BODY_BUFFER_BYTES,
    RECEIVE_BUFFER_BYTES,
    Connection,
    Connections,
    set_receive_buffer,
    unsent_bytes,
)
from k8s_rdma.wire.http_error import Error
from k8s_rdma.wire.json import HUGE_PAGE_BYTES, Buffer, Document, joined

_FIELD_OVERHEAD = len(": \r\n")
_CHUNK_OVERHEAD = len("1000\r\n\r\n")
"""Bytes around a chunk of some size; see RFC 9112, section 7.1."""

READ_BYTES = 120 << 10
"""The most that one read takes, because bytes objects of 128 KiB would have mappings of their own
(`connections.return_large_buffers`), which the kernel fills page by page each time."""

_CLOSE = (b"connection", b"close")
_SENDS_BODY = frozenset({b"content-length", b"transfer-encoding"})
_HOST = re.compile(rb"(\[[0-9A-Fa-fvV:.]+\]|[-A-Za-z0-9._~!$&'()*+,;=%]*)(:[0-9]*)?")
"""The `Host` field (RFC 9110, section 7.2); percent-encoding is not looked into."""

_log = logging.getLogger("uvicorn.error")


@unique
class _Stage(Enum):
    """The stage of the request that is being received."""

    BETWEEN = auto()
    """The connection is between two requests."""
    HEAD = auto()
    BODY = auto()
    """The application has the request; its body may still be incomplete."""


class _Stopped(Exception):  # noqa: N818  it is no error of ours
    """Stop of the parser, raised within it. A new one each time, because it keeps its frames."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The error that a client receives before its connection ends."""

    status: HTTPStatus
    error: Error


def _refusal(status: HTTPStatus, reason: str, message: str) -> _Refusal:
    return _Refusal(status, Error(reason=reason, message=message))


_BUSY = _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "busy", "there are too many connections")
_MALFORMED = _refusal(HTTPStatus.BAD_REQUEST, Reason.MALFORMED_REQUEST, "this is no HTTP/1.1 request")
_PIPELINED = _refusal(
    HTTPStatus.BAD_REQUEST, "pipelined", "wait for the answer before you send another request"
)
_NO_HOST = _refusal(HTTPStatus.BAD_REQUEST, Reason.MALFORMED_REQUEST, "expected one Host field with a host")
_OTHER_PROTOCOL = _refusal(
    HTTPStatus.NOT_IMPLEMENTED, "not_implemented", "this server speaks HTTP/1.1 alone, and is no proxy"
)


@lru_cache(maxsize=1)
def _date_field(now_s: int) -> Fields:
    """Return the field that comes before the application's own, made once a second; seconds since 1970."""
    return [(b"date", formatdate(now_s, usegmt=True).encode())]


def _subject(certificate: dict[str, Any]) -> str:
    """Return the subject of a certificate in the form of ASGI's TLS extension."""
    return ",".join(f"{name}={value}" for part in certificate["subject"] for name, value in part)


@dataclass(slots=True, kw_only=True)
class ServerState:
    """The state that a server shares with its connections.

    tasks: of the requests under way.
    receive_buffer: of all connections; received bytes are parsed before the next read.
    """

    app: Application
    connections: Connections
    tls: ServerTls | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    receive_buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(READ_BYTES)))


class _Cycle(RequestResponseCycle):
    """uvicorn's cycle, for applications that answer last, and send the whole body in one message.

    Head and body leave by one system call, and a large body, or the parts of one, is not copied. uvicorn
    writes each by itself.
    """

    _head: Message

    async def send(self, message: Message) -> None:  # type: ignore[override]  # a TypedDict there
        """Keep the head until its body comes; wait while the client reads no earlier answer."""
        if message["type"] == "http.response.start":
            self._head = message
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        head = self._rendered_head()
        parts = self._body_parts(message["body"])
        self.transport.writelines([head, *parts])  # type: ignore[list-item]  # it takes any buffer
        self.response_started = self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _body_parts(self, body: Document) -> tuple[Buffer, ...]:
        """Return the parts to be sent; one with TLS, which would make a record of each (RFC 8446, 5.1)."""
        if not body or self.scope["method"] == "HEAD":
            return ()
        if not isinstance(body, tuple):
            return (body,)
        return (joined(body),) if self.transport.get_extra_info("sslcontext") else body

    def _rendered_head(self) -> bytes:
        """Render the head, which ends the connection if the application or the client demands it."""
        fields: Fields = [*self.default_headers, *self._head["headers"]]
        if _CLOSE in fields:
            self.keep_alive = False
        elif not self.keep_alive:
            fields.append(_CLOSE)
        return render_head(self._head["status"], fields)


class HttpProtocol(asyncio.BaseProtocol):
    """One HTTP/1.1 connection; a `connections.Connection`."""

    transport: asyncio.Transport
    flow: FlowControl
    _parser: httptools.HttpRequestParser
    """Kept for the connection's life: they refer to each other, which keeps both alive."""

    def __init__(self, state: ServerState) -> None:
        self.deadline = inf
        self.unsent_since: float | None = None
        self.address = ""
        self.handshake: Connection | None = None
        """The TLS handshake that this connection follows."""
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._limits = state.connections.limits
        self._connections = state.connections
        self._tls = state.tls
        self._client: str | None = None
        """The subject of an accepted certificate."""
        self._certificate_refusal: _Refusal | None = None
        self._cycle: _Cycle | None = None
        self._refused = False
        self._refusal: _Refusal | None = None
        self._request_began = False
        """True when a request began in the last read."""
        self._read_bytes = 0
        """Length of the last read."""
        self._surplus = 0
        """Bytes since the last request began that are no body."""
        # Of the request that is coming in:
        self._stage = _Stage.BETWEEN
        self._target = b""
        self._fields: Fields = []
        self._announces_body = False
        self._head_bytes = self._body_bytes = self._announced_bytes = 0
        self._has_large_body = False

    # # The calls of the transport:

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a stream
        """Wait for a request, if there is room for the connection."""
        self.transport = transport
        self.flow = FlowControl(transport)
        self._parser = httptools.HttpRequestParser(self)
        self._socket = transport.get_extra_info("socket")  # which a transport forgets when it closes
        set_receive_buffer(self._socket, RECEIVE_BUFFER_BYTES)
        self._peer = get_remote_addr(transport)
        self.address = self._peer[0] if self._peer else ""
        self._check_certificate(transport.get_extra_info("peercert"))
        self._set_deadline(self._limits.request_timeout_s)
        if self.handshake is not None:
            self._connections.discard(self.handshake)
        if not self._connections.admit(self):
            self._refuse(_BUSY)
            transport.close()  # an unregistered connection has no time-out that would close it

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application, and resume it if it waits to write."""
        del exc
        self._connections.discard(self)
        self._refused = True
        if self._cycle is not None:
            self._cycle.disconnected = self._cycle.disconnected or not self._cycle.response_complete
            self._cycle.message_event.set()
        self.flow.resume_writing()
        # Python would find late that these and the connection know but each other.
        self._cycle = None
        self._forget_request()

    def data_received(self, data: bytes | memoryview) -> None:
        """Parse, unless the client was refused, and count the bytes that are no body."""
        if self._refused:
            if not self.transport.is_closing():
                self.flow.pause_reading()
            return
        self._request_began = False
        self._read_bytes = len(data)
        self._surplus += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the request is served as if it had not asked, and is the last one
        except httptools.HttpParserError:
            self._refused = True
            if (
                self._refusal is _PIPELINED
            ):  # the first request's task goes first: it may have its answer already
                self._loop.call_soon(self._refuse, _PIPELINED)
            else:
                self._refuse(self._refusal or _MALFORMED)
            return
        # # The parser reports no field before its end, and no bytes between chunks.
        if self._surplus > 2 * self._limits.head_bytes:
            self._refuse(self._head_too_large())

    def pause_writing(self) -> None:
        """Make the application wait: the client does not read."""
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        """Resume the application: the client has read."""
        self.flow.resume_writing()

    # # The calls of the parser:

    def on_message_begin(self) -> None:
        """Begin a request."""
        if self._request_began or not self._is_idle():
            self._stop(_PIPELINED)
        self._request_began = True
        self._surplus = min(self._surplus, self._read_bytes)
        self._stage = _Stage.HEAD
        self._target = b""
        self._fields = []
        self._announces_body = False
        self._head_bytes = self._body_bytes = 0
        self.unsent_since = None  # # it has read its former answers, or cannot ask for long
        self._set_deadline(self._limits.request_timeout_s)

    def on_url(self, url: bytes) -> None:
        """Take a part of the request's target."""
        self._count_head(len(url))
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one whole field; trailers (RFC 9112, section 7.1.2) are ignored."""
        if self._stage is _Stage.HEAD:
            self._count_head(len(name) + len(value) + _FIELD_OVERHEAD)
            name = name.lower()
            self._fields.append((name, value))
            if len(self._fields) > self._limits.fields:
                self._stop(self._head_too_large())
            if name in _SENDS_BODY:
                self._announces_body = True

    def on_headers_complete(self) -> None:
        """Start the application."""
        self._check_head()
        length = sum(int(value) for name, value in self._fields if name == b"content-length")
        self._check_body(length)
        self._announced_bytes = length
        self._has_large_body = length >= HUGE_PAGE_BYTES and self._tls is None
        if self._has_large_body:
            set_receive_buffer(self._socket, LARGE_BODY_BUFFER_BYTES)
        self._start(self._scope())

    def on_body(self, body: bytes) -> None:
        """Take a part of the body; drop it once the application has answered."""
        self._surplus = max(0, self._surplus - len(body) - _CHUNK_OVERHEAD)
        self._body_bytes += len(body)
        self._check_body(self._body_bytes)
        if self._cycle is not None and not self._cycle.response_complete:
            # uvicorn would copy a bytearray twice.
            self._cycle.body = self._cycle.body + body if self._cycle.body else body  # type: ignore[assignment]
            if len(self._cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            self._cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Complete the request."""
        if self._stage is _Stage.BODY and self._cycle is not None and not self._cycle.response_complete:
            self._cycle.more_body = False
            self._cycle.message_event.set()
        self._stage = _Stage.BETWEEN
        if self._has_large_body:
            set_receive_buffer(self._socket, RECEIVE_BUFFER_BYTES)
        self._expect_next_request()

    # # The calls of `Connections` and the server:

    def time_out(self) -> None:
        """Tell a client in the middle of a request that its time is over.

        Close the connection of any other.
        """
        if self._refused or self.transport.is_closing():
            self.abort()
        elif self._stage is _Stage.BETWEEN:
            self._set_deadline(self._limits.linger_s)
            self.transport.close()
        elif not self.flow.read_paused:  # else it is we who do not listen
            message = f"the request was not here within {self._limits.request_timeout_s:g} s"
            self._refuse(_refusal(HTTPStatus.REQUEST_TIMEOUT, "request_timeout", message))

    def unsent_bytes(self) -> int:
        """Count as `Connection.unsent_bytes`."""
        return unsent_bytes(self._socket)

    def abort(self) -> None:
        """Close at once; asyncio's TLS transport cannot take further bytes of the application."""
        self._disconnect_application()
        self.transport.abort()

    def shutdown(self) -> None:
        """Close when the request under way is answered."""
        if self._cycle is None or self._cycle.response_complete:
            self.transport.close()
        else:
            self._cycle.keep_alive = False

    # # Its own steps:

    def _check_certificate(self, certificate: dict[str, Any] | None) -> None:
        """Check a verified certificate, if the client has one."""
        if not certificate or self._tls is None:
            return
        if self._tls.admits(certificate):
            self._client = _subject(certificate)
        elif self._tls.demand:
            names = ", ".join(certificate_names(certificate))
            message = f"the client certificate's names ({names}) are none of tls.clientNames"
            self._certificate_refusal = _refusal(HTTPStatus.FORBIDDEN, "forbidden", message)

    def _set_deadline(self, seconds: float) -> None:
        self.deadline = self._loop.time() + seconds
        self._connections.check_by(self.deadline)

    def _expect_next_request(self) -> None:
        """Set the deadline for the next request, once this one is answered."""
        if self._is_idle():
            self._set_deadline(self._limits.keep_alive_s)
        else:
            self.deadline = inf
        self._connections.expect_reading(self._loop.time())

    def _is_idle(self) -> bool:
        """Report whether all requests so far are answered."""
        return self._cycle is None or self._cycle.response_complete

    def _scope(self) -> Scope:
        """Return the request's ASGI scope."""
        url = httptools.parse_url(self._target)
        path = url.path or b"/"
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self._parser.get_http_version(),
            "method": self._parser.get_method().decode("ascii"),
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": url.query or b"",
            "headers": self._fields,
            "client": self._peer,
            "extensions": {} if self._client is None else {"tls": {"client_cert_name": self._client}},
        }

    def _start(self, scope: Scope) -> None:
        expected = any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._fields)
        self._cycle = _Cycle(
            scope=scope,  # type: ignore[arg-type]  # a TypedDict there
            transport=self.transport,
            flow=self.flow,
            logger=_log,
            access_logger=_log,
            access_log=False,
            default_headers=_date_field(int(time.time())),
            message_event=asyncio.Event(),
            expect_100_continue=expected,
            keep_alive=self._keeps_alive(),
            on_response=self._on_response,
        )
        self._stage = _Stage.BODY
        task = self._loop.create_task(self._cycle.run_asgi(self._state.app))  # type: ignore[arg-type]  # TypedDicts there
        task.add_done_callback(self._state.tasks.discard)
        self._state.tasks.add(task)

    def _on_response(self) -> None:
        """Expect the next request after an answer."""
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._stage is _Stage.BETWEEN:
            self._expect_next_request()

    def _keeps_alive(self) -> bool:
        """Report whether the connection may have another request after this one."""
        return (
            self._parser.get_http_version() == "1.1"
            and self._parser.should_keep_alive()
            and not self._parser.should_upgrade()
        )

    def _count_head(self, length: int) -> None:
        self._head_bytes += length
        if self._head_bytes > self._limits.head_bytes:
            self._stop(self._head_too_large())

    def _check_head(self) -> None:
        """Refuse a request that cannot be served (RFC 9112, 3.2 and 3.2.3; RFC 9110, 7.8 and 9.3.6).

        The parser takes a request for an upgrade to have no body, and the bytes after it for another
        protocol.
        """
        if self._certificate_refusal is not None:
            self._stop(self._certificate_refusal)
        version = self._parser.get_http_version()
        hosts = [value for name, value in self._fields if name == b"host"]
        if version not in ("1.0", "1.1") or self._parser.get_method() == b"CONNECT":
            self._stop(_OTHER_PROTOCOL)
        if self._parser.should_upgrade() and self._announces_body:
            self._stop(_OTHER_PROTOCOL)
        if len(hosts) > 1 or (not hosts and version == "1.1") or not all(map(_HOST.fullmatch, hosts)):
            self._stop(_NO_HOST)

    def _check_body(self, length: int) -> None:
        limit = self._limits.body_bytes
        if limit is not None and length > limit:
            message = f"the body is longer than {limit} bytes"
            self._stop(_refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", message))

    def _head_too_large(self) -> _Refusal:
        limits = self._limits
        message = f"more than {limits.head_bytes} bytes or {limits.fields} fields in the request's head"
        return _refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", message)

    def _stop(self, refusal: _Refusal) -> None:
        self._refusal = refusal
        raise _Stopped

    def _refuse(self, refusal: _Refusal) -> None:
        """Send the reason, and read no more.

        If it cannot be sent in its turn, the connection just ends.
        """
        self._refused = True
        has_body = not self._is_head_request()
        self._forget_request()
        self._set_deadline(self._limits.linger_s)
        if self.transport.is_closing() or not self._can_send_refusal():
            self.abort()
            return
        self._disconnect_application()
        answer = error_answer(refusal.status, refusal.error, headers={"connection": "close"})
        self.transport.write(answer.rendered(_date_field(int(time.time())), body=has_body))
        if self.transport.can_write_eof():
            self.transport.write_eof()  # closed with unread input, the client would see but a reset
        else:
            self.transport.close()

    def _is_head_request(self) -> bool:
        """Report whether the request is known to want no body (RFC 9110, section 9.3.2)."""
        in_request = self._stage in (_Stage.HEAD, _Stage.BODY) and self._target
        return bool(in_request) and self._parser.get_method() == b"HEAD"

    def _disconnect_application(self) -> None:
        """Drop further bytes of the application."""
        if self._cycle is not None:
            self._cycle.disconnected = True
            self._cycle.message_event.set()

    def _forget_request(self) -> None:
        self._fields = []
        self._parser = None  # type: ignore[assignment]  # nothing is parsed any more

    def _can_send_refusal(self) -> bool:
        """Report whether this request has no answer yet, and no earlier answer is outstanding."""
        if self._stage is _Stage.BODY and self._cycle is not None:
            return not self._cycle.response_started
        return self._is_idle()


class TlsHttpProtocol(HttpProtocol, asyncio.Protocol):
    """A connection with TLS."""


class PlainHttpProtocol(HttpProtocol, asyncio.BufferedProtocol):
    """A connection without TLS: it receives into the buffer that all of them share.

    Not with TLS, whose buffers uvloop would keep after the connection's end, in a cycle with these methods.

    A large body goes past the parser once the application has a sink for it. Its end is known by the length
    that the head announces, with which the parser accepts no transfer coding (RFC 9112, section 6.1).
    """

    _sink: BodySink | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the sink as well."""
        self._sink = None
        super().connection_lost(exc)

    def on_message_complete(self) -> None:
        """Complete the request; the next bytes are no part of its body."""
        self._sink = None
        super().on_message_complete()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next read."""
        del sizehint
        sink = self._current_sink()
        if sink is None:
            return self._state.receive_buffer
        missing = self._announced_bytes - self._body_bytes
        return sink.get_buffer() or self._state.receive_buffer[:missing]

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the received bytes, or count those of the body."""
        sink = self._current_sink()
        if sink is None:
            self.data_received(self._state.receive_buffer[:nbytes])
        else:
            self._count_body(sink, nbytes)

    def _current_sink(self) -> BodySink | None:
        """Return the sink of the next bytes, if they have one, and if it has all earlier ones."""
        has_earlier = self._cycle is not None and not self._cycle.body
        return self._sink if has_earlier and not self._refused else None

    def _count_body(self, sink: BodySink, size: int) -> None:
        self._body_bytes += size
        if not sink.buffer_updated(size) and self._cycle is not None and not self._cycle.response_complete:
            self.flow.pause_reading()
            self._cycle.message_event.set()
        if self._body_bytes == self._announced_bytes:
            self._parser = httptools.HttpRequestParser(self)  # the former one still expects the body
            self.on_message_complete()

    def _scope(self) -> Scope:
        scope = super()._scope()
        if self._has_large_body:
            scope["extensions"][BODY_SINK] = self._set_sink
        return scope

    def _set_sink(self, sink: BodySink) -> None:
        if self._stage is _Stage.BODY:  # else the whole body has come
            self._sink = sink
