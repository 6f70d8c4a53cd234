"""The extender over HTTP: bodies that are invalid or too long, paths, being ready, and ending."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import tracemalloc

import pytest
from structlog.testing import capture_logs

from extender.serving import BIND, FILTER, PREEMPT, PRIORITIZE, Served, served
from extender.world import cluster
from k8s_rdma.http_server.bodies import Bodies

pytestmark = pytest.mark.anyio

LONG = "d" * 300_000
META = {"name": "p", "namespace": "d", "uid": "u"}
POD = {"metadata": META}
ASKING = {"metadata": {**POD["metadata"], "annotations": {"rdma_interfaces_required": "[{}]"}}}


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        (FILTER, "", "extender arguments"),
        (FILTER, "{", "extender arguments"),
        (FILTER, "null", "extender arguments"),
        (FILTER, "[" * 100_000, "extender arguments"),
        (FILTER, b"\xff\xfe{}", "extender arguments"),
        (FILTER, json.dumps({"Pod": POD}), "neither Nodes nor NodeNames"),
        (FILTER, json.dumps({"NodeNames": []}), "Pod"),
        (FILTER, json.dumps({"Pod": {"metadata": {"name": 1}}, "NodeNames": []}), "$.Pod.metadata.name"),
        (FILTER, json.dumps({"Pod": POD, "NodeNames": [1]}), "$.NodeNames[0]"),
        (FILTER, json.dumps({"Pod": ASKING, "Nodes": {"items": [{}]}}), "Nodes.items[0]"),
        (PRIORITIZE, json.dumps({"Pod": POD, "NodeNames": "w1"}), "$.NodeNames"),
        (BIND, json.dumps({"PodName": "p", "PodNamespace": "d", "PodUID": "u"}), "Node"),
        (BIND, json.dumps({"PodName": "p", "PodNamespace": "d", "PodUID": 7, "Node": "n"}), "$.PodUID"),
        (BIND, json.dumps({"PodName": "p\0", "PodNamespace": "d", "PodUID": "u", "Node": "n"}), "$.PodName"),
        (
            BIND,
            json.dumps({"PodName": "p", "PodNamespace": LONG, "PodUID": "u", "Node": "n"}),
            "253",
        ),
        (BIND, json.dumps({"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "../n"}), "$.Node"),
        (FILTER, json.dumps({"Pod": {"metadata": {**META, "uid": LONG}}, "NodeNames": []}), ".uid"),
        (PREEMPT, json.dumps({"Pod": {"metadata": {**META, "name": "a\0"}}}), "$.Pod.metadata.name"),
    ],
)
async def test_malformed_body_is_refused_by_field_and_the_next_is_answered(path, body, named):
    """kube-scheduler shows the text of a 200, and of other statuses their number alone."""
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        refused = await s.post(path, body)
        no_json = body in {"", "{", b"\xff\xfe{}"}
        assert refused.status_code == (400 if no_json or path not in {FILTER, BIND} else 200)
        assert refused.headers["content-type"] == "application/json"
        assert named in refused.json()["Error"]
        await c.create_pod("p")
        assert (await s.post(FILTER, c.args("p"))).json()["NodeNames"] == ["w1"]


@pytest.mark.parametrize("announced", [True, False])
async def test_body_beyond_the_limit_is_refused_with_advice_and_the_next_is_answered(announced):
    async with cluster("w1") as c, served(c, max_body_bytes=4096) as s:
        await s.ready()

        async def parts():
            for _ in range(64):
                yield b" " * 65_536

        content = b" " * 64 * 65_536 if announced else parts()
        refused = await s.http.post(FILTER, content=content)
        assert refused.status_code == 413
        assert "filter: the body is longer than 4096 bytes (maxBodyBytes)" in refused.json()["Error"]
        assert "nodeCacheCapable: true" in refused.json()["Error"]
        await c.create_pod("p")
        assert (await s.post(FILTER, c.args("p"))).status_code == 200


async def test_client_that_still_sends_gets_a_refusal_and_its_body_is_dropped():
    async with cluster("w1") as c, served(c, max_body_bytes=4096) as s:
        await s.ready()
        reader, writer = await asyncio.open_connection("127.0.0.1", s.port)
        size = 256 << 20
        writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (FILTER.encode(), size))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413 ")
        before = memory_kib()
        chunk = bytes(1 << 20)
        for _ in range(size // len(chunk)):
            writer.write(chunk)
            await writer.drain()
        assert memory_kib() - before < 64 << 10
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP/1.1 200 OK" in await reader.readuntil(b"ok\n")
        writer.close()


async def test_bodies_have_room_together_and_one_that_is_gone_leaves_its_own():
    async with cluster("w1") as c, served(c, max_body_bytes=65_536) as s:
        await s.ready()
        await c.create_pod("p")
        question = c.args("p") + b" " * 20_000
        _, writer = await asyncio.open_connection("127.0.0.1", s.port)
        writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 65536\r\n\r\n" % FILTER.encode())
        writer.write(b" " * 60_000)  # and no more
        while (refused := await s.post(FILTER, question)).status_code == 200:
            pass
        assert refused.status_code == 503
        assert "maxBodyBytes" in refused.json()["Error"]
        writer.close()
        while (await s.post(FILTER, question)).status_code != 200:
            pass


async def test_slowest_body_makes_room_when_other_addresses_take_all_of_it():
    async with cluster("w1") as c, served(c, max_body_bytes=65_536) as s:
        await s.ready()
        await c.create_pod("p")
        slow = [await half_a_body(s, f"127.0.0.{last}") for last in (2, 3)]
        for _ in range(3):
            assert (await s.post(FILTER, c.args("p") + b" " * 60_000)).status_code == 200
        for _, writer in slow:
            writer.write(b" " * 2768)
        statuses = sorted([(await reader.readuntil(b"\r\n")).split()[1] for reader, _ in slow])
        assert statuses == [b"400", b"408"], "one of them made room, and the other is answered"
        for _, writer in slow:
            writer.close()


async def half_a_body(s: Served, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection from an address on which a filter's body comes, and does not end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", s.port, local_addr=(address, 0))
    request = b"POST %b HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 65536\r\n\r\n"
    writer.write(request % FILTER.encode())
    await reader.readuntil(b"100 Continue\r\n\r\n")
    writer.write(b" " * 62_768)
    await writer.drain()
    return reader, writer


async def test_body_takes_no_more_memory_than_it_is_counted_for():
    size, part = 8 << 20, 1 << 16

    async def receive():
        nonlocal size
        size -= part
        return {"type": "http.request", "body": bytes(part), "more_body": size > 0}

    counted = size
    tracemalloc.start()
    try:
        async with Bodies(counted, bound="maxBodyBytes").reading({"headers": []}, receive) as body:
            assert len(body) == counted
        assert tracemalloc.get_traced_memory()[1] < 1.3 * counted
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("size", [(2 << 20) - 1, 2 << 20, 5_000_001])
async def test_large_body_is_read_as_it_was_sent(announced: bool, size: int):
    sent = random.Random(size).randbytes(size)
    parts = [sent[start : start + 60_000] for start in range(0, size, 60_000)]

    async def receive():
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    headers = [(b"content-length", b"%d" % size)] if announced else []
    async with Bodies(size, bound="maxBodyBytes").reading({"headers": headers}, receive) as body:
        assert bytes(body[:]) == sent


async def test_reply_of_megabytes_has_every_node_as_it_came():
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        await c.create_pod("p", 1)
        nodes = [{"metadata": {"name": "w1", "labels": {"x": "y" * 10_000}}} for _ in range(500)]
        body = json.dumps({"Pod": c.pods["p"], "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": None})
        reply = (await s.post(FILTER, body)).json()
        assert reply["Nodes"] == {"metadata": {}, "items": nodes}
        assert (reply["NodeNames"], reply["FailedNodes"], reply["Error"]) == (None, {}, "")


def memory_kib() -> int:
    """Return the peak memory of this process, which includes the server (ru_maxrss, KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def test_paths_are_those_of_the_configuration():
    async with cluster("w1") as c, served(c, filter_path="/rdma/f", bind_path="/rdma/b") as s:
        await s.ready()
        await c.create_pod("p")
        assert (await s.post("/rdma/f", c.args("p"))).status_code == 200
        assert (await s.post(FILTER, c.args("p"))).status_code == 404
        assert "PodName" in (await s.post("/rdma/b", "{}")).json()["Error"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", FILTER, "POST"), ("PUT", BIND, "POST"), ("POST", "/readyz", "GET, HEAD")],
)
async def test_wrong_method_is_refused_with_the_right_one(method, path, allowed):
    async with cluster() as c, served(c) as s:
        refused = await s.http.request(method, path)
        assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
        assert refused.json()["error"] == {
            "reason": "method_not_allowed",
            "message": f"{path} takes {allowed}, not {method}",
        }


async def test_unknown_path_is_answered_with_those_that_are_known():
    async with cluster() as c, served(c, filter_path="/rdma/f") as s:
        with capture_logs() as lines:
            refused = await s.post("/scheduler/filter", "{}")
        assert refused.status_code == 404
        message = refused.json()["error"]["message"]
        assert {"event": "request_refused", "error": message}.items() <= lines[-1].items()
        for path in ("/rdma/f (POST, filter)", f"{BIND} (POST, bind)", "/healthz", "/readyz", "/metrics"):
            assert path in message
        assert "/rdma/f" in (await s.http.get("/")).text


async def test_readyz_names_unlisted_objects_until_all_are_listed_and_healthz_always_succeeds():
    async with cluster("w1") as c:
        c.api.watching.clear()
        async with served(c) as s:
            while "nodes" in (starting := await s.http.get("/readyz")).text:
                assert starting.status_code == 503
            assert starting.status_code == 503
            assert "pods" in starting.text
            healthy = await s.http.get("/healthz")
            assert (healthy.status_code, healthy.text) == (200, "ok\n")
            c.api.watching.set()
            await s.ready()


async def test_bind_under_way_is_finished_when_the_extender_is_stopped():
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        c.api.writing.clear()
        pod = await c.create_pod("p", 1)
        uid = pod["metadata"]["uid"]
        body = {"PodName": "p", "PodNamespace": "default", "PodUID": uid, "Node": "w1"}
        bind = asyncio.create_task(s.post(BIND, json.dumps(body)))
        await c.api.begun.wait()
        s.stop.set()
        c.api.writing.set()
        assert (await bind).json() == {"Error": ""}
        await s.done
        assert await c.node_of("p") == "w1"


KNOWN = "/f (POST, filter), /p (POST, prioritize), /v (POST, preempt), /b (POST, bind)"
VIEWS = "/healthz, /readyz, /metrics, /v1/explain, /v1/cluster, /v1/holders, /v1/namespace"


def error(reason: str, message: str) -> str:
    return json.dumps({"error": {"reason": reason, "message": message}}, separators=(",", ":"))


def unknown(path: str) -> str:
    return error("not_found", f"there is no path {path}; there are {KNOWN}, {VIEWS}")


@pytest.mark.parametrize("method", ["", "HEAD"])
@pytest.mark.parametrize(
    ("other", "path", "status", "fields", "body"),
    [
        ("GET", "/healthz", "200 OK", ["content-type: text/plain; charset=utf-8"], "ok\n"),
        ("GET", "/f/", "404 Not Found", ["content-type: application/json"], unknown("/f/")),
        ("GET", "/f%0A", "404 Not Found", ["content-type: application/json"], unknown("/f\n")),
        ("PUT", "/none", "404 Not Found", ["content-type: application/json"], unknown("/none")),
        (
            "GET",
            "/f",
            "405 Method Not Allowed",
            ["allow: POST", "content-type: application/json"],
            error("method_not_allowed", "/f takes POST, not {method}"),
        ),
    ],
)
async def test_paths_are_answered_the_same_to_the_byte(*, method, other, path, status, fields, body):
    sent = method or other
    body = body.replace("{method}", sent)
    paths = {"filter_path": "/f", "prioritize_path": "/p", "preempt_path": "/v", "bind_path": "/b"}
    async with cluster() as c, served(c, **paths) as s:
        reader, writer = await asyncio.open_connection("127.0.0.1", s.port)
        writer.write(f"{sent} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head, _, content = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
    lines = [line for line in head.split("\r\n") if not line.startswith("date: ")]
    length = f"content-length: {len(body)}"
    assert lines == [f"HTTP/1.1 {status}", *fields, length, "connection: close"]
    assert content == ("" if sent == "HEAD" else body)
