"""Blocking calls that may hang: no caller waits for them longer than it wants to."""

from __future__ import annotations

import asyncio
import threading

import pytest

from k8s_rdma.process import DetachedCall


def test_call_returns_the_result_of_the_function_or_raises_its_error():
    def inverse(number: int) -> float:
        return 1 / number

    async def scenario() -> None:
        call = DetachedCall(inverse, name="inverse")
        assert await asyncio.gather(call(2), call(4)) == [0.5, 0.25]
        with pytest.raises(ZeroDivisionError):
            await call(0)

    asyncio.run(scenario())


def test_abandoned_call_refuses_others_until_it_returns():
    release, begun = threading.Event(), threading.Semaphore(0)
    arguments: list[int] = []

    def stuck(number: int) -> int:
        arguments.append(number)
        begun.release()
        release.wait(60)
        return number

    async def scenario() -> None:
        call = DetachedCall(stuck, name="stuck")
        abandoned = asyncio.create_task(call(1))
        await asyncio.to_thread(begun.acquire)
        abandoned.cancel()
        await asyncio.wait([abandoned])
        with pytest.raises(TimeoutError):
            await call(2)
        release.set()
        while True:
            try:
                assert await call(3) == 3
                break
            except TimeoutError:
                await asyncio.sleep(0)

    asyncio.run(scenario())
    assert arguments == [1, 3]
