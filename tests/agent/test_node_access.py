"""Calls for one container: one at a time, beside those for others."""

from __future__ import annotations

import asyncio

from k8s_rdma.agent.cni.node_access import ContainerLocks
from k8s_rdma.core.types import ContainerId

A, B = ContainerId("a"), ContainerId("b")


def test_calls_for_one_container_wait_for_each_other_and_not_for_those_of_others() -> None:
    async def scenario() -> None:
        locks = ContainerLocks()
        entered: list[str] = []

        async def call(name: str, container: ContainerId) -> None:
            async with locks.alone(container):
                entered.append(name)

        async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
            async with locks.alone(A):
                waiting = tasks.create_task(call("second of a", A))
                await tasks.create_task(call("b", B))
                assert (entered, waiting.done()) == (["b"], False)
            await waiting
        assert entered == ["b", "second of a"]

    asyncio.run(scenario())


def test_containers_are_busy_and_calls_are_not_idle_until_the_last_call_has_ended() -> None:
    async def scenario() -> None:
        locks, begun, end = ContainerLocks(), asyncio.Event(), asyncio.Event()

        async def call() -> None:
            async with locks.alone(B):
                begun.set()
                await end.wait()

        async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
            async with locks.all_alone((A, B)):
                idle = tasks.create_task(locks.idle())
                tasks.create_task(call())
                await asyncio.sleep(0)
                assert (locks.busy(A), locks.busy(B), begun.is_set()) == (True, True, False)
            await begun.wait()
            assert (locks.busy(A), locks.busy(B), idle.done()) == (False, True, False)
            end.set()
            await idle
            assert not locks.busy(B)

    asyncio.run(scenario())
