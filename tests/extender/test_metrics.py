"""Figures of requests, in a format that readers take."""

from __future__ import annotations

import pytest

from extender.serving import FILTER, Served, served
from extender.world import cluster
from server.exposition_reader import Family, read, value

pytestmark = pytest.mark.anyio

PREFIX = "k8s_rdma_extender_"


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
