"""The long poll: who waits for what, and what ends it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx2
import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.server.app import DEFAULT_TIMEOUT_S, MAX_WATCHES, Watch, Watches, parse_watch
from server.serving import report, run, serving, telling_agent, until, until_generation

if TYPE_CHECKING:
    from pathlib import Path


WAITING = "/v1/node?watch=e.1&timeout_s=300"


def asked(client: httpx2.AsyncClient, path: str = WAITING) -> asyncio.Task[httpx2.Response]:
    return asyncio.create_task(client.get(path, timeout=60))


async def waiting(client: httpx2.AsyncClient, count: int = 1) -> list[asyncio.Task[httpx2.Response]]:
    """Watchers that the server has, since it answered others that came after them."""
    watchers = [asked(client) for _ in range(count)]
    for _ in range(3):
        await client.get("/healthz")
    assert not any(watcher.done() for watcher in watchers)
    return watchers


def test_watcher_is_answered_when_the_state_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client, telling_agent(tmp_path, report("e.1")) as agent:
            await until_generation(client, "e.1")
            watchers = await waiting(client, 50)
            await agent.send(report("e.2"))
            for watcher in watchers:
                answer = await watcher
                assert (answer.status_code, answer.json()["generation"]) == (200, "e.2")
                assert answer.headers["etag"] == '"e.2"'

    run(scenario())


def test_watcher_goes_on_waiting_when_the_same_state_is_reported_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client, telling_agent(tmp_path, report("e.1")) as agent:
            await until_generation(client, "e.1")
            [watcher] = await waiting(client)
            await agent.send(report("e.1", allocations=()))
            await until(client, "/v1/node", lambda answer: not answer.json()["allocations"])
            assert not watcher.done()
            await agent.send(report("e.2"))
            assert (await watcher).json()["generation"] == "e.2"

    run(scenario())


@pytest.mark.parametrize("watched", ["e.0", "other.1", "e.1%2C"])
def test_watcher_is_answered_at_once_when_it_has_another_state(tmp_path: Path, watched: str) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client, telling_agent(tmp_path, report("e.1")):
            await until_generation(client, "e.1")
            answer = await client.get(f"/v1/node?watch={watched}&timeout_s=300")
            assert (answer.status_code, answer.json()["generation"]) == (200, "e.1")

    run(scenario())


@pytest.mark.parametrize("timeout", ["0", "0.01", "1e-2"])
def test_watcher_learns_that_the_state_is_unchanged_when_its_time_is_over(
    tmp_path: Path, timeout: str
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client, telling_agent(tmp_path, report("e.1")):
            await until_generation(client, "e.1")
            answer = await client.get(f"/v1/node?watch=e.1&timeout_s={timeout}")
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", '"e.1"')

    run(scenario())


@pytest.mark.parametrize("incomplete", [True, False])
def test_watcher_is_notified_when_the_state_cannot_be_shown_any_more(
    tmp_path: Path, incomplete: bool
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client, telling_agent(tmp_path, report("e.1")) as agent:
            await until_generation(client, "e.1")
            [watcher] = await waiting(client)
            if incomplete:
                await agent.send(report("e.2", unreadable=("PF enp4s0: no answer",)))
            else:
                agent.hang_up()
            assert (await watcher).status_code == 503
            assert (await client.get(WAITING)).status_code == 503  # at once

    run(scenario())


def test_watchers_are_answered_when_the_server_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        stop = asyncio.Event()
        async with serving(tmp_path, stop=stop) as client, telling_agent(tmp_path, report("e.1")):
            await until_generation(client, "e.1")
            watchers = await waiting(client, 3)
            stop.set()
            assert {(await watcher).status_code for watcher in watchers} == {304}

    run(scenario())


def test_watcher_that_hangs_up_makes_room_for_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client, telling_agent(tmp_path, report("e.1")) as agent:
            await until_generation(client, "e.1")
            watchers = [asked(client) for _ in range(MAX_WATCHES)]
            refused = await until(client, "/v1/node?watch=e.1&timeout_s=0", lambda it: it.status_code != 304)
            assert (refused.status_code, refused.json()["error"]["reason"]) == (503, "busy")
            assert refused.headers["retry-after"] == "1"
            watchers.pop().cancel()
            await until(client, "/v1/node?watch=e.1&timeout_s=0", lambda it: it.status_code == 304)
            await agent.send(report("e.2"))
            assert {(await watcher).status_code for watcher in watchers} == {200}

    run(scenario())


def test_client_that_takes_all_places_makes_room_for_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client, telling_agent(tmp_path, report("e.1")) as agent:
            await until_generation(client, "e.1")
            greedy = [asked(client) for _ in range(MAX_WATCHES)]
            await until(client, "/v1/node?watch=e.1&timeout_s=0", lambda it: it.status_code == 503)
            elsewhere = httpx2.AsyncHTTPTransport(local_address="127.0.0.2")
            async with httpx2.AsyncClient(base_url=client.base_url, transport=elsewhere) as other:
                waits = asked(other)
                answered, _ = await asyncio.wait(greedy, return_when=asyncio.FIRST_COMPLETED)
                assert [(await watcher).status_code for watcher in answered] == [304]
                assert (await client.get("/v1/node?watch=e.1")).status_code == 503
                await agent.send(report("e.2"))
                assert (await waits).status_code == 200

    run(scenario())


def test_places_are_shared_evenly_by_all_clients() -> None:
    watches = Watches(6)
    greedy = [watches.acquire("greedy") for _ in range(6)]
    assert watches.acquire("greedy") is None
    others = [watches.acquire("other") for _ in range(4)]
    assert [place is not None for place in others] == [True, True, True, False]
    assert sum(place.is_set() for place in greedy if place) == 3
    third = watches.acquire("third")
    assert third is not None
    assert watches.acquire("greedy") is None
    watches.release(third)
    assert watches.acquire("greedy") is not None


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("watch=", "watch: "),
        ("watch=%22e%22", "watch: "),
        ("watch=e%201", "watch: "),
        ("watch=%C3%A9", "watch: "),
        ("watch=e.1%0A", "watch: "),
        ("watch=" + "e" * 254, "watch: "),
        ("watch=e.1&watch=e.2", "watch: is given twice"),
        ("timeout_s=301", "timeout_s: "),
        ("watch=e.1&timeout_s=", "timeout_s: "),
        ("watch=e.1&timeout_s=-1", "timeout_s: "),
        ("watch=e.1&timeout_s=301", "timeout_s: "),
        ("watch=e.1&timeout_s=1e999", "timeout_s: "),
        ("watch=e.1&timeout_s=NaN", "timeout_s: "),
        ("watch=e.1&timeout_s=soon", "timeout_s: "),
        ("watch=e.1&timeout_s=%ED%B2%80", "timeout_s: "),
        ("wacth=e.1", "wacth: unknown key; did you mean watch?"),
        ("watch=e.1&timeout-s=1", "timeout-s: unknown key; did you mean timeout_s?"),
        ("&".join(f"a{n}=1" for n in range(100)), "query: "),
    ],
)
def test_watch_is_refused_naming_the_fault(tmp_path: Path, query: str, named: str) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client:
            answer = await client.get(f"/v1/node?{query}")
            assert answer.status_code == 400
            assert answer.json()["error"]["reason"] == "malformed_request"
            assert answer.json()["error"]["message"].startswith(named)

    run(scenario())


def test_watch_has_a_bounded_time_unless_another_is_given() -> None:
    assert parse_watch(b"") is None
    assert parse_watch(b"timeout_s=1") is None
    assert parse_watch(b"watch=e.1") == Watch(generation="e.1", timeout_s=DEFAULT_TIMEOUT_S)
    assert parse_watch(b"timeout_s=1.5&watch=a%2B%2Fb") == Watch(generation="a+/b", timeout_s=1.5)
    with pytest.raises(MalformedError):
        parse_watch(b"\xff=1")
