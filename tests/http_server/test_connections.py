"""Open connections of a server: their number, time and memory, whatever clients do."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from math import inf
from pathlib import Path
from typing import Any

import pytest

from http_server.certificates import Issuer
from http_server.serving import DEADLINE_S, REQUEST, Served, run, served
from http_server.test_limits import reason
from k8s_rdma.config.tls import TlsConfig
from k8s_rdma.http_server import ConnectionLimits
from k8s_rdma.http_server.asgi import tls_context
from k8s_rdma.http_server.connections import RECEIVE_BUFFER_BYTES

LARGE_BYTES = 3 << 20


def test_connection_reads_little_ahead_except_of_a_large_body() -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(b"POST /read HTTP/1.1\r\nHost: w1\r\nContent-Length: %d\r\n\r\n" % LARGE_BYTES)
            await s.until(lambda: bool(s.tasks))
            assert receive_buffer(s) > 2 * RECEIVE_BUFFER_BYTES
            client.send(bytes(LARGE_BYTES))
            assert await client.answer() == (200, b"later")
            assert receive_buffer(s) == 2 * RECEIVE_BUFFER_BYTES
            client.send(REQUEST)
            assert await client.answer() == (200, b"now")
            assert receive_buffer(s) == 2 * RECEIVE_BUFFER_BYTES

    run(scenario())


def receive_buffer(s: Served) -> int:
    """Of its one connection, as the kernel has it, with the kernel's own part."""
    [connection] = s.connections
    size: int = connection.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    return size


@pytest.mark.parametrize("encrypted", [False, True])
def test_connection_sends_without_delay_and_an_answer_at_once(tmp_path: Path, encrypted: bool) -> None:
    client: dict[str, Any] = {}
    server: dict[str, Any] = {}
    if encrypted:
        issuer = Issuer(tmp_path).make()
        made = issuer.issue("server")
        server["tls"] = tls_context(TlsConfig(cert_file=str(made.cert), key_file=str(made.key)))
        client["ssl"] = ssl.create_default_context(cafile=str(issuer.own.cert))

    async def scenario() -> None:
        async with served(**server) as s:
            client_side = await s.connect(**client)
            client_side.send(REQUEST)
            assert await client_side.answer() == (200, b"now")
            [connection] = s.connections
            with socket.socket(fileno=os.dup(connection.transport.get_extra_info("socket").fileno())) as same:
                assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                before = sent_segments(same)
                client_side.send(REQUEST)
                assert await client_side.answer() == (200, b"now")
                assert sent_segments(same) - before == 1

    run(scenario())


def sent_segments(connection: socket.socket) -> int:
    """Segments with data so far, `tcpi_data_segs_out` (include/uapi/linux/tcp.h): one a write, if small."""
    information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
    return int.from_bytes(information[156:160], sys.byteorder)


QUICK = {"request_timeout_s": 0.2, "send_timeout_s": 0.2, "keep_alive_s": 0.2, "linger_s": 0.2}


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(
    "sent",
    [
        b"G",
        REQUEST[:-2],
        b"POST /read HTTP/1.1\r\nHost: w1\r\nContent-Length: 9\r\n\r\nhalf",
    ],
)
def test_client_gets_an_answer_if_its_request_takes_too_long(sent: bytes) -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(**QUICK)) as s:
            client = await s.connect()
            client.send(sent)
            assert (await client.answer())[0] == 408
            assert await client.ended()

    run(scenario())


def test_client_is_cut_off_when_it_drips_its_request() -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(**QUICK)) as s:
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
def test_idle_connection_is_closed(before: bytes) -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(**QUICK)) as s:
            client = await s.connect()
            client.send(before)
            if before:
                assert (await client.answer())[0] == 200
            assert await client.ended()
            await s.until(lambda: not s.connections)

    run(scenario())


