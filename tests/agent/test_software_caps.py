"""Caps that software keeps: what becomes of those that a pod took away, and what is told of it."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.machine import Machine, Verbs, call
from agent.patience import Patience
from agent.pods import KnowingCluster, requests
from fakes.machine import HOST, Device
from k8s_rdma.agent.node import Node
from k8s_rdma.agent.reconciler import Reconciler
from k8s_rdma.agent.report import Reporter
from k8s_rdma.agent.software_caps import SoftwareCaps, keep_caps
from k8s_rdma.core.kernel import Unreadable
from k8s_rdma.core.plan import NOT_KEPT
from k8s_rdma.core.rate_ability import NO_RATE
from k8s_rdma.core.step import CapInterface, ConfigureInterface, GiveVf, NetnsRef
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.report import decode_report, encode_report

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from k8s_rdma.core.ledger import Receipt

SOFTWARE = {"max_tx_rate": 200, "enforce": "software"}
CHAINED = {"cniVersion": "1.0.0", "interfaces": [], "ips": []}
OF_INTERFACES = (GiveVf, CapInterface, ConfigureInterface)


@dataclass
class Pods:
    """A node on which pods have caps."""

    machine: Machine
    node: Node
    verbs: Verbs
    cluster: KnowingCluster

    async def add(self, *interfaces: dict[str, object], container: str = "c1", uid: str = "") -> NetnsRef:
        netns = self.machine.hardware.create_namespace()
        annotations = requests(*(interfaces or (SOFTWARE,)))
        made = call("ADD", container, uid=uid or f"uid-{container}", name=container)
        given = await self.verbs.add(made, netns, self.machine.stdin(annotations, prevResult=CHAINED))
        assert given is not None
        return netns

    def cap(self, netns: NetnsRef, ifname: str = "rdma0") -> int:
        return self.device(netns, ifname).max_tx_rate_mbps

    def uncap(self, netns: NetnsRef, ifname: str = "rdma0", *, to: int = 0) -> None:
        self.device(netns, ifname).max_tx_rate_mbps = to

    def device(self, netns: NetnsRef, ifname: str = "rdma0") -> Device:
        return self.machine.hardware.device(netns, ifname)

    def receipt(self) -> Receipt:
        [receipt] = self.node.ledger.receipts.values()
        return receipt

    def enforced(self) -> tuple[list[str | None], list[str]]:
        """Who keeps the cap of each interface, and the problems of PFs, as told."""
        report = Reporter(self.node).now()
        given = [each for allocation in report.allocations for each in allocation.interfaces]
        return [each.enforced.max for each in given], [words for pf in report.pfs for words in pf.problems]


@contextmanager
def pods_on(machine: Machine) -> Iterator[Pods]:
    machine.cluster = cluster = KnowingCluster({})
    with machine.running() as (node, verbs):
        yield Pods(machine, node, verbs, cluster)


def run(machine: Machine, scenario: Callable[[Pods], Awaitable[None]]) -> None:
    async def main() -> None:
        with pods_on(machine) as pods:
            await scenario(pods)

    asyncio.run(main())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


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


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (0, "interface rdma0 has pfifo_fast instead of its limit"),
        (900, "interface rdma0 is limited to 900 Mb/s"),
    ],
)
def test_cap_that_a_pod_changed_is_restored_and_reported(machine: Machine, now: int, found: str) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add()
        it.uncap(netns, to=now)
        with capture_logs() as logs:
            assert not await it.verbs.restore_caps()
        assert it.cap(netns) == 200
        [told] = logs
        assert (told["event"], told["log_level"], told["times"]) == ("cap_restored", "warning", 1)
        assert (told["pod"], told["interface"], told["found"]) == ("default/c1", "rdma0", found)
        assert it.cluster.caps == [(f"{found}: its cap of 200 Mb/s was put back", True)]
        assert it.node.caps.restored == 1
        assert it.enforced() == (["software"], [])

    run(machine, scenario)


def test_cap_is_put_back_on_the_vf_whatever_its_pod_calls_it(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add(SOFTWARE, {"max_tx_rate": 300, "enforce": "software"})
        for ifname, name in (("rdma0", "x"), ("rdma1", "rdma0"), ("x", "rdma1")):
            machine.hardware.alter_interface(ifname, netns, name=name)
        it.uncap(netns, "rdma0")
        it.uncap(netns, "rdma1")
        await it.verbs.restore_caps()
        assert (it.cap(netns, "rdma1"), it.cap(netns, "rdma0")) == (200, 300)

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


def test_cap_that_cannot_be_restored_is_reported_once_and_a_problem_until_it_holds(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add()
        it.uncap(netns)
        machine.kernel.fail(times=3)
        with capture_logs() as logs:
            assert await it.verbs.restore_caps()
            for _ in range(2):
                assert not await it.verbs.restore_caps()
        [told] = logs
        assert (told["event"], told["log_level"]) == ("cap_lost", "warning")
        assert "made to fail" in told["error"]
        [enforced], [problem] = it.enforced()
        assert enforced == "accounted"
        assert "which pod default/c1 has as rdma0, is not limited to 200 Mb/s by software now: " in problem
        assert problem.endswith("cannot be put back: CapInterface: made to fail after 0 changes")
        assert [restored for _, restored in it.cluster.caps] == [False]
        assert await it.verbs.restore_caps()
        assert (it.cap(netns), it.enforced()) == (200, (["software"], []))
        assert [restored for _, restored in it.cluster.caps] == [False, True]

    run(machine, scenario)


def test_interface_that_left_its_pod_is_a_problem_until_it_is_back(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add()
        device = it.device(netns)
        machine.hardware.move(device, machine.hardware.create_namespace().inode, "mine")
        with capture_logs() as logs:
            assert await it.verbs.restore_caps()
            assert not await it.verbs.restore_caps()
            [enforced], [problem] = it.enforced()
            assert enforced == "accounted"
            assert problem.endswith("interface rdma0 is not in the pod's namespace")
            machine.hardware.move(device, netns.inode, "rdma0")
            device.max_tx_rate_mbps = 200
            assert await it.verbs.restore_caps()
        assert [each["event"] for each in logs] == ["cap_lost", "cap_holds"]
        assert it.enforced() == (["software"], [])

    run(machine, scenario)


def test_namespace_that_cannot_be_looked_at_is_no_proof_of_a_cap(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add()
        it.uncap(netns)
        machine.hardware.silent = "no access"
        assert await it.verbs.restore_caps()
        [enforced], [problem] = it.enforced()
        assert enforced == "accounted"
        assert problem.endswith("its namespace cannot be looked at: no access")
        machine.hardware.silent = ""
        assert await it.verbs.restore_caps()
        assert it.cap(netns) == 200

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


@pytest.mark.parametrize("end", ["delete", "vanish"])
def test_problem_of_a_lost_cap_ends_with_its_pod(machine: Machine, end: str) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add()
        machine.hardware.move(it.device(netns), HOST, "mine")
        await it.verbs.restore_caps()
        assert it.node.caps.failures
        if end == "delete":
            await it.verbs.delete(call("DEL", "c1", uid="uid-c1", name="c1"), "net")
        else:
            machine.hardware.destroy_namespace(netns)
            await it.verbs.reconcile()
        assert not it.node.caps.failures
        assert machine.is_pristine()
        next_one = await it.add({}, container="c2")
        assert (it.cap(next_one), it.enforced()) == (0, ([None], []))

    run(machine, scenario)


def test_problem_of_a_lost_cap_does_not_pass_to_the_sandbox_that_inherits(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add()
        machine.hardware.move(it.device(netns), HOST, "mine")
        with capture_logs() as logs:
            await it.verbs.restore_caps()
            machine.hardware.destroy_namespace(netns)
            await it.verbs.restore_caps()
        assert [each["event"] for each in logs] == ["cap_lost"]
        await it.add({}, container="c2", uid="uid-c1")
        assert not it.node.caps.failures
        assert it.enforced() == ([None], [])

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
