"""Failed calls of the API server, by call and kind of failure."""

from __future__ import annotations

import pytest

from extender.faulty_api import Fault
from extender.serving import BIND, served
from extender.test_metrics import PREFIX, figures
from extender.world import cluster
from server.exposition_reader import value

pytestmark = pytest.mark.anyio


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
