"""When the agent looks at the hardware by itself, and how it treats devices that it cannot see."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine, Verbs, asks, call
from agent.patience import Patience
from agent.scripted_plugin import MODERN, ScriptedPlugin, addresses
from factories import PF0, PF1
from k8s_rdma.agent.node import Node
from k8s_rdma.agent.reconciler import Reconciler
from k8s_rdma.agent.report import Reporter
from k8s_rdma.core.kernel import Unreadable
from k8s_rdma.wire.report import NodeReport, decode_report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

RECONCILE_S, SETTLE_S = 10, 0.5


@dataclass
class Kept:
    """A node whose upkeep runs, and waits for the first time."""

    machine: Machine
    node: Node
    verbs: Verbs
    upkeep: Reconciler
    reporter: Reporter
    patience: Patience

    @property
    def looks(self) -> int:
        return self.machine.kernel.observations

    async def settle(self) -> float:
        """Let the pause after a change pass, and the work after it; return the next pause's length."""
        assert await self.patience.next() >= SETTLE_S
        return await self.patience.pass_by()

    async def report(self) -> NodeReport:
        return decode_report(await self.reporter.publisher.wait_for_change(None))

    async def ended(self) -> None:
        """Until no pod has anything any more."""
        known = None
        async with asyncio.timeout(120):
            while known is None or decode_report(known).allocations:
                known = await self.reporter.publisher.wait_for_change(known)


@asynccontextmanager
async def kept(machine: Machine) -> AsyncIterator[Kept]:
    patience = Patience()
    with machine.running() as (node, verbs):
        reporter = Reporter(node)
        upkeep = Reconciler(
            commands=verbs.commands,
            specifications=machine.specifications,
            reporter=reporter,
            pause=patience.pause,
        )
        loop = asyncio.get_running_loop()
        end = machine.kernel.watch(lambda: loop.call_soon_threadsafe(upkeep.hardware_changed.set))
        running = asyncio.create_task(upkeep.run())
        assert await patience.next() == RECONCILE_S
        try:
            yield Kept(machine, node, verbs, upkeep, reporter, patience)
        finally:
            end()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


def run(machine: Machine, scenario: Callable[[Kept], Awaitable[None]]) -> None:
    async def main() -> None:
        async with kept(machine) as it:
            await scenario(it)

    asyncio.run(main())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_no_scan_is_made_without_changes(machine: Machine) -> None:
    async def scenario(it: Kept) -> None:
        before = it.looks
        for _ in range(5):
            assert await it.patience.pass_by() == RECONCILE_S
        assert it.looks == before

    run(machine, scenario)


def test_hardware_is_looked_at_once_after_a_burst_of_changes(machine: Machine) -> None:
    async def scenario(it: Kept) -> None:
        before, generation = it.looks, (await it.report()).generation
        for speed in (1, 2, 3):
            machine.hardware.set_link(PF0, speed)
        assert await it.settle() == RECONCILE_S
        assert it.looks == before + 1
        told = await it.report()
        assert told.pfs[0].link_mbps == 3
        assert told.generation != generation
        assert await it.patience.pass_by() == RECONCILE_S
        assert it.looks == before + 1

    run(machine, scenario)


def test_rest_between_scans_grows_with_their_duration(machine: Machine) -> None:
    async def scenario(it: Kept) -> None:
        it.node.scanner.last_s = 0.25  # as for 200 VFs on some drivers
        machine.hardware.changed()
        assert await it.patience.next() == 2.5

    run(machine, scenario)


def test_look_waits_while_an_attachment_is_made(machine: Machine) -> None:
    async def scenario(it: Kept) -> None:
        before = it.looks

        async def change_and_settle() -> None:
            machine.hardware.set_link(PF0, 7)
            assert await it.patience.next() >= SETTLE_S
            it.patience.end()
            for _ in range(20):
                await asyncio.sleep(0)
            await machine.worker.run(lambda: None)  # a look that did not wait would have been before it
            assert it.looks == before

        machine.on_prepared = change_and_settle
        netns = machine.hardware.create_namespace()
        await it.verbs.add(call("ADD"), netns, machine.stdin(asks({})))
        assert await it.patience.next() == RECONCILE_S
        assert it.looks == before + 1

    run(machine, scenario)


