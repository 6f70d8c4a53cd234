"""The Lease: who may bind, when, and what the next one waits for."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx2
import pytest

from extender.faulty_api import Fault
from extender.serving import BIND, FILTER, PRIORITIZE, served
from extender.world import cluster, extending, until
from k8s_rdma.kube.errors import ApiRefusedError, ApiUncertainError, ApiUnreachableError
from k8s_rdma.kube.leader_election import LeaderElectionConfig, LeaderElector
from k8s_rdma.kube.published_api import LeaseView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio

LEASE_S = 15


@dataclass
class Leases:
    """A Lease in an API server, and time that passes when somebody sleeps.

    faults: what the next writes raise; with `written` they happen nevertheless.
    """

    stored: LeaseView | None = None
    now: float = 1_000.0
    put_at: float = 0.0
    version: int = 0
    faults: list[Exception] = field(default_factory=list)
    written: bool = False

    async def get_lease(self, namespace: str, name: str) -> LeaseView | None:
        return self.stored

    async def write_lease(self, lease: LeaseView) -> LeaseView:
        fault = self.faults.pop(0) if self.faults else None
        if fault and not self.written:
            raise fault
        if lease.version != (self.stored.version if self.stored else ""):
            raise ApiRefusedError("write lease: modified", status=409)
        self.put(lease.holder, lease.duration_s)
        if fault:
            raise fault
        return self.stored

    def put(self, holder: str, duration_s: int = LEASE_S) -> None:
        self.version += 1
        self.put_at = self.now
        self.stored = LeaseView(
            namespace="n", name="l", holder=holder, duration_s=duration_s, version=str(self.version)
        )

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    def lease(self, holder: str = "me") -> LeaderElector:
        terms = LeaderElectionConfig(namespace="n", name="l", holder=holder, lease_s=LEASE_S)
        return LeaderElector(self, terms, self.clock, self.sleep)


class SteppedLeases(Leases):
    """Each sleep ends when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: asyncio.Queue[None] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        await self.steps.get()
        self.now += seconds

    def step(self) -> None:
        self.steps.put_nowait(None)


async def turns(condition: Callable[[], bool]) -> None:
    """Let others run until the condition holds, and not one turn of the loop longer."""
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  virtual time passes meanwhile
            await asyncio.sleep(0)


@asynccontextmanager
async def keeping(lease: LeaderElector) -> AsyncIterator[asyncio.Task[None]]:
    keep = asyncio.create_task(lease.run())
    async with asyncio.timeout(120):
        yield keep
    keep.cancel()


@pytest.mark.parametrize("before", [None, ""])
async def test_lease_is_taken_at_once_if_it_is_missing_or_was_given_back(before):
    api = Leases()
    if before is not None:
        api.put(before)
    lease = api.lease()
    assert not lease.holds()
    assert await lease.acquire() == (before == "")  # a missing one may have been deleted under its holder
    assert lease.holds()
    assert (api.now, api.stored.holder) == (1_000.0, "me")


async def test_lease_that_was_not_given_back_is_waited_out():
    api = Leases()
    api.put("before")
    lease = api.lease()
    assert not await lease.acquire()
    assert lease.holds()
    assert (api.put_at, api.stored.holder) == (1_000.0 + LEASE_S, "me")


@pytest.mark.parametrize("renewed_after", [0.0, 0.4, 0.99, 1.0, 2.5])
async def test_lease_of_a_holder_that_crashed_is_taken_within_a_fifteenth_of_its_duration(renewed_after):
    """However the looks at it fall between the last renewals."""
    api = Leases()
    api.put("before")
    taking = asyncio.create_task(api.lease().acquire())
    await turns(lambda: api.now > 1_000.0)
    api.now += renewed_after
    api.put("before")
    crashed_at = api.now
    assert not await taking
    assert LEASE_S <= api.put_at - crashed_at <= LEASE_S * 16 / 15


async def test_lease_that_is_renewed_is_not_taken():
    api = Leases()
    api.put("other")
    lease = api.lease()
    taking = asyncio.create_task(lease.acquire())
    for _ in range(50):
        api.put("other")
        await asyncio.sleep(0)
    assert api.now > 1_000.0 + LEASE_S
    assert api.stored.holder == "other"
    assert lease.obstacle == "held by other"
    taking.cancel()


async def test_holder_stops_binding_before_another_may_take_the_lease():
    api = Leases()
    lease = api.lease()
    await lease.acquire()
    api.now += LEASE_S * 0.6
    assert lease.holds()
    api.now += LEASE_S * 0.1
    assert not lease.holds()


async def test_holder_that_renews_goes_on_holding():
    api = Leases()
    lease = api.lease()
    await lease.acquire()
    async with keeping(lease):
        while api.now < 1_000.0 + 10 * LEASE_S:
            await asyncio.sleep(0)
            assert lease.holds()


