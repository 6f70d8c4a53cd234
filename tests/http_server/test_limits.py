"""What a client may take of a server, tried with bytes of our own."""

from __future__ import annotations

import asyncio
import json

import pytest

from http_server.serving import REQUEST, Paths, run, served
from k8s_rdma.http_server import Answer, Limits

QUICK = {"request_timeout_s": 0.2, "send_timeout_s": 0.2, "keep_alive_s": 0.2, "linger_s": 0.2}
HEAD_LIMIT = 1024


def head_of(size: int, path: str = "/now") -> bytes:
    """A request whose target and fields are so long, as the limit counts them."""
    fixed = len(path) + len("Host: w1\r\n") + len("X: \r\n")
    return f"GET {path} HTTP/1.1\r\nHost: w1\r\nX: {'x' * (size - fixed)}\r\n\r\n".encode()


def reason(body: bytes) -> str:
    return json.loads(body)["error"]["reason"]


@pytest.mark.parametrize("path", ["/now", "/later-without-waiting"])
def test_head_is_refused_when_it_is_longer_than_the_limit_and_served_when_it_is_not(path: str) -> None:
    async def scenario() -> None:
        async with served(limits=Limits(head_bytes=HEAD_LIMIT)) as s:
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
        async with served(limits=Limits(head_bytes=HEAD_LIMIT)) as s:
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
        async with served(limits=Limits(head_bytes=HEAD_LIMIT)) as s:
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
        async with served(limits=Limits(body_bytes=100)) as s:
            client = await s.connect()
            client.send(f"GET {path} HTTP/1.1\r\nHost: w1\r\nContent-Length: 101\r\n\r\n".encode())
            status, body = await client.answer()
            assert (status, reason(body)) == (413, "body_too_large")
            client.send(b"x" * 101)  # what is on its way does no harm
            assert await client.ended()
            assert await s.answers()

    run(scenario())


