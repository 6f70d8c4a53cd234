"""Leadership: the duties of an extender before it binds, its right to bind, and the end of that."""

from __future__ import annotations

import asyncio
import contextlib
import json

import httpx2
import pytest

from extender.faulty_api import Fault
from extender.serving import BIND, FILTER, PRIORITIZE, served
from extender.world import cluster, extending, interfaces, until
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.kube.leader_election import LeaderElectionConfig, LeaderElector
from k8s_rdma.kube.published_api import LeaseView
from k8s_rdma_demo.cluster.registry import MAX_OBJECT_BYTES
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
    """If it hangs later, it cannot close connections any more."""
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


class Crashed:
    """A Lease whose holder does not renew it."""

    def __init__(self) -> None:
        self.stored = LeaseView(namespace="n", name="l", holder="before", duration_s=0, version="1")

    async def get_lease(self, _namespace: str, _name: str) -> LeaseView:
        return self.stored

    async def write_lease(self, lease: LeaseView) -> LeaseView:
        if lease.version != self.stored.version:
            raise ApiRefusedError("write lease: modified", status=409)
        self.stored = LeaseView(
            namespace="n",
            name="l",
            holder=lease.holder,
            duration_s=lease.duration_s,
            version=lease.version + "1",
        )
        return self.stored


@pytest.mark.parametrize("touchable", [True, False])
async def test_only_a_new_binder_that_may_not_touch_pods_waits_for_requests_of_the_former_one(
    touchable: bool,
):
    leases = Crashed()
    lease = LeaderElector(
        leases,
        LeaderElectionConfig(namespace="n", name="l", holder="me", lease_s=15),
        asyncio.get_running_loop().time,
    )
    async with cluster("w1") as c:
        c.api.touchable = touchable
        await c.create_pod("p", 1)
        async with extending(c, lease=lease, api_request_timeout_s=3600.0) as w:
            while leases.stored.holder != "me":  # noqa: ASYNC110  it is a state of the test's own
                await asyncio.sleep(0.01)
            if touchable:
                while w.extender.missing():  # noqa: ASYNC110  that is the interface
                    await asyncio.sleep(0.01)
                assert await w.bind("p", "w1") == ""
            else:
                while not any("may take effect" in what for what in w.extender.missing()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                assert "is starting" in await w.bind("p", "w1")
        assert leases.stored.holder == ("" if touchable else "me")


@pytest.mark.parametrize("labelled", [True, False])
async def test_new_binder_does_not_wait_for_a_pod_whose_annotations_are_full(labelled: bool):
    """The fence is a label then; else a pod's owner would decide how long a fail-over takes."""
    leases = Crashed()
    lease = LeaderElector(
        leases,
        LeaderElectionConfig(namespace="n", name="l", holder="me", lease_s=15),
        asyncio.get_running_loop().time,
    )
    async with cluster("w1") as c:
        await c.create_pod("full", 1)
        length = 262_144 - len("rdma_interfaces_required") - len(interfaces(1)) - len("padding")
        await c.patch_pod("full", {"metadata": {"annotations": {"padding": "x" * length}}})
        c.api.labelled = labelled
        await c.create_pod("p", 1)
        async with extending(c, lease=lease, api_request_timeout_s=3600.0) as w:
            if labelled:
                while w.extender.missing():  # noqa: ASYNC110  that is the interface
                    await asyncio.sleep(0.01)
                assert sorted(c.api.fenced) == ["full", "p"]
                assert await w.bind("p", "w1") == ""
            else:  # it waits for pods without a fence
                while not any("may take effect" in what for what in w.extender.missing()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)


async def test_new_binder_does_not_wait_for_a_pod_that_is_as_long_as_etcd_takes():
    """A Binding writes more to a pod than the fence does: if the fence does not fit, no Binding does."""
    leases = Crashed()
    lease = LeaderElector(
        leases,
        LeaderElectionConfig(namespace="n", name="l", holder="me", lease_s=15),
        asyncio.get_running_loop().time,
    )
    async with cluster("w1") as c:
        await c.create_pod("large", 1)
        await c.patch_pod("large", {"metadata": {"labels": {"padding": ""}}})
        length = MAX_OBJECT_BYTES - len(json.dumps(await c.read_pod("large"), separators=(",", ":"))) - 10
        await c.patch_pod("large", {"metadata": {"labels": {"padding": "x" * length}}})
        await c.create_pod("p", 1)
        async with extending(c, lease=lease, api_request_timeout_s=3600.0) as w:
            while w.extender.missing():  # noqa: ASYNC110  that is the interface
                await asyncio.sleep(0.01)
            assert c.api.fenced == ["p"]
            assert await w.bind("p", "w1") == ""
            assert "longer than etcd takes" in await w.bind("large", "w1")
            assert not w.extender.pod_writer.undecided()


async def test_new_extender_fences_late_writes_of_the_former_one():
    async with cluster("w1") as c:
        await c.create_pod("p", 6_000)
        await c.create_pod("q", 6_000)
        await c.create_pod("plain")
        c.api.faults.append(Fault.LATE)
        c.api.untouched = 10
        async with extending(c) as w:
            w.api.untouched = 10
            assert "no answer" in await w.bind("p", "w1")
        c.api.untouched = 0
        c.api.fenced.clear()
        async with extending(c) as w:
            assert set(w.api.fenced) == {"p", "q"}
            assert await w.bind("q", "w1") == ""
            w.api.late.set()
            await asyncio.gather(*w.api.late_writes)
            assert await w.node_of("p") is None
