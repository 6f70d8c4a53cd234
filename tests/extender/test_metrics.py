"""Figures and log lines: what is counted, that readers of the format take it, one line for each decision."""

from __future__ import annotations

import json

import pytest
import structlog

from extender.faulty_api import Fault
from extender.serving import BIND, FILTER, PRIORITIZE, Served, served
from extender.world import cluster
from server.exposition_reader import Family, read, value

pytestmark = pytest.mark.anyio

PREFIX = "k8s_rdma_extender_"
KEYS = {
    "event",
    "log_level",
    "verb",
    "pod",
    "uid",
    "candidates",
    "reason",
    "reasons",
    "node",
    "error",
    "duration_s",
}


async def figures(s: Served) -> dict[str, Family]:
    answer = await s.http.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return read(answer.text)


async def test_requests_are_counted_and_timed_by_verb():
    async with cluster("w1") as c, served(c, max_body_bytes=4096) as s:
        await s.ready()
        await c.create_pod("p", 1)
        await s.post(FILTER, c.args("p"))
        await s.post(FILTER, "{")
        await s.post(FILTER, " " * 5000)
        found = await figures(s)
    for outcome in ("answered", "malformed", "too_long"):
        assert value(found, f"{PREFIX}requests_total", verb="filter", outcome=outcome) == 1
    seconds = f"{PREFIX}request_duration_seconds"
    assert value(found, f"{seconds}_count", verb="filter") == 3
    assert value(found, f"{seconds}_bucket", verb="filter", le="30.0") == 3
    assert value(found, f"{seconds}_sum", verb="filter") > 0
    assert value(found, f"{PREFIX}requests_in_flight", verb="filter") == 0
    assert value(found, f"{PREFIX}node_reports_total") == 1


async def test_decisions_are_counted_by_verb_and_reason():
    async with cluster("w1", "w2", "w3") as c, served(c) as s:
        await s.ready()
        for name in ("w1", "w2"):
            c.nodes[name].holds(other=9_000)
        await c.create_pod("p", 5_000)
        await s.post(FILTER, c.args("p"))
        await s.post(PRIORITIZE, c.args("p"))
        await s.post(FILTER, c.args("p", "w1", "w2"))
        await s.post(BIND, c.bind_args("p", "w3"))
        await c.create_pod("plain")
        await s.post(FILTER, c.args("plain"))
        await c.create_pod("bad", annotation="{")
        await s.post(FILTER, c.args("bad"))
        found = await figures(s)
    fit_cache = f"{PREFIX}decisions_total"
    for reason in ("fit", "insufficient", "nothing_asked", "malformed_annotation"):
        assert value(found, fit_cache, verb="filter", reason=reason) == 1
    assert value(found, fit_cache, verb="prioritize", reason="fit") == 1
    assert value(found, fit_cache, verb="bind", reason="bound") == 1
    verdicts = f"{PREFIX}verdicts_total"
    assert value(found, verdicts, verb="filter", reason="insufficient") == 4
    assert value(found, verdicts, verb="filter", reason="fit") == 1


async def test_refused_bind_is_counted_by_its_reason():
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        await c.create_pod("p", 5_000)
        await s.post(FILTER, c.args("p"))
        c.nodes["w1"].holds(other=9_000)
        await s.post(BIND, c.bind_args("p", "w1"))
        c.nodes["w1"].raw = b""
        await s.post(BIND, c.bind_args("p", "w1"))
        found = await figures(s)
    for reason in ("insufficient", "unreadable_node"):
        assert value(found, f"{PREFIX}decisions_total", verb="bind", reason=reason) == 1


async def test_failures_of_the_api_server_are_counted_by_call_and_kind():
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        await c.create_pod("p", 1)
        c.api.faults.append(Fault.REFUSED)
        await s.post(BIND, c.bind_args("p", "w1"))
        found = await figures(s)
    assert value(found, f"{PREFIX}api_errors_total", call="bind_pod", kind="refused") == 1
    assert value(found, f"{PREFIX}decisions_total", verb="bind", reason="api_failure") == 1
    assert value(found, f"{PREFIX}leader") == 1


async def test_each_decision_is_one_log_line_with_the_same_keys():
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        pod = await c.create_pod("p", 1)
        with structlog.testing.capture_logs() as lines:
            await s.post(FILTER, c.args("p", "w1", "gone"))
            await s.post(PRIORITIZE, c.args("p"))
            await s.post(BIND, c.bind_args("p", "w1"))
    told = [line for line in lines if line["event"] == "decision"]
    assert [line["verb"] for line in told] == ["filter", "prioritize", "bind"]
    assert all(set(line) == KEYS for line in told)
    assert {(line["pod"], line["uid"]) for line in told} == {("default/p", pod["metadata"]["uid"])}
    assert told[0]["reasons"] == {"fit": 1, "unreadable_node": 1}
    assert [line["candidates"] for line in told] == [2, 1, 1]
    assert told[2]["node"] == "w1"
    assert json.dumps(told)
