"""The agent's report for whoever publishes it: of this moment, and as soon as it is another one."""

from __future__ import annotations

import asyncio

from agent.machine import Machine, asks, call
from k8s_rdma.agent.report import SOON_S, Reporter, StatePublisher


def test_report_of_now_is_the_same_object_until_something_changes(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            reporter = Reporter(node)
            before = reporter.now()
            assert reporter.now() is before
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 100})))
            now = reporter.now()
            assert [each.pod.uid for each in now.allocations] == ["uid-p"]
            assert now.generation != before.generation

    asyncio.run(scenario())


def test_problems_of_the_agent_itself_come_first_in_the_report_until_they_are_over(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, _):
            found = ["placementKeyFile /key: is empty"]
            reporter = Reporter(node, lambda: tuple(found))
            known = await reporter.wait_for_change(None)
            assert known.problems == ("placementKeyFile /key: is empty", *node.hardware.problems)
            found.clear()
            waiting = asyncio.create_task(reporter.wait_for_change(known))
            await reporter.publish_problems()
            async with asyncio.timeout(120):
                assert (await waiting).problems == node.hardware.problems

    asyncio.run(scenario())


def test_other_report_is_waited_for_until_it_is_said_that_there_is_one(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            reporter = Reporter(node)
            known = await reporter.wait_for_change(None)
            assert known is reporter.now()
            waiting = asyncio.create_task(reporter.wait_for_change(known))
            await reporter.publish()
            await asyncio.sleep(0)
            assert not waiting.done()
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 100})))
            await reporter.publish()
            async with asyncio.timeout(120):
                other = await waiting
            assert other is reporter.now()
            assert other.allocations

    asyncio.run(scenario())


def test_report_that_was_looked_up_before_it_was_said_is_no_other_one(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            reporter = Reporter(node)
            await reporter.wait_for_change(None)
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 100})))
            known = reporter.now()
            waiting = asyncio.create_task(reporter.wait_for_change(known))
            for _ in range(3):
                await reporter.publish()
                await asyncio.sleep(0)
            assert not waiting.done()
            await verbs.delete(call("DEL"), "net")
            await reporter.publish()
            async with asyncio.timeout(120):
                assert not (await waiting).allocations

    asyncio.run(scenario())


def test_change_that_is_to_be_published_soon_waits_for_its_pause_and_for_no_call(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            reporter, pauses, end = Reporter(node), list[float](), asyncio.Event()

            async def pause(seconds: float) -> None:
                pauses.append(seconds)
                await end.wait()

            known = await reporter.wait_for_change(None)
            running = asyncio.create_task(reporter.run(pause))
            waiting = asyncio.create_task(reporter.wait_for_change(known))
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 100})))
            reporter.publish_soon()
            for _ in range(9):
                await asyncio.sleep(0)
            assert pauses == [SOON_S]
            assert not waiting.done()
            end.set()
            async with asyncio.timeout(120):
                assert (await waiting).allocations
            running.cancel()

    asyncio.run(scenario())


def test_change_that_its_call_published_is_not_published_again(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, _):
            made = list[bytes]()

            def render() -> bytes:
                made.append(b"%d" % len(made))
                return made[-1]

            further, end = StatePublisher(render), asyncio.Event()
            reporter = Reporter(node, further=[further])

            async def pause(_: float) -> None:
                await end.wait()

            running = asyncio.create_task(reporter.run(pause))
            known = await further.wait_for_change(None)
            reporter.publish_soon()
            await asyncio.sleep(0)
            await reporter.publish()
            known = await further.wait_for_change(known)
            end.set()
            for _ in range(9):
                await asyncio.sleep(0)
            waiting = asyncio.create_task(further.wait_for_change(known))
            await asyncio.sleep(0)
            assert not waiting.done()
            assert made == [b"0", b"1"]
            waiting.cancel()
            running.cancel()

    asyncio.run(scenario())