def test_server_sleeps_until_the_deadline_of_an_idle_client() -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(send_timeout_s=0.2)) as s:
            assert s.server.state.connections.due_s == inf
            client = await s.connect()
            client.send(REQUEST)
            assert (await client.answer())[0] == 200
            [connection] = s.connections
            assert connection.deadline > asyncio.get_running_loop().time() + 60
            await s.until(lambda: s.server.state.connections.due_s == connection.deadline)
            client.close()

    run(scenario())


@pytest.mark.parametrize("path", [b"/large", b"/large?through=the-application"])
def test_client_is_cut_off_when_it_does_not_read(path: bytes) -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(**{**QUICK, "keep_alive_s": 60})) as s:
            client = await s.connect()
            client.send(b"GET %b HTTP/1.1\r\nHost: w1\r\n\r\n" % path)
            await client.head()
            client.stop_reading()
            await s.until(lambda: not s.connections)
            client.close()
            assert await s.answers()

    run(scenario())


def test_client_that_reads_slowly_but_reads_gets_all() -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(**{**QUICK, "send_timeout_s": DEADLINE_S})) as s:
            client = await s.connect()
            client.send(b"GET /large HTTP/1.1\r\nHost: w1\r\n\r\n")
            await client.head()
            left = 50 << 20
            while left:
                some = await client.reader.read(1 << 20)
                assert some
                left -= len(some)
                await asyncio.sleep(0)
            client.close()

    run(scenario())


def test_silent_connections_make_room_when_there_are_too_many() -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(connections=4)) as s:
            silent = [await s.connect() for _ in range(4)]
            await s.until(lambda: len(s.connections) == 4)
            for _ in range(8):
                assert await s.answers()
            assert await silent[0].ended()
            assert len(s.connections) <= 4

    run(scenario())


def test_connection_that_was_served_stays_when_silent_ones_flood() -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(connections=4)) as s:
            client = await s.connect()
            client.send(REQUEST)
            await client.answer()
            flood = [asyncio.ensure_future((await s.connect()).ended()) for _ in range(20)]
            await s.until(lambda: sum(each.done() for each in flood) == 17)
            client.send(REQUEST)
            assert await client.answer() == (200, b"now")

    run(scenario())


def test_newcomer_gets_a_refusal_if_all_connections_are_busy() -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(connections=2)) as s:
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


def test_newcomer_that_is_refused_does_not_stay() -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(connections=2)) as s:
            for _ in range(2):
                client = await s.connect()
                client.send(b"GET /later HTTP/1.1\r\nHost: w1\r\n\r\n")
            await s.until(lambda: s.paths.waiting == 2)
            before = open_files()
            newcomers = [await s.connect() for _ in range(20)]
            for each in newcomers:
                assert (await each.answer())[0] == 503
            # Theirs are 20; the server has closed its side of them.
            await s.until(lambda: open_files() == before + 20)

    run(scenario())


def test_address_that_takes_all_connections_makes_room_for_others() -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(connections=4)) as s:
            greedy = [await s.connect() for _ in range(4)]
            for client in greedy:
                client.send(b"GET /later HTTP/1.1\r\nHost: w1\r\n\r\n")
            await s.until(lambda: s.paths.waiting == 4)
            other = await s.connect(local_addr=("127.0.0.2", 0))
            other.send(REQUEST)
            assert await other.answer() == (200, b"now")
            ended = [asyncio.ensure_future(client.ended()) for client in greedy]
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            assert sum(each.done() for each in ended) == 1

    run(scenario())


def test_address_with_few_connections_keeps_them_when_another_floods() -> None:
    async def scenario() -> None:
        async with served(limits=ConnectionLimits(connections=4, keep_alive_s=5)) as s:
            kept = [await s.connect(local_addr=("127.0.0.2", 0)) for _ in range(2)]
            for client in kept:
                client.send(REQUEST)
                await client.answer()  # from here on the one that would end the soonest
            flood = [asyncio.ensure_future((await s.connect()).ended()) for _ in range(20)]
            await s.until(lambda: sum(each.done() for each in flood) == 18)
            for client in kept:
                client.send(REQUEST)
                assert await client.answer() == (200, b"now")

    run(scenario())