def test_body_is_refused_as_it_comes_when_nothing_was_announced() -> None:
    async def scenario() -> None:
        async with served(limits=Limits(body_bytes=100)) as s:
            client = await s.connect()
            client.send(b"POST /read HTTP/1.1\r\nHost: w1\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(3):
                client.send(b"30\r\n" + b"x" * 0x30 + b"\r\n")
            assert (await client.answer())[0] == 413
            assert await client.ended()

    run(scenario())


def test_body_within_the_limit_is_taken_and_the_next_request_served() -> None:
    async def scenario() -> None:
        async with served(limits=Limits(body_bytes=100)) as s:
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


@pytest.mark.parametrize(
    "sent",
    [
        b"G",
        REQUEST[:-2],
        b"POST /read HTTP/1.1\r\nHost: w1\r\nContent-Length: 9\r\n\r\nhalf",
        REQUEST + REQUEST[:-2],
    ],
)
def test_client_is_told_when_its_request_takes_too_long(sent: bytes) -> None:
    async def scenario() -> None:
        async with served(limits=Limits(**QUICK)) as s:
            client = await s.connect()
            client.send(sent)
            statuses = [(await client.answer())[0]]
            if sent.startswith(REQUEST):
                statuses.append((await client.answer())[0])
            assert statuses[-1] == 408
            assert await client.ended()

    run(scenario())


def test_client_is_cut_off_when_it_drips_its_request() -> None:
    async def scenario() -> None:
        async with served(limits=Limits(**QUICK)) as s:
            client = await s.connect()
            refused = asyncio.ensure_future(client.answer())
            client.send(b"GET / HTTP/1.1\r\nX: ")
            while not refused.done():
                client.send(b"x")
                await asyncio.sleep(0.01)
            assert refused.result()[0] == 408
            client.close()

    run(scenario())


@pytest.mark.parametrize(
    "before", [b"", REQUEST, b"GET /other HTTP/1.1\r\nHost: w1\r\n\r\n", REQUEST + b"\r\n"]
)
def test_connection_is_closed_when_nothing_is_asked_on_it(before: bytes) -> None:
    async def scenario() -> None:
        async with served(limits=Limits(**QUICK)) as s:
            client = await s.connect()
            client.send(before)
            if before:
                assert (await client.answer())[0] == 200
            assert await client.ended()
            await s.until(lambda: not s.connections)

    run(scenario())


@pytest.mark.parametrize("path", [b"/large", b"/large?through=the-application"])
def test_client_is_cut_off_when_it_does_not_read(path: bytes) -> None:
    async def scenario() -> None:
        async with served(limits=Limits(**{**QUICK, "keep_alive_s": 60})) as s:
            client = await s.connect()
            client.send(b"GET %b HTTP/1.1\r\nHost: w1\r\n\r\n" % path)
            await client.head()
            client.writer.transport.pause_reading()
            await s.until(lambda: not s.connections)
            client.close()
            assert await s.answers()

    run(scenario())


def test_client_that_reads_slowly_but_reads_gets_all() -> None:
    async def scenario() -> None:
        async with served(limits=Limits(**{**QUICK, "send_timeout_s": 10})) as s:
            client = await s.connect()
            client.send(b"GET /large HTTP/1.1\r\nHost: w1\r\n\r\n")
            await client.head()
            left = 50 << 20
            while left:
                left -= len(await client.reader.read(1 << 20))
                await asyncio.sleep(0)
            client.close()

    run(scenario())


def test_answers_to_pipelined_requests_do_not_pile_up_when_they_are_not_read() -> None:
    async def scenario() -> None:
        async with served(Paths(now=Answer(b"x" * 50_000))) as s:
            client = await s.connect()
            client.writer.transport.pause_reading()
            count = 2000
            client.send(REQUEST * count)
            await s.until(lambda: bool(s.connections) and s.connections[0].flow is not None)
            [connection] = s.connections
            await s.until(lambda: connection.flow.write_paused)
            assert connection.transport.get_write_buffer_size() < 1 << 20
            client.writer.transport.resume_reading()
            for _ in range(count):
                head = await client.head()
                assert b"200" in head
                await client.reader.readexactly(50_000)
            client.close()

    run(scenario())


def test_answers_come_in_order_when_the_first_has_to_wait() -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(b"GET /later HTTP/1.1\r\nHost: w1\r\n\r\n" + REQUEST)
            await s.until(lambda: s.paths.waiting == 1)
            s.paths.may.set()
            assert [await client.answer(), await client.answer()] == [(200, b"later"), (200, b"now")]

    run(scenario())


@pytest.mark.parametrize("path", [b"/now", b"/other"])
def test_idle_connection_is_closed_when_connections_are_retired(path: bytes) -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(b"GET %b HTTP/1.1\r\nHost: w1\r\n\r\n" % path)
            assert (await client.answer())[0] == 200
            s.server.retire_connections()
            assert await client.ended()

    run(scenario())


def test_request_under_way_is_answered_as_the_last_when_its_connection_is_retired() -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(b"GET /later HTTP/1.1\r\nHost: w1\r\n\r\n")
            await s.until(lambda: s.paths.waiting == 1)
            s.server.retire_connections()
            s.paths.may.set()
            assert b"connection: close" in await client.head()
            assert await client.reader.read() == b"later"

    run(scenario())


def test_connection_is_served_when_it_is_retired_before_its_first_request() -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            await s.until(lambda: bool(s.connections))
            s.server.retire_connections()
            client.send(REQUEST)
            assert await client.answer() == (200, b"now")

    run(scenario())


def test_connection_ends_when_nonsense_follows_a_request_that_is_not_answered_yet() -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(b"GET /later HTTP/1.1\r\nHost: w1\r\n\r\n\x00")
            assert await client.ended()
            assert await s.answers()

    run(scenario())


def test_silent_connections_make_room_when_there_are_too_many() -> None:
    async def scenario() -> None:
        async with served(limits=Limits(connections=4)) as s:
            silent = [await s.connect() for _ in range(4)]
            await s.until(lambda: len(s.connections) == 4)
            for _ in range(8):
                assert await s.answers()
            assert await silent[0].ended()
            assert len(s.connections) <= 4

    run(scenario())


def test_connection_that_was_served_stays_when_silent_ones_flood() -> None:
    async def scenario() -> None:
        async with served(limits=Limits(connections=4)) as s:
            client = await s.connect()
            client.send(REQUEST)
            await client.answer()
            flood = [asyncio.ensure_future((await s.connect()).ended()) for _ in range(20)]
            await s.until(lambda: sum(each.done() for each in flood) == 17)
            client.send(REQUEST)
            assert await client.answer() == (200, b"now")

    run(scenario())


def test_newcomer_is_told_when_all_connections_are_being_answered() -> None:
    async def scenario() -> None:
        async with served(limits=Limits(connections=2)) as s:
            busy = [await s.connect() for _ in range(2)]
            for client in busy:
                client.send(b"GET /later HTTP/1.1\r\nHost: w1\r\n\r\n")
            await s.until(lambda: s.paths.waiting == 2)
            newcomer = await s.connect()
            status, body = await newcomer.answer()
            assert (status, reason(body)) == (503, "busy")
            assert await newcomer.ended()
            s.paths.may.set()
            for client in busy:
                assert await client.answer() == (200, b"later")

    run(scenario())


def test_server_ends_when_clients_do_not() -> None:
    async def scenario() -> None:
        async with served() as s:
            reading, asking, silent = [await s.connect() for _ in range(3)]
            reading.send(b"GET /large HTTP/1.1\r\nHost: w1\r\n\r\n")
            await reading.head()
            reading.writer.transport.pause_reading()
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
