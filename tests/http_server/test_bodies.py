"""Bodies of requests: large ones over real sockets, and memory that the kernel does not give."""

from __future__ import annotations

import subprocess
import sys
import weakref
from hashlib import sha256

import pytest

from http_server.body_reader import LIMIT, SENT, Reader, head
from http_server.serving import REQUEST, Client, Served, run, served
from k8s_rdma.http_server import ConnectionLimits
from k8s_rdma.http_server.bodies import Bodies

DIGEST = sha256(SENT).hexdigest().encode()

READ = """
import asyncio, resource
from k8s_rdma.http_server.bodies import Bodies

BODY, PART = 64 << 20, 1 << 20
bodies = Bodies(BODY, bound="maxBodyBytes")


async def read(count):
    parts = [bytes(PART)] * count

    async def receive():
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    scope = {"headers": [(b"content-length", b"%d" % BODY)], "client": ("192.0.2.1", 1)}
    async with bodies.reading(scope, receive) as body:
        return len(body)


async def main():
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + BODY // 2
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print(await read(4))
    try:
        await read(63)
    except MemoryError:
        print("no memory", dict(bodies._bytes))


asyncio.run(main())
"""


def test_body_grows_as_it_arrives_without_memory_for_all_of_it_and_is_counted_once() -> None:
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == [str(4 << 20), "no memory {}", ""]


async def begun(s: Served, paths: Reader, size: int, address: str = "127.0.0.1") -> Client:
    """A client that has sent so much of a body of the limit's size, all of which has come."""
    before = paths.received()
    client = await s.connect(local_addr=(address, 0))
    client.send(head(LIMIT) + SENT[:size])
    await s.until(lambda: paths.received() == before + size)
    return client


CUTS = {
    "whole": [head(LIMIT) + SENT],
    "after its head": [head(LIMIT), SENT],
    "in parts": [head(LIMIT) + SENT[:100], SENT[100 : (2 << 20) + 1], SENT[(2 << 20) + 1 : -1], SENT[-1:]],
}


@pytest.mark.parametrize("parts", CUTS.values(), ids=CUTS)
def test_large_body_is_received_by_its_sink_as_it_was_sent_and_so_is_the_next(parts: list[bytes]) -> None:
    async def scenario() -> None:
        paths = Reader()
        async with served(paths) as s:
            client = await s.connect()
            for number in (1, 2):
                for part in parts:
                    client.send(part)
                    await client.writer.drain()
                assert await client.answer() == (200, DIGEST)
                assert len(paths.sinks) == number
                assert paths.in_messages < number * LIMIT // 2, "the rest is received into its place"
                client.send(REQUEST)
                assert await client.answer() == (200, b"now")
            assert paths.received() == 0

    run(scenario())


@pytest.mark.parametrize("size", [(2 << 20) - 1, 2 << 20, (2 << 20) + 1, (2 << 20) + 70_000])
def test_body_is_whole_if_it_ends_about_where_its_sink_begins(size: int) -> None:
    async def scenario() -> None:
        async with served(Reader()) as s:
            client = await s.connect()
            for _ in range(3):
                client.send(head(size) + SENT[:size])
                assert await client.answer() == (200, sha256(SENT[:size]).hexdigest().encode())
                client.send(REQUEST)
                assert await client.answer() == (200, b"now")

    run(scenario())


def test_bytes_after_a_large_body_are_no_part_of_it() -> None:
    async def scenario() -> None:
        async with served(Reader()) as s:
            client = await s.connect()
            client.send(head(LIMIT) + SENT + REQUEST)
            status, body = await client.answer()
            assert (status, body) == (200, DIGEST) or (status == 400 and b"pipelined" in body)
            assert await s.answers()

    run(scenario())


def test_large_body_that_needs_anothers_room_has_it_and_that_one_is_refused_with_its_next_byte() -> None:
    async def scenario() -> None:
        paths = Reader()
        async with served(paths) as s:
            slow, other = [await begun(s, paths, 4 << 20, f"127.0.0.{last}") for last in (2, 3)]
            third = await s.connect(local_addr=("127.0.0.4", 0))
            third.send(head(LIMIT) + SENT)
            assert await third.answer() == (200, DIGEST)
            assert paths.sinks[0].get_buffer() is None, "its memory is free before it sends on"
            for client in (slow, other):
                client.send(SENT[4 << 20 :])
            assert (await slow.answer())[0] == 408
            assert await other.answer() == (200, DIGEST)
            slow.send(REQUEST)
            assert await slow.answer() == (200, b"now")
            assert paths.received() == 0

    run(scenario())


