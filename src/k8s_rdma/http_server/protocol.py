"""uvicorn's HTTP/1.1 protocol, held to limits, and answering at once what needs no task.

What uvicorn does not bound with httptools: the length of a head, the time that a request takes to come, and
the time that an answer takes to go. Its own errors are plain text; ours have one shape.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto, unique
from fcntl import ioctl
from http import HTTPStatus
from math import inf
from termios import TIOCOUTQ
from typing import TYPE_CHECKING, Any, TypeAlias

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from k8s_rdma.errors import Reason
from k8s_rdma.http_server.answer import Answer, error_answer
from k8s_rdma.wire.rest_error import Error

if TYPE_CHECKING:
    import asyncio

    from k8s_rdma.http_server.connections import Connection, Connections

Fields: TypeAlias = list[tuple[bytes, bytes]]

Ready: TypeAlias = Callable[[bytes, bytes, Fields], Answer | None]
"""The answer that is there already, to a method, a request target as sent, and header fields with lower-case
names; None leaves the request to the application."""

_INT = struct.Struct("i")
_PUNCTUATION = len(": \r\n")
_SENDS_BODY = frozenset({b"content-length", b"transfer-encoding"})


@unique
class _Stage(Enum):
    """How much of a request is here."""

    BETWEEN = auto()
    """Between two of them."""
    HEAD = auto()
    BODY = auto()
    """The application has the request, and its body may still come."""
    ANSWERED = auto()
    """Answered at once; only its end is left."""


@dataclass(slots=True)
class _Refused(Exception):  # noqa: N818  it is no error of ours
    """Raised within the parser, which then stops."""

    status: HTTPStatus
    error: Error


def _refused(status: HTTPStatus, reason: str, message: str) -> _Refused:
    return _Refused(status, Error(reason=reason, message=message))


_BUSY = _refused(HTTPStatus.SERVICE_UNAVAILABLE, "busy", "there are too many connections")
_MALFORMED = _refused(HTTPStatus.BAD_REQUEST, Reason.MALFORMED_REQUEST, "this is no HTTP/1.1 request")


def _client_name(certificate: dict[str, Any] | None) -> str | None:
    """The subject of a certificate that was verified, as ASGI's TLS extension has it; None without one."""
    if not certificate:
        return None
    return ",".join(f"{name}={value}" for part in certificate["subject"] for name, value in part)


