"""The paths of the node's REST server: documents, long polls, and the OpenAPI document."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.http_server.asgi import EVERYBODY, PROBE_PATHS, Access, Tokens
from k8s_rdma.server.app import DEFAULT_TIMEOUT_S, MAX_WATCHES, Watch, Watches, openapi_document, parse_watch
from server.serving import report, run, serving, telling_agent, until, until_generation

if TYPE_CHECKING:
    from collections.abc import Iterator
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


def test_document_has_every_path_and_names_only_schemas_that_are_there() -> None:
    document = openapi_document(Access(tokens=lambda: Tokens([])))
    assert document["openapi"].startswith("3.1")
    expected = {"/", "/getpfs", "/v1/node", "/metrics", "/healthz", "/readyz", "/openapi.json"}
    assert set(document["paths"]) == {*expected, "/v1/placements"}
    for path, operations in document["paths"].items():
        assert set(operations) == ({"get", "head"} if path in expected else {"post"})
        assert ("401" in responses(operations)) == (path not in PROBE_PATHS)
    schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) == schemas


def patterns(document: Any) -> Iterator[str]:
    below = document.values() if isinstance(document, dict) else document
    for each in below if isinstance(document, dict | list) else ():
        yield from patterns(each)
    if isinstance(document, dict) and isinstance(document.get("pattern"), str):
        yield document["pattern"]


def test_document_has_patterns_of_ecma_262_alone() -> None:
    """There `\\Z` is the letter Z, and a client would refuse every report that mentions a pod."""
    found = list(patterns(openapi_document(Access())))
    assert found
    assert all("\\Z" not in each and each.endswith("$") for each in found)


def test_document_says_of_each_path_whether_it_is_open_when_some_are() -> None:
    access = Access(tokens=lambda: Tokens([]), open_paths=frozenset({"/getpfs"}))
    paths = openapi_document(access)["paths"]
    open_to_all = {path for path in paths if "401" not in responses(paths[path])}
    assert open_to_all == PROBE_PATHS | {"/getpfs"}
    without_tokens = openapi_document(Access(open_paths=frozenset({"/getpfs"})))["paths"]
    assert "403" in without_tokens["/v1/node"]["get"]["responses"]
    assert "security" not in without_tokens["/v1/node"]["get"]


def test_document_demands_no_token_when_the_server_does_not() -> None:
    document = openapi_document(EVERYBODY)
    assert "securitySchemes" not in document["components"]
    assert all("401" not in responses(item) for item in document["paths"].values())


def responses(operations: dict[str, Any]) -> dict[str, Any]:
    return (operations.get("get") or operations["post"])["responses"]


def references(part: Any) -> list[str]:
    match part:
        case {"$ref": str(reference)}:
            return [reference]
        case dict():
            return [found for each in part.values() for found in references(each)]
        case list():
            return [found for each in part for found in references(each)]
        case _:
            return []


PATHS = ["/", "/getpfs", "/v1/node", "/metrics", "/healthz", "/readyz", "/openapi.json"]


def test_index_lists_every_path(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client:
            index = await client.get("/")
            assert index.status_code == 200
            assert index.headers["content-type"].startswith("text/plain")
            assert "server" not in index.headers
            for path in PATHS[1:]:
                assert f"GET {path} " in index.text

    run(scenario())


def test_node_is_sent_only_when_the_client_does_not_have_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client, telling_agent(tmp_path, report("e.1")) as agent:
            await until_generation(client, "e.1")
            for tags in ('"e.1"', 'W/"e.1"', '"x", "e.1"', '"x",W/"e.1" , "y"'):
                unchanged = await client.get("/v1/node", headers={"if-none-match": tags})
                assert (unchanged.status_code, unchanged.content) == (304, b"")
                assert unchanged.headers["etag"] == '"e.1"'
            for tags in ("", '"e.10"', "e.1", '"e.2"', "é"):
                headers = {"if-none-match": tags.encode("latin-1")}
                assert (await client.get("/v1/node", headers=headers)).status_code == 200
            await agent.send(report("e.2"))
            await until_generation(client, "e.2")
            changed = await client.get("/v1/node", headers={"if-none-match": '"e.1"'})
            assert (changed.status_code, changed.json()["generation"]) == (200, "e.2")

    run(scenario())


def test_readiness_is_whether_the_state_can_be_shown(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client:
            starting = await client.get("/readyz")
            assert (starting.status_code, starting.json()["error"]["reason"]) == (503, "agent_unreachable")
            async with telling_agent(tmp_path, report("e.1")):
                await until_generation(client, "e.1")
                assert (await client.get("/readyz")).status_code == 200
        async with serving(tmp_path, scan=lambda: report("scan.1")) as client:
            await until_generation(client, "scan.1")
            assert (await client.get("/readyz")).text == "ok\nledger: unavailable\n"

    run(scenario())


def test_head_has_the_headers_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client, telling_agent(tmp_path, report("e.1")):
            await until_generation(client, "e.1")
            for path in PATHS:
                head, get = await client.head(path), await client.get(path)
                assert (head.status_code, head.content) == (200, b"")
                assert head.headers["content-length"] == str(len(get.content))

    run(scenario())


def test_requests_that_would_change_state_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client:
            for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
                for path in PATHS:
                    answer = await client.request(method, path, content=b"x")
                    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
                    assert answer.json()["error"]["reason"] == "method_not_allowed"
            for path in ("/v1/nodes", "/v1/node/", "/%00", "/getpfs%20"):
                answer = await client.get(path)
                assert (answer.status_code, answer.json()["error"]["reason"]) == (404, "not_found")

    run(scenario())


def test_path_is_the_same_however_it_is_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client, telling_agent(tmp_path, report("e.1")):
            await until_generation(client, "e.1")
            expected = (await client.get("/getpfs")).content
            for path in ("/getpfs?", "/getpfs?v=1", "/%67etpfs"):
                assert (await client.get(path)).content == expected
            headers = {"if-none-match": '"e.1"'}
            assert (await client.get("/v1/node?", headers=headers)).status_code == 304

    run(scenario())


def test_answer_is_the_same_when_sent_many_times(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client, telling_agent(tmp_path, report("e.1")):
            await until_generation(client, "e.1")
            answers = [await client.get("/v1/node") for _ in range(20)]
            assert len({answer.content for answer in answers}) == 1
            assert {answer.headers["etag"] for answer in answers} == {'"e.1"'}

    run(scenario())