def test_large_body_without_room_is_refused_and_the_rest_of_it_is_dropped() -> None:
    async def scenario() -> None:
        paths = Reader()
        async with served(paths) as s:
            first = await begun(s, paths, 2 << 20)
            second = await s.connect()
            second.send(head(LIMIT) + SENT)
            status, body = await second.answer()
            assert (status, b"try again" in body) == (503, True)
            second.send(REQUEST)
            assert await second.answer() == (200, b"now")
            first.send(SENT[2 << 20 :])
            assert await first.answer() == (200, DIGEST)

    run(scenario())


def test_large_body_of_a_client_that_leaves_is_given_back() -> None:
    async def scenario() -> None:
        paths = Reader()
        async with served(paths) as s:
            client = await begun(s, paths, 3 << 20)
            client.close()
            await s.until(lambda: paths.received() == 0 and not s.tasks)
            assert paths.sinks[0].get_buffer() is None
            assert await s.answers()

    run(scenario())


def test_large_body_that_does_not_come_in_time_is_refused_and_given_back() -> None:
    async def scenario() -> None:
        paths = Reader()
        async with served(paths, limits=ConnectionLimits(request_timeout_s=1)) as s:
            client = await begun(s, paths, 3 << 20)
            assert (await client.answer())[0] == 408
            await s.until(lambda: paths.received() == 0 and not s.tasks)
            client.send(SENT[3 << 20 :])
            assert await client.ended()

    run(scenario())


def test_body_that_made_room_is_given_back_once() -> None:
    async def scenario() -> None:
        paths = Reader()
        async with served(paths) as s:
            slow, same = [await begun(s, paths, size, "127.0.0.2") for size in (3 << 20, 1 << 20)]
            other = await begun(s, paths, 4 << 20, "127.0.0.3")
            third = await s.connect(local_addr=("127.0.0.4", 0))
            third.send(head(LIMIT) + SENT)
            assert await third.answer() == (200, DIGEST)
            slow.send(SENT[3 << 20 :])
            assert (await slow.answer())[0] == 408
            assert paths.bodies._bytes == {"127.0.0.2": 1 << 20, "127.0.0.3": 4 << 20}
            for client, size in ((same, 1 << 20), (other, 4 << 20)):
                client.send(SENT[size:])
                assert await client.answer() == (200, DIGEST)
            assert paths.received() == 0

    run(scenario())


async def whole(s: Served, size: int = LIMIT, address: str = "127.0.0.1") -> None:
    """A body that comes and is answered."""
    client = await s.connect(local_addr=(address, 0))
    client.send(head(size) + SENT[:size])
    assert await client.answer() == (200, sha256(SENT[:size]).hexdigest().encode())
    client.close()


def test_memory_of_a_large_body_is_the_next_ones_of_any_size() -> None:
    async def scenario() -> None:
        paths = Reader()
        async with served(paths) as s:
            for size in (4 << 20, 3_000_001, LIMIT):
                await whole(s, size)
            assert len({id(content) for content in paths.contents}) == 1
            assert len(paths.contents[0]) == LIMIT
            assert paths.received() == 0

    run(scenario())


def test_memory_of_a_large_body_is_not_given_to_another_while_a_part_of_it_is_in_use() -> None:
    async def scenario() -> None:
        paths = Reader()
        async with served(paths) as s:
            await whole(s, 3 << 20)
            part = memoryview(paths.contents[0])
            await whole(s, LIMIT)
            assert part == SENT[: 3 << 20]
            assert paths.contents[0] is not paths.contents[1]

    run(scenario())


def test_memory_of_a_large_body_counts_whole_while_another_one_has_it() -> None:
    async def scenario() -> None:
        paths = Reader()
        async with served(paths) as s:
            await whole(s)
            client = await s.connect()
            client.send(head(LIMIT) + SENT[: 3 << 20])
            await s.until(lambda: paths.received() == LIMIT)
            client.send(SENT[3 << 20 :])
            assert await client.answer() == (200, DIGEST)
            assert paths.received() == 0

    run(scenario())


def test_memory_of_a_large_body_makes_room_for_others() -> None:
    async def scenario() -> None:
        paths = Reader()
        async with served(paths) as s:
            await whole(s)
            kept = weakref.ref(paths.contents.pop())
            first = await begun(s, paths, 1 << 20, "127.0.0.2")
            assert kept() is not None
            others = [await begun(s, paths, 5 << 18, f"127.0.0.{last}") for last in (3, 4, 5, 6)]
            assert kept() is None
            for client, size in ((first, 1 << 20), *((other, 5 << 18) for other in others)):
                client.send(SENT[size:])
                assert await client.answer() == (200, DIGEST)
            assert paths.received() == 0

    run(scenario())


def test_memory_of_a_large_body_is_given_back_when_it_is_not_used() -> None:
    async def scenario() -> None:
        paths = Reader(bodies=Bodies(LIMIT, bound="maxBodyBytes", spare_s=0.01))
        async with served(paths) as s:
            await whole(s)
            kept = weakref.ref(paths.contents.pop())
            await s.until(lambda: kept() is None)
            await whole(s)

    run(scenario())
