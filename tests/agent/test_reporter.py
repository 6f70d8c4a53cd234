"""The agent's report for whoever publishes it: of this moment, and as soon as it is another one."""

from __future__ import annotations

import asyncio

from agent.machine import Machine, asks, call
from k8s_rdma.agent.report import Reporter


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