def test_hardware_is_looked_at_again_less_and_less_often_while_it_cannot_be_seen(machine: Machine) -> None:
    async def scenario(it: Kept) -> None:
        before = it.looks
        machine.hardware.set_unreadable(Unreadable("PF f0", "no answer"), hidden=[PF0])
        pauses = [await it.settle()]
        pauses += [await it.patience.pass_by() for _ in range(6)]
        assert pauses == [1, 2, 4, 8, 16, 30, 30]
        assert it.looks == before + 7
        assert (await it.report()).unreadable == ("PF f0: no answer",)
        # No event reports it: the next look finds it.
        machine.hardware.unreadable, machine.hardware.hidden = (), frozenset()
        assert await it.patience.pass_by() == RECONCILE_S
        told = await it.report()
        assert (told.unreadable, [pf.pci for pf in told.pfs]) == ((), [PF0, PF1])
        machine.hardware.set_unreadable(Unreadable("PF f0", "no answer"))
        assert await it.settle() == 1

    run(machine, scenario)


def test_generation_stays_without_a_difference(machine: Machine) -> None:
    async def scenario(it: Kept) -> None:
        told = await it.report()
        machine.hardware.changed()
        await it.settle()
        await it.reporter.publish()
        assert await it.report() == told
        machine.hardware.set_link(PF0, 7)
        await it.settle()
        later = await it.report()
        assert later.generation.split(".") == [
            told.generation.split(".")[0],
            str(int(told.generation.split(".")[1]) + 1),
        ]

    run(machine, scenario)


def test_change_is_reported_although_an_add_saw_it_first(machine: Machine) -> None:
    async def scenario(it: Kept) -> None:
        known = await it.reporter.publisher.wait_for_change(None)
        machine.hardware.set_link(PF0, 7)
        assert it.node.refresh()
        await it.settle()
        told = decode_report(await it.reporter.publisher.wait_for_change(known))
        assert told.pfs[0].link_mbps == 7

    run(machine, scenario)


def test_vfs_come_home_when_their_sandbox_vanished(machine: Machine) -> None:
    async def scenario(it: Kept) -> None:
        netns = machine.hardware.create_namespace()
        await it.verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))
        await it.settle()
        assert (await it.report()).pfs[0].vfs[0].allocated
        machine.hardware.destroy_namespace(netns)
        await it.settle()
        await it.ended()
        assert machine.is_pristine()

    run(machine, scenario)


def test_hardware_is_looked_at_while_another_plugin_keeps_the_end_of_an_attachment_waiting(
    machine: Machine,
) -> None:
    plugin = ScriptedPlugin(machine.directory)
    plugin.speak(MODERN, ADD=addresses("10.0.0.5/24"), DEL="exec sleep 60")

    async def scenario(it: Kept) -> None:
        netns = machine.hardware.create_namespace()
        env = replace(call("ADD"), path=str(machine.directory))
        await it.verbs.add(env, netns, machine.stdin(asks({"min_tx_rate": 5}), ipam={"type": plugin.name}))
        await it.settle()
        machine.hardware.destroy_namespace(netns)
        await it.settle()
        async with asyncio.timeout(120):
            while not plugin.calls("DEL"):  # noqa: ASYNC110 - of a file
                await asyncio.sleep(0.01)
        machine.hardware.set_link(PF0, 3)
        await it.settle()
        told = await it.report()
        assert (told.pfs[0].link_mbps, len(told.allocations)) == (3, 1)

    run(machine, scenario)


def test_vfs_come_home_at_once_when_a_sandbox_is_said_to_have_vanished(machine: Machine) -> None:
    async def scenario(it: Kept) -> None:
        netns = machine.hardware.create_namespace()
        await it.verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))
        known = await it.reporter.publisher.wait_for_change(None)
        assert await it.patience.next() >= SETTLE_S  # and as long as that lasts there is no look
        before = it.looks
        machine.hardware.destroy_namespace(netns)
        it.upkeep.sandbox_vanished.set()
        async with asyncio.timeout(120):
            told = decode_report(await it.reporter.publisher.wait_for_change(known))
        assert told.allocations == ()
        assert it.looks == before
        assert machine.is_pristine()

    run(machine, scenario)
