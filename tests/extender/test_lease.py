"""The Lease: who may bind, when, and what the next one waits for."""

from __future__ import annotations

import asyncio
import contextlib

import httpx2
import pytest

from extender.faulty_api import Fault
from extender.serving import BIND, FILTER, PRIORITIZE, served
from extender.world import cluster, extending, until
from kube.memory_leases import LEASE_S, SteppedLeases

pytestmark = pytest.mark.anyio


async def test_extender_makes_no_promise_until_it_holds_its_lease_and_its_watch_has_caught_up():
    api = SteppedLeases()
    api.put("before")
    lease = api.lease()
    async with cluster("w1") as c, extending(c, lease=lease) as w:
        await w.create_pod("p", 1)
        await w.create_pod("plain")
        assert "is starting" in await w.bind("p", "w1")
        assert "is starting" in (await w.filter("p"))["Error"]
        assert await w.bind("plain", "w1") == ""
        await until(lambda: any("held by before" in what for what in w.extender.missing()))
        w.api.streaming.clear()
        api.put("")
        api.step()
        await until(lease.holds)
        assert w.extender.missing() == ["pods"]
        assert "is starting" in await w.bind("p", "w1")
        w.api.streaming.set()
        await until(lambda: not w.extender.missing())
        assert await w.bind("p", "w1") == ""
    assert api.stored.holder == ""


async def test_scheduler_keeps_its_connection_to_a_leader_and_to_no_other_replica():
    api = SteppedLeases()
    lease = api.lease()
    async with cluster("w1") as c, served(c, lease=lease) as s:
        await s.ready()
        await c.create_pod("p", 1)
        verbs = {FILTER: c.args("p"), PRIORITIZE: c.args("p"), BIND: c.bind_args("p", "w1")}
        requests = [*verbs.items(), (FILTER, b"{")]
        for path, body in requests:
            assert "connection" not in (await s.post(path, body)).headers
        api.put("other")
        api.step()
        await until(lambda: not lease.holds())
        for path, body in requests:
            assert (await s.post(path, body)).headers["connection"] == "close"


