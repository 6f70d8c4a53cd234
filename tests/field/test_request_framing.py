"""Ends of request bodies that two readers saw at different places, so that a body's rest became a request.

A large body goes past the parser of heads here: both have to agree on its end, and a refused one has no rest.
"""

from __future__ import annotations

from hashlib import sha256

import pytest

from http_server.body_reader import LIMIT, SENT, Reader, head
from http_server.serving import REQUEST, Client, run, served

LARGE = 3 << 20
CHUNKED = b"Transfer-Encoding: chunked\r\n"


OTHER = b"GET /other HTTP/1.1\r\nHost: w1\r\n\r\n"
"""Another request than the one inside the bodies, whose answer is `now`."""


async def next_answer_is_to_other(client: Client) -> bool:
    """Whether the next answer is that of `OTHER`, or a refusal of it as pipelined."""
    status, body = await client.answer()
    return (status, body) == (200, b"later") or (status == 400 and b"pipelined" in body)


def test_rest_of_a_body_beyond_the_limit_is_no_request():
    """https://github.com/Field-of-Dream-Studio/hotaru/issues/28: no more than the limit was read."""

    async def scenario() -> None:
        async with served(Reader()) as s:
            client = await s.connect()
            client.send(head(LIMIT + len(REQUEST)) + SENT + REQUEST)
            status, _ = await client.answer()
            assert status == 413
            client.send(OTHER)
            assert await next_answer_is_to_other(client)
            assert await s.answers()

    run(scenario())


@pytest.mark.parametrize("cut", [0, 1, len(REQUEST)], ids=["at its end", "inside", "before it"])
def test_request_inside_a_body_that_was_refused_while_it_came_is_none(cut: int):
    """The same, with a body that loses its room to another one after its first 4 MiB."""

    async def scenario() -> None:
        paths = Reader()
        async with served(paths) as s:
            slow = []
            for last in (2, 3):
                client = await s.connect(local_addr=(f"127.0.0.{last}", 0))
                before = paths.received()
                client.send(head(LIMIT) + SENT[: 4 << 20])
                await s.until(lambda before=before: paths.received() == before + (4 << 20))
                slow.append(client)
            third = await s.connect(local_addr=("127.0.0.4", 0))
            third.send(head(LIMIT) + SENT)
            assert (await third.answer())[0] == 200
            inside = SENT[4 << 20 : -len(REQUEST)] + REQUEST
            slow[0].send(inside[: len(inside) - cut])
            await slow[0].writer.drain()
            slow[0].send(inside[len(inside) - cut :] + OTHER)
            status, _ = await slow[0].answer()
            assert status >= 400
            assert await next_answer_is_to_other(slow[0])
            assert await s.answers()

    run(scenario())


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: %d\r\n" % LARGE + CHUNKED,
        CHUNKED + b"Content-Length: %d\r\n" % LARGE,
        b"Content-Length: %d\r\nContent-Length: 5\r\n" % LARGE,
        b"Content-Length: 5\r\nContent-Length: %d\r\n" % LARGE,
        b"Content-Length: %d\r\nContent-Length: %d\r\n" % (LARGE, LARGE),
    ],
    ids=["length, chunked", "chunked, length", "large, small", "small, large", "twice"],
)
def test_body_with_two_ends_is_refused_and_no_sink_has_it(fields: bytes):
    """https://github.com/litespeedtech/openlitespeed/issues/392: the first field won, behind it the second.

    https://github.com/K0M15/webserv/issues/52: one part took the first length, another one the last.
    """

    async def scenario() -> None:
        paths = Reader()
        async with served(paths) as s:
            client = await s.connect()
            client.send(b"POST /read HTTP/1.1\r\nHost: w1\r\n" + fields + b"\r\n" + SENT[:LARGE] + REQUEST)
            status, _ = await client.answer()
            assert status == 400
            assert await client.ended()
            assert paths.sinks == []

    run(scenario())


@pytest.mark.parametrize("more", [1, len(OTHER) - 1, len(OTHER)])
def test_next_request_that_comes_in_one_piece_with_a_bodys_end_is_no_part_of_it(more: int):
    """https://github.com/shd101wyy/Yo/pull/440: whatever came with the last bytes was handed on as body."""

    async def scenario() -> None:
        paths = Reader()
        async with served(paths) as s:
            client = await s.connect()
            client.send(head(LARGE) + SENT[: LARGE - 1])
            await s.until(lambda: paths.received() == LARGE - 1)
            client.send(SENT[LARGE - 1 : LARGE] + OTHER[:more])
            assert await client.answer() == (200, sha256(SENT[:LARGE]).hexdigest().encode())
            client.send(OTHER[more:])
            assert await next_answer_is_to_other(client)

    run(scenario())