@pytest.mark.parametrize("written", [False, True])
async def test_holder_stops_for_as_long_as_it_cannot_renew_and_goes_on_then(written):
    api = Leases(written=written)
    lease = api.lease()
    await lease.acquire()
    api.faults = [ApiUncertainError("write lease: no answer")] * 6
    async with keeping(lease) as keep:
        await turns(lambda: not lease.holds())
        await turns(lease.holds)
        assert not keep.done()


@pytest.mark.parametrize("holder", ["other", "", None])
async def test_holder_stops_at_once_when_another_has_taken_the_lease_or_it_was_deleted(holder):
    api = Leases()
    lease = api.lease()
    await lease.acquire()
    if holder is None:
        api.stored = None
    else:
        api.put(holder)
    async with keeping(lease) as keep:
        await keep
    assert not lease.holds()
    await lease.release()
    assert (api.stored and api.stored.holder) == holder


async def test_lease_taken_by_a_write_without_an_answer_counts_as_it_was_found():
    api = Leases(faults=[ApiUncertainError("write lease: no answer")], written=True)
    lease = api.lease()
    await lease.acquire()
    assert lease.holds()
    assert api.now < 1_000.0 + LEASE_S


async def test_lease_that_may_not_be_written_is_said_to_be_the_obstacle():
    api = Leases(faults=[ApiRefusedError("write lease: forbidden", status=403)] * 3)
    lease = api.lease()
    taking = asyncio.create_task(lease.acquire())
    while api.faults:
        await asyncio.sleep(0)
        assert not lease.holds()
    assert lease.obstacle == "write lease: forbidden"
    await taking
    assert lease.holds()


async def test_release_lets_the_next_one_take_the_lease_at_once():
    api = Leases()
    lease = api.lease()
    await lease.acquire()
    api.put("me")  # a renewal whose answer was cut off
    await lease.release()
    assert not lease.holds()
    following = api.lease("next")
    before = api.now
    await following.acquire()
    assert api.now == before


async def test_release_that_fails_is_no_failure():
    api = Leases()
    lease = api.lease()
    await lease.acquire()
    api.faults.append(ApiUnreachableError("write lease: no connection"))
    await lease.release()
    assert api.stored.holder == "me"


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


class SlowLeases(Leases):
    """Reads of the Lease wait to be answered."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[asyncio.Future[None]] = []

    async def get_lease(self, namespace: str, name: str) -> LeaseView | None:
        self.reads.append(asyncio.get_running_loop().create_future())
        seen = self.stored
        await self.reads[-1]
        return seen


async def confirming(lease: LeaderElector, number: int) -> list[asyncio.Task[str]]:
    tasks = [asyncio.create_task(lease.confirm()) for _ in range(number)]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_confirm_is_answered_by_a_question_that_began_after_it_and_one_answers_many():
    api = SlowLeases()
    api.put("me")
    lease = api.lease()
    early = await confirming(lease, 1)
    late = await confirming(lease, 5)
    api.put("other")
    assert len(api.reads) == 1
    api.reads[0].set_result(None)
    assert await early[0] == ""
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(api.reads) == 2
    api.reads[1].set_result(None)
    assert {await each for each in late} == {"lease n/l is held by other"}
    assert len(api.reads) == 2


async def test_confirm_reads_again_when_the_caller_that_read_for_all_went_away():
    api = SlowLeases()
    api.put("me")
    first, second = [(await confirming(api_lease, 1))[0] for api_lease in [api.lease()] * 2]
    first.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    for read in api.reads:
        if not read.done():
            read.set_result(None)
    assert await second == ""


async def confirmed(api: SlowLeases, lease: LeaderElector, since: float) -> tuple[str, int]:
    """The answer, and the number of questions that it took."""
    asking = asyncio.create_task(lease.confirm(since))
    for _ in range(3):
        await asyncio.sleep(0)
    questions = [api.reads.pop() for _ in range(len(api.reads))]
    for question in questions:
        question.set_result(None)
    return await asking, len(questions)


async def test_confirm_needs_no_question_after_a_renewal_that_began_later_than_the_time_named():
    api = SlowLeases()
    lease = api.lease()
    acquiring = asyncio.create_task(lease.acquire())
    await turns(lambda: bool(api.reads))
    api.reads.pop().set_result(None)
    await acquiring
    assert await confirmed(api, lease, api.now - 1) == ("", 0)
    assert await confirmed(api, lease, api.now) == ("", 1)
    api.now += LEASE_S  # by its clock another may hold the Lease
    api.put("other")
    assert await confirmed(api, lease, 0.0) == ("lease n/l is held by other", 1)


@pytest.mark.parametrize("held_by", [None, "", "other"])
async def test_confirm_names_the_other_holder_of_the_lease(held_by):
    api = Leases()
    if held_by is not None:
        api.put(held_by)
    assert await api.lease().confirm() == (
        f"lease n/l is held by {held_by}" if held_by else "lease n/l has no holder"
    )


async def test_confirm_says_why_it_does_not_know():
    api = SlowLeases()
    [asked] = await confirming(api.lease(), 1)
    api.reads[0].set_exception(ApiUncertainError("get lease: no answer"))
    assert await asked == "get lease: no answer"
