"""Whatever bytes come on a connection, and however they are cut: the protocol and its answers.

The protocol class on a transport in memory, so that each cut is one read; answers are read by h11.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import h11
from hypothesis import example, given
from hypothesis import strategies as st

from http_server.serving import PARTS, REQUEST, Paths, run, served
from k8s_rdma.http_server import ConnectionLimits, HttpServer
from k8s_rdma.http_server.protocol import HttpProtocol

LIMITS = ConnectionLimits(head_bytes=256, fields=6, body_bytes=64)
TURNS = 20
"""Of the loop, in which a request is done as far as it can be."""
BOTH = ("GET", "HEAD")
BEFORE_METHOD = (b'"pipelined"', b"this is no HTTP/1.1 request")
"""Of answers to requests that are refused before their method is known, which therefore have a body."""

UNCONNECTED = socket.socket()
"""Takes options."""

METHODS = st.sampled_from(["GET", "HEAD", "POST", "PUT", "CONNECT", "OPTIONS", "BREW"])
TARGETS = st.sampled_from(
    ["/now", "/now?through=the-application", "/later", "/read", "/", "*", "http://w1/now", "http://", "/%zz"]
)
FIELDS = st.sampled_from(
    [
        "Host: w1",
        "Host: w1",
        "Host: w1",
        "host: w2:80",
        "Host: w1/x",
        "Connection: close",
        "Connection: keep-alive",
        "Connection: upgrade\r\nUpgrade: websocket",
        "Upgrade: h2c",
        "Expect: 100-continue",
        "Transfer-Encoding: gzip",
        "Content-Length: x",
        "Content-Length: 65",
        "X: " + "x" * 200,
    ]
)
BODIES = st.sampled_from(
    [
        "\r\n",
        "\r\n",
        "Content-Length: 3\r\n\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nX: trailer\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n41\r\n" + "a" * 65 + "\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    ]
)


@dataclass(frozen=True)
class Request:
    method: str
    data: bytes


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """One, more often than not in order."""
    method, target = draw(METHODS), draw(TARGETS)
    version = draw(st.sampled_from(["1.1", "1.1", "1.1", "1.0", "2.0"]))
    fields = "".join(f"{each}\r\n" for each in draw(st.lists(FIELDS, min_size=1, max_size=3)))
    return Request(method, f"{method} {target} HTTP/{version}\r\n{fields}{draw(BODIES)}".encode())


PLAIN = st.sampled_from(BOTH).map(
    lambda method: Request(method, f"{method} /now HTTP/1.1\r\nHost: w1\r\n\r\n".encode())
)


@dataclass(frozen=True)
class Stream:
    """Bytes in the order in which they come; reads: how they are cut.

    methods: of each answer; both if the request is not known.
    """

    reads: Sequence[bytes]
    methods: Sequence[Sequence[str]]


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    asked = draw(st.lists(PLAIN | requests(), max_size=5))
    data = b"".join(each.data for each in asked)
    at = draw(st.integers(0, len(data)) | st.just(len(data)))
    data = data[:at] + draw(st.just(b"") | st.binary(max_size=20) | st.just(b"\r\n")) + data[at:]
    ends = [sum(len(each.data) for each in asked[: number + 1]) for number in range(len(asked))]
    methods = [(each.method,) if end <= at else BOTH for each, end in zip(asked, ends, strict=True)]
    cuts = {at, *draw(st.sampled_from([(), ends, range(len(data))]))}
    cuts |= draw(st.sets(st.integers(0, len(data)), max_size=6))
    edges = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    return Stream([data[begin:end] for begin, end in pairwise(edges)], methods)


class Wire(asyncio.Transport):
    """A transport in memory. tls: it cannot be half closed. slow: the client does not read for now."""

    def __init__(self, protocol: HttpProtocol, *, tls: bool, slow: bool) -> None:
        extra = {"peername": ("127.0.0.1", 1), "sslcontext": object() if tls else None, "socket": UNCONNECTED}
        super().__init__(extra)
        self._protocol = protocol
        self._tls = tls
        self._slow = slow
        self.written = bytearray()
        self.reads = True
        self.ended = self.half_closed = self.aborted = False
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        assert not self.half_closed
        if self.ended:
            return
        self.written += data
        if self._slow:
            self._slow = False
            self._protocol.pause_writing()
            asyncio.get_running_loop().call_later(0, self._protocol.resume_writing)

    def can_write_eof(self) -> bool:
        return not self._tls

    def write_eof(self) -> None:
        assert not self._tls
        self.half_closed = True

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.aborted = self.aborted or not self.ended
        self.close()

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


@dataclass
class Application:
    """The paths of other tests; how many requests it has at a time, and had at most."""

    paths: Paths = field(default_factory=Paths)
    now: int = 0
    most: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.paths.app(scope, receive, send)
        finally:
            self.now -= 1


class Faults(logging.Handler):
    """Log messages, and errors that reach the loop."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.all: list[object] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append(record.getMessage())

    def of_loop(self, _loop: object, context: dict[str, Any]) -> None:
        self.all.append(context)


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def play(stream: Stream, *, tls: bool, slow: bool, faults: Faults) -> None:
    """AssertionError if an answer is not HTTP, or does not end when it says so."""
    asyncio.get_running_loop().set_exception_handler(faults.of_loop)
    app = Application()
    server = HttpServer(app, shutdown_s=1, limits=LIMITS)
    protocol = HttpProtocol(server.state)
    wire = Wire(protocol, tls=tls, slow=slow)
    for data in stream.reads:
        await asyncio.sleep(0)
        if wire.reads and not wire.ended:
            protocol.data_received(data)
    app.paths.may.set()
    await turns()
    assert app.most <= 1
    is_last = closes(bytes(wire.written), stream.methods, cut=wire.aborted)
    assert wire.ended or wire.half_closed or not is_last
    protocol.abort()
    await turns()
    assert (app.now, server.state.tasks, set(server.state.connections)) == (0, set(), set())


