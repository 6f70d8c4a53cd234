"""How much a client may take of a server, tried with bytes of our own."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from contextlib import suppress

import pytest

from http_server.serving import REQUEST, Client, run, served
from k8s_rdma.http_server import ConnectionLimits

HEAD_LIMIT = 1024


def head_of(size: int, path: str = "/now") -> bytes:
    """A request whose target and fields are so long, as the limit counts them."""
    fixed = len(path) + len("Host: w1\r\n") + len("X: \r\n")
    return f"GET {path} HTTP/1.1\r\nHost: w1\r\nX: {'x' * (size - fixed)}\r\n\r\n".encode()


def reset_when_closed(client: Client) -> None:
    client.writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )


def reason(body: bytes) -> str:
    return json.loads(body)["error"]["reason"]


@pytest.mark.parametrize("path", ["/now", "/later-without-waiting"])
def test_head_is_refused_when_it_is_longer_than_the_limit_and_served_when_it_is_not(path: str) -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(head_bytes=HEAD_LIMIT)) as s:
            client = await s.connect()
            client.send(head_of(HEAD_LIMIT, path))
            assert (await client.answer())[0] == 200
            client.send(head_of(HEAD_LIMIT + 1, path))
            status, body = await client.answer()
            assert (status, reason(body)) == (431, "head_too_large")
            assert await client.ended()
            assert await s.answers()

    run(scenario())


@pytest.mark.parametrize("begin", [b"GET /", b"GET / HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\nX"])
def test_head_is_refused_when_it_never_ends(begin: bytes) -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(head_bytes=HEAD_LIMIT)) as s:
            client = await s.connect()
            client.send(begin)
            refused = asyncio.ensure_future(client.answer())
            while not refused.done():
                client.send(b"x" * 100)
                await asyncio.sleep(0)
            assert refused.result()[0] == 431
            client.close()

    run(scenario())


def test_head_in_parts_is_served_when_it_is_within_the_limit() -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(head_bytes=HEAD_LIMIT)) as s:
            client = await s.connect()
            request = head_of(HEAD_LIMIT)
            for begin in range(0, len(request), 100):
                client.send(request[begin : begin + 100])
                await client.writer.drain()
                await asyncio.sleep(0)
            assert await client.answer() == (200, b"now")

    run(scenario())


@pytest.mark.parametrize("path", ["/now", "/read"])
def test_body_is_refused_before_it_comes_when_it_is_announced_too_long(path: str) -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(body_bytes=100)) as s:
            client = await s.connect()
            client.send(f"GET {path} HTTP/1.1\r\nHost: w1\r\nContent-Length: 101\r\n\r\n".encode())
            status, body = await client.answer()
            assert (status, reason(body)) == (413, "body_too_large")
            client.send(b"x" * 101)  # bytes on their way do no harm
            assert await client.ended()
            assert await s.answers()

    run(scenario())


def test_body_without_a_length_is_refused_as_it_arrives() -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(body_bytes=100)) as s:
            client = await s.connect()
            client.send(b"POST /read HTTP/1.1\r\nHost: w1\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(3):
                client.send(b"30\r\n" + b"x" * 0x30 + b"\r\n")
            assert (await client.answer())[0] == 413
            assert await client.ended()

    run(scenario())


def test_body_within_the_limit_is_taken_and_the_next_request_served() -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(body_bytes=100)) as s:
            client = await s.connect()
            for path in ("/read", "/now"):
                head = f"GET {path} HTTP/1.1\r\nHost: w1\r\nContent-Length: 100\r\n\r\n"
                client.send(head.encode() + b"x" * 100)
                assert (await client.answer())[0] == 200
            client.send(REQUEST)
            assert await client.answer() == (200, b"now")

    run(scenario())


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
    ],
)
def test_request_is_refused_when_it_is_not_http(request_bytes: bytes) -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(request_bytes)
            status, body = await client.answer()
            assert (status, reason(body)) == (400, "malformed_request")
            assert await client.ended()

    run(scenario())


@pytest.mark.parametrize("begin", [b"0\r\nX: ", b"0\r\nX", b"1;", b"1\r\nx\r\n0\r\nX: ", b"0\r\nX: y\r\nX: "])
def test_body_with_endless_framing_is_refused(begin: bytes) -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(head_bytes=HEAD_LIMIT)) as s:
            client = await s.connect()
            client.send(b"POST /read HTTP/1.1\r\nHost: w1\r\nTransfer-Encoding: chunked\r\n\r\n" + begin)
            refused = asyncio.ensure_future(client.answer())
            while not refused.done():
                client.send(b"x" * 100)
                await asyncio.sleep(0)
            assert refused.result()[0] == 431
            client.close()

    run(scenario())


def test_empty_lines_are_refused_when_they_never_end() -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(head_bytes=HEAD_LIMIT)) as s:
            client = await s.connect()
            refused = asyncio.ensure_future(client.answer())
            while not refused.done():
                client.send(b"\r\n" * 50)
                await asyncio.sleep(0)
            assert refused.result()[0] == 431
            client.close()

    run(scenario())


UPGRADE = b"Host: w1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"


@pytest.mark.parametrize("path", [b"/now", b"/now?through=the-application"])
@pytest.mark.parametrize("then", [b"", b"\x00\x00\x12\x04"])
def test_upgrade_is_not_heeded_and_the_request_is_the_last(path: bytes, then: bytes) -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(b"GET %b HTTP/1.1\r\n%b\r\n%b" % (path, UPGRADE, then))
            head = await client.head()
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert b"connection: close" in head
            assert await client.reader.read() == b"now"

    run(scenario())


@pytest.mark.parametrize(
    "head",
    [
        b"CONNECT w1:1 HTTP/1.1\r\nHost: w1\r\n\r\n",
        b"POST /read HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (UPGRADE, len(REQUEST)),
        b"POST /read HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % UPGRADE,
        b"GET /now HTTP/2.0\r\nHost: w1\r\n\r\n",
    ],
)
def test_other_protocols_are_refused_and_following_data_is_no_request(head: bytes) -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(head + REQUEST)
            status, body = await client.answer()
            assert (status, reason(body)) == (501, "not_implemented")
            assert await client.ended()

    run(scenario())


@pytest.mark.parametrize("path", [b"/now", b"/now?through=the-application"])
@pytest.mark.parametrize(
    "hosts",
    [b"", b"Host: w1\r\nHost: w1\r\n", b"Host: w1\r\nhost: w2\r\n", b"Host: w1 w2\r\n", b"Host: w1/x\r\n"],
)
def test_request_is_refused_when_it_has_not_one_host(path: bytes, hosts: bytes) -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(b"GET %b HTTP/1.1\r\n%b\r\n" % (path, hosts))
            status, body = await client.answer()
            assert (status, reason(body)) == (400, "malformed_request")
            assert await client.ended()

    run(scenario())


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /now HTTP/1.0\r\n\r\n",
        b"GET /now HTTP/1.1\r\nHost: [fd00::1]:54005\r\n\r\n",
        b"GET /now HTTP/1.1\r\nHost:\r\n\r\n",
        b"GET /now HTTP/1.1\r\nHost: node-1.example:80\r\n\r\n",
        b"GET http://w1/now HTTP/1.1\r\nHost: w1\r\n\r\n",
    ],
)
def test_request_is_served_with_any_host_and_without_one_before_http_1_1(request_bytes: bytes) -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(request_bytes)
            assert (await client.answer())[0] == 200

    run(scenario())


ABORTED = [
    b"",
    b"GET",
    REQUEST,
    REQUEST * 2,
    b"GET /later HTTP/1.1\r\nHost: w1\r\n\r\n",
    b"GET /large HTTP/1.1\r\nHost: w1\r\n\r\n",
    b"GET /large?through=the-application HTTP/1.1\r\nHost: w1\r\n\r\n",
    b"POST /read HTTP/1.1\r\nHost: w1\r\nContent-Length: 9\r\n\r\nhalf",
    b"GET /now HTTP/1.1\r\n%b\r\n" % UPGRADE,
    b"\x00",
]


@pytest.mark.parametrize("sent", ABORTED)
def test_aborting_clients_are_not_logged(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with served() as s:
            for turns in range(20):
                client = await s.connect()
                reset_when_closed(client)
                client.send(sent)
                for _ in range(turns % 5):
                    await asyncio.sleep(0)
                client.close()
            assert await s.answers()
            s.paths.may.set()
            await s.until(lambda: not s.connections and not s.tasks)

    with caplog.at_level(logging.ERROR):
        run(scenario())
    assert not caplog.records


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\nHost: w1\r\nConnection: close\r\n\r\n" + REQUEST, b"GET http:// HTTP/1.1\r\n"],
)
def test_malformed_requests_are_not_logged(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(sent + b"\r\n")
            with suppress(ConnectionError):
                await client.reader.read()
            assert await s.answers()

    with caplog.at_level(logging.ERROR):
        run(scenario())
    assert not caplog.records


@pytest.mark.parametrize("count", [1, 5000])
def test_connection_ends_when_requests_follow_one_that_is_not_answered_yet(count: int) -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(b"GET /later HTTP/1.1\r\nHost: w1\r\n\r\n" + REQUEST * count)
            assert await client.ended()
            assert s.tasks <= 1
            assert await s.answers()

    run(scenario())


def test_connection_ends_when_a_request_comes_while_one_waits_for_its_answer() -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(b"GET /later HTTP/1.1\r\nHost: w1\r\n\r\n")
            await s.until(lambda: s.paths.waiting == 1)
            client.send(b"\r\n")  # an empty line is no request
            client.send(REQUEST)
            assert await client.ended()

    run(scenario())


@pytest.mark.parametrize("count", [2, 5000])
def test_first_request_alone_is_answered_when_more_come_with_it(count: int) -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(REQUEST * count)
            assert await client.answer() == (200, b"now")
            status, body = await client.answer()
            assert (status, reason(body)) == (400, "pipelined")
            assert await client.ended()

    run(scenario())


def test_head_is_refused_when_it_has_too_many_fields() -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(fields=8)) as s:
            for count, expected in ((7, 200), (8, 431)):
                client = await s.connect()
                client.send(b"GET /now HTTP/1.1\r\nHost: w1\r\n" + b"A:\r\n" * count + b"\r\n")
                assert (await client.answer())[0] == expected

    run(scenario())


def test_connection_ends_when_nonsense_follows_a_request_that_is_not_answered_yet() -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(b"GET /later HTTP/1.1\r\nHost: w1\r\n\r\n\x00")
            assert await client.ended()
            assert await s.answers()

    run(scenario())


def test_server_ends_when_clients_do_not() -> None:
    async def scenario() -> None:
        async with served() as s:
            reading, asking, silent = [await s.connect() for _ in range(3)]
            reading.send(b"GET /large HTTP/1.1\r\nHost: w1\r\n\r\n")
            await reading.head()
            reading.stop_reading()
            asking.send(REQUEST[:-2])
            await s.until(lambda: len(s.connections) == 3)
        assert await asking.ended()
        assert await silent.ended()
        reading.close()

    run(scenario())


@pytest.mark.parametrize("target", [b"/now", b"/now?through=the-application"])
def test_answer_is_the_same_at_once_and_through_the_application(target: bytes) -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(b"GET %b HTTP/1.1\r\nHost: w1\r\n\r\n" % target)
            head = (await client.head()).split(b"\r\n")
            assert head[0] == b"HTTP/1.1 200 OK"
            names = {line.split(b":")[0] for line in head[1:] if line}
            assert names == {b"date", b"content-type", b"content-length"}
            assert await client.reader.readexactly(3) == b"now"
            client.send(b"HEAD %b HTTP/1.1\r\nHost: w1\r\n\r\n" % target)
            assert await client.answer(has_body=False) == (200, b"")
            client.send(b"GET %b HTTP/1.1\r\nHost: w1\r\nConnection: close\r\n\r\n" % target)
            assert await client.answer() == (200, b"now")
            assert await client.ended()
            old = await s.connect()
            old.send(b"GET %b HTTP/1.0\r\n\r\n" % target)
            assert await old.answer() == (200, b"now")
            assert await old.ended()

    run(scenario())
