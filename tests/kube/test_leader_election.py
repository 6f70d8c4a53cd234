"""The Lease of a leader: who holds it, until when, and how long the next one waits."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.kube.errors import ApiRefusedError, ApiUncertainError, ApiUnreachableError
from kube.memory_leases import LEASE_S, Leases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from k8s_rdma.kube.leader_election import LeaderElector
    from k8s_rdma.kube.published_api import LeaseView


pytestmark = pytest.mark.anyio


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
