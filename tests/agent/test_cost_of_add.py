"""Limits of an ADD's expensive steps, by count: looks at the hardware, questions to PFs, synced writes."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from agent.machine import Machine, asks, call, needs_host_local
from agent.patience import Patience
from k8s_rdma.agent.reconciler import Reconciler
from k8s_rdma.agent.report import Reporter
from k8s_rdma.agent.worker import Worker
from k8s_rdma.core.step import ConfigureVfs, ProgramVfs, SetRates

PLAIN = {"min_tx_rate": 10, "max_tx_rate": 20}
WITH_SETTINGS = {**PLAIN, "vlan": 7, "trust": True, "mtu": 1400}


def in_commits(statements):
    """How each transaction was to be written, by the pragma before it."""
    synced, found = "", []
    for statement in statements:
        if statement.startswith("PRAGMA synchronous"):
            synced = statement.rpartition("= ")[2]
        elif statement == "COMMIT":
            found.append(synced)
    return found


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def run(machine, interfaces, statements=None):
    """ADD of these interfaces, on a node that has looked at its hardware already."""

    async def scenario():
        with machine.running() as (node, verbs):
            looks = machine.kernel.observations
            machine.kernel.applied.clear()
            if statements is not None:
                node.ledger_store._receipts._db.set_trace_callback(statements.append)
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks(*interfaces)))
            return machine.kernel.observations - looks

    return asyncio.run(scenario())


@pytest.mark.parametrize("interface", [PLAIN, WITH_SETTINGS], ids=["rates", "rates and settings"])
@pytest.mark.parametrize("count", [1, 8])
def test_add_looks_at_no_hardware_and_asks_no_pf_twice(machine, count, interface):
    assert run(machine, [interface] * count) == 0
    programs = SetRates | ConfigureVfs | ProgramVfs
    asked = Counter((type(step), step.pf) for step in machine.kernel.applied if isinstance(step, programs))
    assert set(asked.values()) == {1}
    assert {kind for kind, _ in asked} == {SetRates if interface is PLAIN else ProgramVfs}
    assert len(asked) == min(count, 2)


@pytest.mark.parametrize("count", [1, 8])
def test_add_syncs_one_commit_however_many_interfaces(machine, count):
    statements = []
    run(machine, [PLAIN] * count, statements)
    assert in_commits(statements) == ["FULL", "NORMAL"]


class CountingWorker(Worker):
    """Counts the calls that wait for it."""

    calls = 0

    async def run(self, call, *args, **kwargs):
        self.calls += 1
        return await super().run(call, *args, **kwargs)


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize(
    ("ipam", "waits"),
    [
        pytest.param(False, 3, id="no addresses"),
        pytest.param(True, 5, id="addresses", marks=needs_host_local),
    ],
)
def test_add_waits_three_times_for_the_worker_and_twice_more_for_addresses(tmp_path, count, ipam, waits):
    """To begin, to choose, and to give; with addresses to bring up and to announce as well."""
    machine = Machine(tmp_path, ipam=ipam)
    machine.new_worker = CountingWorker

    async def scenario():
        with machine.running() as (_, verbs):
            worker = machine.worker
            assert isinstance(worker, CountingWorker)
            before = worker.calls
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks(*[PLAIN] * count)))
            assert worker.calls - before == waits

    asyncio.run(scenario())


def test_delete_waits_twice_for_the_worker(machine):
    """To take the interfaces back, and to forget them."""
    machine.new_worker = CountingWorker

    async def scenario():
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks(PLAIN)))
            before = machine.worker.calls
            await verbs.delete(call("DEL"), "net")
            assert machine.worker.calls - before == 2

    asyncio.run(scenario())


def test_look_after_a_change_waits_twice_for_the_worker(machine):
    """To scan and restore, and for attachments that no call will end."""
    machine.new_worker, patience = CountingWorker, Patience()

    async def scenario():
        with machine.running() as (node, verbs):
            upkeep = Reconciler(
                commands=verbs.commands,
                specifications=machine.specifications,
                reporter=Reporter(node),
                pause=patience.pause,
            )
            running = asyncio.create_task(upkeep.run())
            await patience.next()
            before, looks = machine.worker.calls, machine.kernel.observations
            upkeep.hardware_changed.set()
            await patience.next()
            await patience.pass_by()
            assert machine.kernel.observations - looks == 1
            assert machine.worker.calls - before == 2
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(scenario())


def test_add_and_delete_start_no_task_without_a_plugin_to_call(machine):
    started = []

    def start(loop, coroutine, **options):
        started.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **options)

    async def scenario():
        with machine.running() as (_, verbs):
            asyncio.get_running_loop().set_task_factory(start)
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks(PLAIN)))
            await verbs.delete(call("DEL"), "net")
            assert started == []

    asyncio.run(scenario())


def test_attributes_of_a_vf_are_read_only_at_its_first_add(machine):
    """Later they are known from its return; `CleanVf` and `BringHome` compare them within the kernel."""

    async def scenario():
        with machine.running() as (_, verbs):
            reads = []
            for _ in range(3):
                before = machine.kernel.attribute_reads
                netns = machine.hardware.create_namespace()
                await verbs.add(call("ADD"), netns, machine.stdin(asks(PLAIN, PLAIN)))
                reads.append(machine.kernel.attribute_reads - before)
                await verbs.delete(call("DEL"), "net")
                reads.append(machine.kernel.attribute_reads - before)
            assert reads == [2, 2, 0, 0, 0, 0]

    asyncio.run(scenario())


def test_attributes_of_a_vf_are_read_again_when_its_settings_were_reset_after_its_return(machine):
    """A driver may reset the VF for that, for example iavf for another VLAN."""

    async def scenario():
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks(WITH_SETTINGS)))
            before = machine.kernel.attribute_reads
            await verbs.delete(call("DEL"), "net")
            assert machine.kernel.attribute_reads - before == 1

    asyncio.run(scenario())