def closes(answered: bytes, methods: Sequence[Sequence[str]], *, cut: bool) -> bool:
    """Whether the last answer says that it is the last. AssertionError if these are no answers.

    cut: the connection was aborted, and so the last one need not be whole.
    """
    if not answered:
        return False
    known = bool(methods) and not any(each in answered for each in BEFORE_METHOD)
    for method in methods[0] if known else BOTH:
        try:
            last, rest = read_answer(answered, method, cut=cut)
            assert not (last and rest)
            return last or closes(rest, methods[1:], cut=cut)
        except (AssertionError, h11.RemoteProtocolError):
            continue
    raise AssertionError(answered)


def read_answer(answered: bytes, method: str, *, cut: bool) -> tuple[bool, bytes]:
    """Whether the connection ends with an answer, and the bytes that follow it."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "w1")]))
    client.send(h11.EndOfMessage())
    client.receive_data(answered)
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            assert cut, answered
            return True, b""
    return client.their_state is not h11.DONE, client.trailing_data[0]


def stream(*reads: bytes, methods: Sequence[str] = ()) -> Stream:
    return Stream(reads, [(each,) for each in methods])


HEAD = b"HEAD /now HTTP/1.1\r\nHost: w1\r\n"


@given(streams(), st.booleans(), st.booleans())
@example(stream(HEAD + b"Host: w2\r\n\r\n", methods=["HEAD"]), False, False)
@example(stream(HEAD + b"\r\n" + HEAD + b"\r\n", methods=["HEAD", "GET"]), False, False)
def test_every_stream_of_bytes_is_answered_in_http_or_ends(stream: Stream, tls: bool, slow: bool) -> None:
    faults = Faults()
    logging.getLogger().addHandler(faults)
    try:
        asyncio.run(play(stream, tls=tls, slow=slow, faults=faults))
    finally:
        logging.getLogger().removeHandler(faults)
    assert not faults.all


def test_parts_of_a_large_answer_are_sent_as_one_body() -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            for method in (b"GET", b"HEAD"):
                client.send(method + b" /parts HTTP/1.1\r\nHost: w1\r\n\r\n")
                body = await client.answer(has_body=method == b"GET")
                assert body == (200, b"".join(PARTS) if method == b"GET" else b"")
            client.send(REQUEST)
            assert await client.answer() == (200, b"now")

    run(scenario())