async def test_replica_closes_a_connection_soon_after_its_last_request():
    """When it hangs later, it closes none any more."""
    async with cluster("w1") as c, served(c, lease=SteppedLeases().lease()) as s:
        await s.ready()
        reader, writer = await asyncio.open_connection("127.0.0.1", s.port)
        for _ in range(2):
            writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n{" % FILTER.encode())
            assert b"connection: close" not in await reader.readuntil(b'"}')
        async with asyncio.timeout(120):
            assert await reader.read() == b""
        writer.close()


async def test_scheduler_keeps_its_connection_when_there_is_no_lease():
    async with cluster("w1") as c, served(c, lease_name="") as s:
        await s.ready()
        await c.create_pod("p", 1)
        assert "connection" not in (await s.post(FILTER, c.args("p"))).headers


async def test_extender_that_lost_its_lease_promises_again_when_it_has_it_back_and_has_caught_up():
    api = SteppedLeases()
    lease = api.lease()
    async with cluster("w1") as c, extending(c, lease=lease) as w:
        await until(lambda: not w.extender.missing())
        api.put("other")
        api.step()
        await until(lambda: not lease.holds())
        await w.create_pod("p", 1)
        assert "is starting" in await w.bind("p", "w1")
        w.api.streaming.clear()
        api.put("")
        api.step()
        await until(lease.holds)
        assert "is starting" in await w.bind("p", "w1")
        w.api.streaming.set()
        await until(lambda: not w.extender.missing())
        assert await w.bind("p", "w1") == ""


async def test_bind_is_not_written_when_the_lease_expires_while_the_node_is_polled():
    api = SteppedLeases()
    lease = api.lease()
    async with cluster("w1") as c, extending(c, lease=lease) as w:
        await until(lambda: not w.extender.missing())
        await w.create_pod("p", 1)
        asked = w.nodes["w1"].asked
        w.nodes["w1"].answering.clear()
        bind = asyncio.create_task(w.bind("p", "w1"))
        await until(lambda: w.nodes["w1"].asked > asked)
        api.now += LEASE_S
        w.nodes["w1"].answering.set()
        assert "is starting" in await bind
        assert w.api.started == []


@pytest.mark.parametrize("how", ["is read unbound", "is bound", "is deleted"])
async def test_finish_returns_when_the_pod_in_doubt_is_known_to_be_bound_or_not(how):
    api_request_timeout_s = 0.01 if how == "is read unbound" else 3600.0
    async with cluster("w1") as c, extending(c, api_request_timeout_s=api_request_timeout_s) as w:
        await until(lambda: not w.extender.missing())
        w.api.touchable = False
        w.api.faults.append(Fault.LATE)
        await w.create_pod("p", 6_000)
        assert "no answer" in await w.bind("p", "w1")
        w.api.reading.clear()  # when it is read again
        pod_writer = w.extender.pod_writer
        finish = asyncio.create_task(pod_writer.finish(3600.0))
        assert (await asyncio.wait([finish], timeout=0))[1]
        assert pod_writer.undecided() == ["default/p"]
        w.api.reading.set()
        if how == "is bound":
            w.api.late.set()
        if how == "is deleted":
            await w.delete_pod("p")
        await finish
        assert pod_writer.undecided() == []
        w.api.late.set()
        await asyncio.gather(*w.api.late_writes)


async def test_stop_gives_the_lease_back_when_the_last_doubt_is_over():
    api = SteppedLeases()
    async with cluster("w1") as c, served(c, lease=api.lease(), api_request_timeout_s=3600.0) as s:
        await s.ready()
        c.api.touchable = False
        c.api.faults.append(Fault.LATE)
        await c.create_pod("p", 6_000)
        assert "no answer" in (await s.post(BIND, c.bind_args("p", "w1"))).json()["Error"]
        s.stop.set()
        with contextlib.suppress(httpx2.TransportError):
            while True:
                await s.http.get("/readyz")
        assert (await asyncio.wait([s.done], timeout=0.3))[1]  # it would have ended by now
        c.api.late.set()
        await s.done
        assert api.stored.holder == ""


async def test_next_extender_fences_doubtful_binds_of_the_former_one_before_it_binds():
    api = SteppedLeases()
    async with cluster("w1") as c:
        async with served(c, lease=api.lease(), api_request_timeout_s=3600.0, shutdown_s=0.05) as s:
            await s.ready()
            c.api.touchable = False
            c.api.faults.append(Fault.LATE)
            await c.create_pod("p", 6_000)
            await s.post(BIND, c.bind_args("p", "w1"))
            s.stop.set()
            await s.done
        assert api.stored.holder == "me"
        c.api.touchable = True
        async with extending(c, lease=api.lease("next"), api_request_timeout_s=3600.0) as w:
            await w.create_pod("q", 6_000)
            assert "is starting" in await w.bind("q", "w1")
            while w.extender.missing():
                api.step()
                await asyncio.sleep(0.002)
            assert set(w.api.fenced) == {"p", "q"}
            assert await w.bind("q", "w1") == ""
            w.api.late.set()  # the write of the process before
            await asyncio.gather(*w.api.late_writes)
            assert await w.node_of("p") is None


async def test_stop_keeps_the_lease_when_a_write_was_cut_short():
    api = SteppedLeases()
    async with cluster("w1") as c, extending(c, lease=api.lease()) as w:
        await until(lambda: not w.extender.missing())
        w.api.writing.clear()
        await w.create_pod("p", 6_000)
        bind = asyncio.create_task(w.bind("p", "w1"))
        await w.api.begun.wait()
        bind.cancel()
        await asyncio.gather(bind, return_exceptions=True)
    assert api.stored.holder == "me"
