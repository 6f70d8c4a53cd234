"""HTTP answers of others, with a limit of bytes and of time that holds for any server.

httpx2's timeouts are for each read, so that a server that sends a byte now and then is never late. Only the
reads and writes of a blocking client can end: each waits at most for the rest of the time until one deadline,
from the connection to the last byte of the body. A compressed body counts by its decompressed size. Bodies
that are compressed twice, or by other ways than gzip, are refused.
"""

from __future__ import annotations

import asyncio
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2

if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator

ANSWER_S = 60.0
"""The limit for a whole answer, which is one page of a list."""

MAX_ANSWER_BYTES = 32 << 20
"""The limit for an answer: Kubernetes' objects end at 1.5 MiB, and pages of lists are made small."""

MAX_REFUSAL_BYTES = 1 << 20

MAX_PODS_BYTES = 2 << 30
"""The limit for a list of all pods: 150,000 with 10 KB each. Readers keep few of them, or few fields."""

LIST_S = 300.0
"""The limit for a whole list that a command reads."""

_ENCODINGS = ("", "identity", "gzip")
_LEAST_S = 0.001
_BUDGET = "k8s_rdma.budget"
"""The extension of a request with the budget of the list that its answer is."""


class AnswerTooLongError(ValueError):
    """An answer has more bytes than it may have."""


class ListBudget:
    """The bytes and the time that a whole list may take, in pages or as one answer."""

    def __init__(self, max_bytes: int, limit_s: float) -> None:
        """Begin the time."""
        self._max_bytes, self._left_bytes = max_bytes, max_bytes
        self._limit_s, self._ends_at_s = limit_s, monotonic() + limit_s

    @property
    def left_s(self) -> float:
        """Return the remaining time, above zero; raise as `spend`."""
        self.spend(0)
        return max(self._ends_at_s - monotonic(), _LEAST_S)

    def spend(self, length: int) -> None:
        """Count bytes that came. AnswerTooLongError or httpx2.ReadTimeout if a limit is passed."""
        self._left_bytes -= length
        why = f"a list without an end within {self._max_bytes} bytes and {self._limit_s:g} s"
        if self._left_bytes < 0:
            raise AnswerTooLongError(why)
        if monotonic() > self._ends_at_s:
            raise httpx2.ReadTimeout(why)


class HttpReply(NamedTuple):
    """The status and body of an HTTP answer."""

    status: int
    body: bytes


def bounded_reply(http: httpx2.Client, request: httpx2.Request, max_bytes: int) -> HttpReply:
    """Get an answer of any status. AnswerTooLongError for more than max_bytes."""
    response = bounded_response(http, request, max_bytes)
    return HttpReply(response.status_code, response.content)


def bounded_response(http: httpx2.Client, request: httpx2.Request, max_bytes: int) -> httpx2.Response:
    """Get a whole answer, as `bounded_reply`. http: a client that `end_in_time` was called for."""
    request.headers["accept-encoding"] = "gzip"
    response = http.send(request, stream=True)
    try:
        read_body(response, max_bytes)
    finally:
        response.close()
    return response


def stream_answer(http: httpx2.Client, request: httpx2.Request, budget: ListBudget) -> Generator[bytes]:
    """Get an answer piece by piece. httpx2.HTTPStatusError for a refusal; errors as of `ListBudget.spend`."""
    request.headers["accept-encoding"] = "gzip"
    request.extensions = {**request.extensions, _BUDGET: budget}
    response = http.send(request, stream=True)
    try:
        if response.is_error:
            read_body(response, MAX_REFUSAL_BYTES)
            response.raise_for_status()
        _require_encoding(response)
        for chunk in response.iter_bytes():
            budget.spend(len(chunk))
            yield chunk
            _Deadline.begin_again(http, request)  # another request may have been made meanwhile
    finally:
        response.close()


def read_body(response: httpx2.Response, max_bytes: int) -> None:
    """Read a body as `Response.read`. AnswerTooLongError for more than max_bytes."""
    _require_encoding(response)
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > max_bytes:
            raise AnswerTooLongError(_too_long(max_bytes))
    response._content = bytes(body)  # no other way


async def aread_body(response: httpx2.Response, max_bytes: int) -> None:
    """Read a body as `Response.aread`. AnswerTooLongError for more than max_bytes."""
    _require_encoding(response)
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > max_bytes:
            raise AnswerTooLongError(_too_long(max_bytes))
    response._content = bytes(body)  # no other way


