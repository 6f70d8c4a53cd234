"""Caps that software keeps: the outcome of those that a pod took away, and the reports of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.capped_pods import Pods, run
from agent.patience import Patience
from k8s_rdma.agent.reconciler import Reconciler
from k8s_rdma.agent.report import Reporter
from k8s_rdma.agent.software_caps import SoftwareCaps, keep_caps
from k8s_rdma.core.kernel import Unreadable
from k8s_rdma.core.plan import NOT_KEPT
from k8s_rdma.core.rate_ability import NO_RATE
from k8s_rdma.core.step import CapInterface, ConfigureInterface, GiveVf
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.report import decode_report, encode_report

if TYPE_CHECKING:
    from agent.machine import Machine

OF_INTERFACES = (GiveVf, CapInterface, ConfigureInterface)


def test_interface_is_capped_before_it_comes_up(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        assert it.cap(await it.add()) == 200
        kinds = [type(step) for step in machine.kernel.applied if isinstance(step, OF_INTERFACES)]
        assert kinds == [GiveVf, CapInterface, ConfigureInterface]

    run(machine, scenario)


def test_no_cap_is_set_or_reported_while_all_caps_hold(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        await it.add()
        applied = len(machine.kernel.applied)
        with capture_logs() as logs:
            assert not await it.verbs.restore_caps()
        assert (logs, it.cluster.caps, it.node.caps.restored) == ([], [], 0)
        assert len(machine.kernel.applied) == applied
        assert it.enforced() == (["software"], [])

    run(machine, scenario)


@pytest.fixture
def unable(machine: Machine) -> Machine:
    """Neither its cards nor its kernel cap anything."""
    machine.hardware.token_bucket = False
    for pci, pf in machine.hardware.pfs.items():
        machine.hardware.pfs[pci] = replace(pf, rates=NO_RATE)
    return machine


def test_auto_gives_a_cap_that_cannot_be_kept_and_reports_that(unable: Machine) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add({"max_tx_rate": 200})
        assert (it.cap(netns), it.enforced()) == (0, (["accounted"], [NOT_KEPT, NOT_KEPT]))
        with capture_logs() as logs:
            assert not await it.verbs.restore_caps()
        assert logs == []

    run(unable, scenario)


def test_software_that_the_kernel_cannot_is_refused_with_the_module_named(unable: Machine) -> None:
    async def scenario(it: Pods) -> None:
        with pytest.raises(K8sRdmaError, match="the kernel lacks sch_tbf"):
            await it.add()
        assert not it.node.ledger.receipts
        unable.hardware.token_bucket = True
        await unable.worker.run(it.node.refresh)
        assert it.cap(await it.add()) == 200
        assert it.enforced() == (["software"], [])

    run(unable, scenario)


def test_pods_without_such_caps_are_not_looked_into(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        await it.add({"max_tx_rate": 200}, {})
        assert not await it.verbs.restore_caps()
        assert machine.kernel.looks_inside == 0

    run(machine, scenario)


@pytest.mark.parametrize("failures", [0, 1])
def test_name_that_is_no_text_is_printable_in_events_and_reports(machine: Machine, failures: int) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add()
        machine.hardware.alter_interface("rdma0", netns, name="\udcff")
        it.uncap(netns, "\udcff")
        machine.kernel.fail(times=failures)
        await it.verbs.restore_caps()
        [(message, restored)] = it.cluster.caps
        assert (restored, "\\udcff" in message) == (not failures, True)
        assert message.encode()
        assert encode_report(Reporter(it.node).now())

    run(machine, scenario)


def test_cap_that_is_taken_away_time_and_again_is_logged_less_and_less_often(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add()
        with capture_logs() as logs:
            for _ in range(20):
                it.uncap(netns)
                await it.verbs.restore_caps()
                assert it.cap(netns) == 200
        assert [each["times"] for each in logs] == [1, 2, 4, 8, 16]
        assert it.node.caps.restored == 20

    run(machine, scenario)


def test_cap_that_is_lost_and_found_time_and_again_is_logged_less_and_less_often(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        device = it.device(netns := await it.add())
        elsewhere = machine.hardware.create_namespace().inode
        with capture_logs() as logs:
            for _ in range(9):
                machine.hardware.move(device, elsewhere, "mine")
                assert await it.verbs.restore_caps()
                machine.hardware.move(device, netns.inode, "rdma0")
                device.max_tx_rate_mbps = 200
                assert await it.verbs.restore_caps()
        told = [(each["event"], each.get("times")) for each in logs]
        assert told == [each for times in (1, 2, 4, 8) for each in (("cap_lost", times), ("cap_holds", None))]

    run(machine, scenario)


def test_whatever_end_of_a_loss_is_logged_that_was_logged_itself(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add()
        with capture_logs() as logs:
            for lost in (False, False, True, True, True, False):
                it.uncap(netns)
                machine.kernel.fail(times=int(lost))
                for _ in range(1 + lost):
                    await it.verbs.restore_caps()
        told = [(each["event"], each["times"]) for each in logs]
        restored, lost = "cap_restored", "cap_lost"
        first = [(restored, 1), (restored, 2)]
        assert told == [*first, (lost, 1), (restored, 3), (lost, 2), (restored, 4)]

    run(machine, scenario)


def test_pod_whose_namespace_is_gone_is_left_to_its_end(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        machine.hardware.destroy_namespace(await it.add())
        with capture_logs() as logs:
            assert not await it.verbs.restore_caps()
            assert await it.verbs.reconcile()
        assert logs == []
        assert machine.is_pristine()

    run(machine, scenario)


def test_attachment_that_is_being_made_is_left_alone(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        async def look() -> None:
            assert not await it.verbs.restore_caps()
            assert machine.kernel.looks_inside == 0

        machine.on_prepared = look
        await it.add()
        assert machine.prepared == 1

    run(machine, scenario)


def test_caps_are_looked_at_when_the_agent_starts(machine: Machine) -> None:
    async def before(it: Pods) -> None:
        it.uncap(await it.add())

    async def after(it: Pods) -> None:
        specifications, reporter = machine.specifications, Reporter(it.node)
        upkeep = Reconciler(commands=it.verbs.commands, specifications=specifications, reporter=reporter)
        await upkeep.recover()
        assert it.cap(it.receipt().netns) == 200

    run(machine, before)
    run(machine, after)


def test_pod_that_takes_long_to_look_into_is_let_rest_ten_times_as_long(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        await it.add()
        slow, quick = (0, 2), (22, 22.5)
        clock = iter([0, *slow, 21, 22, *quick, 23, *quick])
        caps = SoftwareCaps(it.node, machine.worker, machine.cluster, now=clock.__next__)
        looks = []
        for _ in range(4):
            await caps.restore()
            looks.append(machine.kernel.looks_inside)
        assert looks == [1, 1, 2, 3]

    run(machine, scenario)


def test_caps_are_checked_at_their_own_interval_and_changes_are_published(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        netns, patience, reporter = await it.add(), Patience(), Reporter(it.node)
        keeping = asyncio.create_task(
            keep_caps(it.verbs.commands.caps, reporter, every_s=7, pause=patience.pause)
        )
        assert await patience.next() == 7
        it.uncap(netns)
        machine.hardware.set_unreadable(Unreadable("PF f0", "no answer"))
        assert await patience.pass_by() == 7
        assert it.cap(netns) == 200
        known = await reporter.publisher.wait_for_change(None)
        machine.hardware.move(it.device(netns), machine.hardware.create_namespace().inode, "mine")
        assert await patience.pass_by() == 7
        async with asyncio.timeout(120):
            told = decode_report(await reporter.publisher.wait_for_change(known))
        assert told.allocations[0].interfaces[0].enforced.max == "accounted"
        keeping.cancel()
        await asyncio.wait([keeping])

    run(machine, scenario)


def test_hardware_that_changes_or_cannot_be_seen_brings_no_looks_at_caps(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        await it.add()
        patience, reporter = Patience(), Reporter(it.node)
        upkeep = Reconciler(
            commands=it.verbs.commands,
            specifications=machine.specifications,
            reporter=reporter,
            pause=patience.pause,
        )
        keeping = asyncio.create_task(upkeep.run())
        machine.hardware.set_unreadable(Unreadable("PF f0", "no answer"))
        upkeep.hardware_changed.set()
        await patience.next()
        for _ in range(5):
            await patience.pass_by()
        assert machine.kernel.looks_inside == 0
        keeping.cancel()
        await asyncio.wait([keeping])

    run(machine, scenario)