class HttpProtocol(HttpToolsProtocol):
    """One connection; a `connections.Connection`."""

    def __init__(self, *, connections: Connections, ready: Ready | None, **uvicorn: Any) -> None:
        """uvicorn: what it gives its protocols. `replaces`: the connection that this one was until now."""
        super().__init__(**uvicorn)
        self.owes_by = inf
        self.unsent_since: float | None = None
        self.replaces: Connection | None = None
        self._limits = connections.limits
        self._guard = connections
        self._ready = ready
        self._refused = False
        self._refusal: _Refused | None = None
        # Of the request that is coming in:
        self._stage = _Stage.BETWEEN
        self._target = b""
        self._fields: Fields = []
        self._has_body = False
        self._head_bytes = self._body_bytes = 0
        self._later_bytes: int | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        """Begin to wait for the client, if there is room for it."""
        super().connection_made(transport)
        self._socket = transport.get_extra_info("socket")
        self._client = _client_name(transport.get_extra_info("peercert"))
        self._owes_within(self._limits.request_timeout_s)
        for each in (self, self.replaces):
            if each is not None:
                self._guard.forget(each)
        if not self._guard.admit(self):
            self._refuse(_BUSY)

    def data_received(self, data: bytes) -> None:
        """Parse, unless the client was refused; count what belongs to no whole head yet."""
        if self._refused:
            return
        super().data_received(data)
        if self._refused or self._stage is not _Stage.HEAD:
            return
        # The parser keeps an unfinished field to itself, so that parts after the first count as they come.
        self._later_bytes = 0 if self._later_bytes is None else self._later_bytes + len(data)
        if self._later_bytes > self._limits.head_bytes:
            self._refuse(self._too_long_head())

    def send_400_response(self, _msg: str) -> None:
        """What uvicorn calls when the parser has stopped."""
        self._refuse(self._refusal or _MALFORMED)

    def on_message_begin(self) -> None:
        """A request begins to come."""
        self._stage = _Stage.HEAD
        self._target = b""
        self._fields = []
        self._has_body = False
        self._head_bytes = self._body_bytes = 0
        self._later_bytes = None
        self.unsent_since = None  # it has read what it asked for before, or cannot ask for long
        self._owes_within(self._limits.request_timeout_s)

    def on_url(self, url: bytes) -> None:
        """A part of the request's target."""
        self._target += url
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One whole field; those that follow a body (RFC 9112, section 7.1.2) mean nothing here."""
        if self._stage is _Stage.HEAD:
            name = name.lower()
            self._fields.append((name, value))
            self._head_bytes += len(name) + len(value) + _PUNCTUATION
            if name in _SENDS_BODY:
                self._has_body = True

    def on_headers_complete(self) -> None:
        """Answer at once, or let uvicorn start the application."""
        if self._head_bytes > self._limits.head_bytes:
            self._stop(self._too_long_head())
        if self._ready is not None and self._may_answer_at_once():
            method = self.parser.get_method()
            answer = self._ready(method, self._target, self._fields)
            if answer is not None:
                self._stage = _Stage.ANSWERED
                added = self.server_state.default_headers
                self.transport.write(answer.rendered(added, body=method != b"HEAD"))
                return
        self._check_body(sum(int(value) for name, value in self._fields if name == b"content-length"))
        self._hand_over()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._body_bytes += len(body)
        self._check_body(self._body_bytes)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here."""
        if self._stage is _Stage.BODY:
            super().on_message_complete()
        self._stage = _Stage.BETWEEN
        self._await_next()

    def on_response_complete(self) -> None:
        """Uvicorn has handed over the application's answer."""
        super().on_response_complete()
        if self._stage is _Stage.BETWEEN:
            self._await_next()

    def overdue(self) -> None:
        """As `Connection.overdue`: say so to who has begun to speak; the others know."""
        if self._refused or self.transport.is_closing():
            self.transport.abort()
        elif self._stage is _Stage.BETWEEN:
            self._owes_within(self._limits.linger_s)
            self.transport.close()
        elif not self.flow.read_paused:  # else it is we who do not listen
            message = f"the request was not here within {self._limits.request_timeout_s:g} s"
            self._refuse(_refused(HTTPStatus.REQUEST_TIMEOUT, "request_timeout", message))

    def unsent_bytes(self) -> int:
        """What the client has not taken yet, of that which is in the kernel (tcp(7), SIOCOUTQ).

        Whatever waits behind it, in the transport or in TLS, waits for it.
        """
        descriptor = self._socket.fileno()
        if descriptor < 0:
            return 0
        (unsent,) = _INT.unpack(ioctl(descriptor, TIOCOUTQ, bytes(_INT.size)))
        return int(unsent)

    def retire(self) -> None:
        """As `Connection.retire`; not while a head comes in, which is answered like any other."""
        if self._target and self._stage is not _Stage.HEAD:
            self.shutdown()

    def abort(self) -> None:
        """End it at once."""
        self.transport.abort()

    def _owes_within(self, seconds: float) -> None:
        self.owes_by = self.loop.time() + seconds

    def _await_next(self) -> None:
        """It is the client's turn, once it is answered."""
        if self._idle():
            self._owes_within(self._limits.keep_alive_s)
        else:
            self.owes_by = inf

    def _idle(self) -> bool:
        """Whether everything that came before is answered."""
        return self.cycle is None or self.cycle.response_complete

    def _hand_over(self) -> None:
        """Tell uvicorn what it would have heard; before, it would only have been work."""
        super().on_message_begin()
        if self._client is not None:
            self.scope["extensions"] = {"tls": {"client_cert_name": self._client}}
        super().on_url(self._target)
        for name, value in self._fields:
            super().on_header(name, value)
        super().on_headers_complete()
        self._stage = _Stage.BODY

    def _may_answer_at_once(self) -> bool:
        """What stays to be said in order, is slow to be read, or has a body, is uvicorn's to handle."""
        return (
            self._idle()
            and not self._has_body
            and not self.flow.write_paused
            and self.parser.should_keep_alive()
            and self.parser.get_http_version() == "1.1"
        )

    def _check_body(self, length: int) -> None:
        limit = self._limits.body_bytes
        if limit is not None and length > limit:
            message = f"the body is longer than {limit} bytes"
            self._stop(_refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", message))

    def _too_long_head(self) -> _Refused:
        message = f"request line and header fields are longer than {self._limits.head_bytes} bytes"
        return _refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", message)

    def _stop(self, refusal: _Refused) -> None:
        self._refusal = refusal
        raise refusal

    def _refuse(self, refusal: _Refused) -> None:
        """Say why, and listen to nothing more.

        Where that cannot be said in its turn, only the connection ends.
        """
        self._refused = True
        self._owes_within(self._limits.linger_s)
        if not self._may_say_why():
            self.transport.abort()
            return
        if self.cycle is not None:
            self.cycle.disconnected = True  # whatever the application still says of it
            self.cycle.message_event.set()
        answer = error_answer(refusal.status, refusal.error, headers={"connection": "close"})
        self.transport.write(answer.rendered(self.server_state.default_headers, body=True))
        if self.transport.can_write_eof():
            self.transport.write_eof()  # closed with unread input, the client would see a reset and no answer
        else:
            self.transport.close()

    def _may_say_why(self) -> bool:
        """Whether nothing else is to be said before, and nothing was said of this request."""
        if self._stage is _Stage.BODY:
            return not self.pipeline and not self.cycle.response_started
        return self._idle()