def _too_long(max_bytes: int) -> str:
    return f"an answer of more than {max_bytes} bytes"


def _require_encoding(response: httpx2.Response) -> None:
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in _ENCODINGS:
        msg = f"an answer in the encoding {encoding[:40]!r}; wanted gzip or none"
        raise ValueError(msg)


def end_in_time(http: httpx2.Client, limit_s: float = ANSWER_S) -> None:
    """Have each answer of a blocking client end, or fail as httpx2.TimeoutException, within that time."""
    deadline = _Deadline(limit_s)
    for transport in (http._transport, *filter(None, http._mounts.values())):
        pool: Any = getattr(transport, "_pool", None)  # no other way in
        if pool is not None:
            pool._network_backend = _TimedConnections(pool._network_backend, deadline)
    http.event_hooks["request"].append(deadline.begin)


class _Deadline:
    """The time by which the latest request's answer has to be there."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = self._given_s = limit_s
        self._ends_at_s = inf

    def begin(self, request: httpx2.Request) -> None:
        """Begin a request's time; of one with a budget all that is left."""
        budget = request.extensions.get(_BUDGET)
        self._given_s = self._limit_s if budget is None else budget.left_s
        self._ends_at_s = monotonic() + self._given_s

    @staticmethod
    def begin_again(http: httpx2.Client, request: httpx2.Request) -> None:
        """Begin the time of a client's request again, if the client's answers end in time."""
        for hook in http.event_hooks["request"]:
            if isinstance(getattr(hook, "__self__", None), _Deadline):
                hook(request)

    def left_s(self, timeout: float | None) -> float:
        """Return the time for one operation; raise httpx2.ReadTimeout if no time is left."""
        left_s = self._ends_at_s - monotonic()
        if left_s <= 0:
            msg = f"no whole answer within {self._given_s:g} s"
            raise httpx2.ReadTimeout(msg)
        return left_s if timeout is None else min(left_s, timeout)


class _TimedConnections:
    """A network backend of httpcore whose connections end with the answer's time."""

    def __init__(self, connections: Any, deadline: _Deadline) -> None:
        self._connections = connections
        self._deadline = deadline

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, **options: Any) -> _TimedStream:
        """Connect within the time that is left."""
        left_s = self._deadline.left_s(timeout)
        return _TimedStream(self._connections.connect_tcp(host, port, left_s, **options), self._deadline)

    def sleep(self, seconds: float) -> None:
        """Sleep between tries to connect."""
        self._connections.sleep(seconds)


class _TimedStream:
    """A connection of httpcore. Time that is up ends the operation that would take longer."""

    def __init__(self, stream: Any, deadline: _Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read within the time that is left."""
        return bytes(self._stream.read(max_bytes, self._deadline.left_s(timeout)))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write within the time that is left."""
        self._stream.write(buffer, self._deadline.left_s(timeout))

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> _TimedStream:
        """Make the TLS handshake within the time that is left."""
        left_s = self._deadline.left_s(timeout)
        return _TimedStream(self._stream.start_tls(ssl_context, server_hostname, left_s), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        """Return the connection's own information."""
        return self._stream.get_extra_info(info)


class BoundedAsyncClient(httpx2.AsyncClient):
    """A client whose whole answers have limits of bytes and time. A reader of streams has its own limits."""

    def __init__(self, *, limit_s: float = ANSWER_S, **options: Any) -> None:
        super().__init__(**options)
        self._limit_s = limit_s

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """Send a request; httpx2.ReadTimeout and httpx2.DecodingError for an answer beyond the limits."""
        if stream:
            return await super().send(request, stream=True, **options)
        try:
            async with asyncio.timeout(self._limit_s):
                return await self._whole(request, options)
        except TimeoutError as error:
            msg = f"no whole answer within {self._limit_s:g} s"
            raise httpx2.ReadTimeout(msg, request=request) from error

    async def _whole(self, request: httpx2.Request, options: dict[str, Any]) -> httpx2.Response:
        request.headers["accept-encoding"] = "gzip"
        response = await super().send(request, stream=True, **options)
        try:
            await aread_body(response, MAX_ANSWER_BYTES)
        except ValueError as error:
            raise httpx2.DecodingError(str(error), request=request) from error
        finally:
            await response.aclose()
        return response
