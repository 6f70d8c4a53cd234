"""The thread that owns the kernel and the ledger."""

from __future__ import annotations

import asyncio
import threading

import pytest
import structlog

from k8s_rdma.agent.worker import Worker


def test_calls_run_in_their_callers_context_on_one_other_thread() -> None:
    worker = Worker()

    def seen() -> tuple[object, int]:
        return structlog.contextvars.get_contextvars().get("operation"), threading.get_ident()

    async def caller(operation: str) -> tuple[object, int]:
        with structlog.contextvars.bound_contextvars(operation=operation):
            return await worker.run(seen)

    async def both() -> list[tuple[object, int]]:
        return await asyncio.gather(caller("a"), caller("b"))

    (first, thread), (second, other) = asyncio.run(both())
    worker.close()
    assert (first, second) == ("a", "b")
    assert thread == other != threading.get_ident()


def test_call_ends_though_its_caller_is_cancelled_and_the_next_one_waits_for_it() -> None:
    worker, begun, goes_on, made = Worker(), threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        begun.set()
        goes_on.wait(120)
        made.append("first")

    async def scenario() -> None:
        task = asyncio.create_task(worker.run(first))
        await asyncio.to_thread(begun.wait, 120)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        later = asyncio.create_task(worker.run(made.append, "second"))
        await asyncio.sleep(0)
        goes_on.set()
        await later

    asyncio.run(scenario())
    worker.close()
    assert made == ["first", "second"]


def test_error_of_a_call_is_its_callers_and_the_next_call_is_made() -> None:
    worker = Worker()

    async def scenario() -> int:
        with pytest.raises(ZeroDivisionError):
            await worker.run(divmod, 1, 0)
        return await worker.run(abs, -1)

    assert asyncio.run(scenario()) == 1
    worker.close()


def test_close_waits_for_the_running_call_cancels_waiting_ones_and_then_closes_opened_resources() -> None:
    worker, begun, goes_on, made = Worker(), threading.Event(), threading.Event(), list[str]()
    worker.opened.callback(made.append, "closed")

    def running() -> None:
        begun.set()
        goes_on.wait(120)
        made.append("made")

    async def scenario() -> None:
        first = asyncio.create_task(worker.run(running))
        second = asyncio.create_task(worker.run(made.append, "never"))
        await asyncio.to_thread(begun.wait, 120)
        closing = asyncio.create_task(asyncio.to_thread(worker.close))
        with pytest.raises(asyncio.CancelledError):
            await second
        goes_on.set()
        await closing
        await first

    asyncio.run(scenario())
    assert made == ["made", "closed"]


def test_call_under_way_ends_though_its_callers_loop_has_ended() -> None:
    worker, begun, goes_on, made = Worker(), threading.Event(), threading.Event(), list[str]()

    def late() -> None:
        begun.set()
        goes_on.wait(120)
        made.append("made")

    async def scenario() -> None:
        asyncio.create_task(worker.run(late))  # noqa: RUF006  it is cancelled with its loop
        await asyncio.to_thread(begun.wait, 120)

    asyncio.run(scenario())
    goes_on.set()
    worker.close()
    assert made == ["made"]
