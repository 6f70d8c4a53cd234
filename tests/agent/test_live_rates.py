"""Rates of running pods: changed as their placements are, or refused, and never in part."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine, Verbs, call
from agent.patience import Patience
from agent.pods import PlacingCluster
from factories import PF0, PF1
from fakes.nodes import FakePodResources
from k8s_rdma.agent.cni.node_access import NodeAccess
from k8s_rdma.agent.live_rates import LiveRates
from k8s_rdma.agent.node import Node
from k8s_rdma.agent.report import Reporter
from k8s_rdma.config.devices import HUSTCAT_RESOURCE, ExclusiveResource, Selector
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.rate_ability import RateAbility, RateRange
from k8s_rdma.core.step import VfRef
from k8s_rdma.core.types import Enforce, NodeName, PciAddress, PfUse, PodUid
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.placement_keys import PlacementKeys
from k8s_rdma.wire.rdma_node import status_of
from resource_claims import claim, of_pod, prepare
from resource_claims import interface as claimed_interface

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from k8s_rdma.core.ledger import Receipt
    from k8s_rdma.wire.report import NodeReport

KEY = PlacementKeys.shared(b"a key")
REQUEST = "rdma_interfaces_required"
P = PodUid("uid-p")
SOFTWARE = Enforce.SOFTWARE


def on(pf: str = PF0, minimum: int = 0, maximum: int = 0, **more: object) -> PlacedInterface:
    return replace(PlacedInterface(pf=PF0, min_tx_rate_mbps=minimum, max_tx_rate_mbps=maximum), pf=pf, **more)


def placed(*interfaces: PlacedInterface, generation: int = 0) -> Placement:
    return Placement(node=NodeName("w1"), interfaces=interfaces, generation=generation)


@dataclass
class Rated:
    """A node whose pods have placements."""

    machine: Machine
    node: Node
    verbs: Verbs
    cluster: PlacingCluster
    patience: Patience
    now: float = 0.0

    def __post_init__(self) -> None:
        access = NodeAccess(
            node=self.node,
            worker=self.machine.worker,
            device_specs=self.machine.specifications.devices,
            locks=self.verbs.commands.locks,
        )
        self.live = LiveRates(access, self.cluster, now=lambda: self.now, pause=self.patience.pause)

    async def add(self, placement: Placement, container: str = "c1", uid: PodUid = P) -> Receipt:
        self.cluster.place(placement, uid)
        return await self.add_with(placement, container, uid)

    async def add_with(self, placement: Placement, container: str = "c1", uid: PodUid = P) -> Receipt:
        """ADD with that placement in the annotations of the sandbox, whatever the cluster has."""
        netns = self.machine.hardware.create_namespace()
        annotations = {PLACEMENT_ANNOTATION: encode(placement, uid, KEY)}
        stdin = self.machine.stdin(annotations, name="net")
        given = await self.verbs.add(call("ADD", container, uid=uid, name=uid), netns, stdin)
        assert given is not None
        return given.receipt

    async def change(self, placement: Placement, uid: PodUid = P) -> float | None:
        self.cluster.place(placement, uid)
        return await self.live.change_all(self.cluster.placements())

    def receipt(self, container: str = "c1") -> Receipt:
        [found] = self.node.ledger.of_container(container)
        return found

    def programmed(self, container: str = "c1") -> list[tuple[int, int, int]]:
        """Rates of the VFs, and caps in the pod, as the machine has them."""
        found = []
        for interface in self.receipt(container).interfaces:
            function = self.machine.hardware.functions[interface.vf]
            cap = function.device.max_tx_rate_mbps
            found.append((function.min_tx_rate_mbps, function.max_tx_rate_mbps, cap))
        return found

    def report(self) -> NodeReport:
        return Reporter(self.node, self.live.problems, refusals=self.live.refusals).now()

    def check(self) -> None:
        """Whatever happened, machine, ledger and the last observation say the same."""
        for receipt in self.node.ledger.receipts.values():
            assert receipt.change is None
            told = [
                (i.rate().min_tx_rate_mbps, i.rate().max_tx_rate_mbps, i.software_max_tx_rate_mbps)
                for i in receipt.interfaces
            ]
            assert self.programmed(receipt.attachment.container) == told
        assert [pf.problems for pf in self.report().pfs if pf.problems] == []


@contextmanager
def rated(machine: Machine) -> Iterator[Rated]:
    machine.cluster = cluster = PlacingCluster()
    with machine.running(KEY) as (node, verbs):
        yield Rated(machine, node, verbs, cluster, Patience())


def run(machine: Machine, scenario: Callable[[Rated], Awaitable[None]]) -> None:
    async def main() -> None:
        with rated(machine) as it:
            await scenario(it)

    asyncio.run(main())


FIRST = placed(on(PF0, 500, 800), on(PF1, 0, 300, enforce=SOFTWARE))
SECOND = placed(
    on(PF0, 700, 900, previous_min_tx_rate_mbps=500), on(PF1, 100, 200, enforce=SOFTWARE), generation=1
)
BEFORE = [(500, 800, 0), (0, 0, 300)]
AFTER = [(700, 900, 0), (100, 0, 200)]


def test_rates_and_caps_of_a_running_pod_are_those_of_its_later_placement(machine: Machine) -> None:
    async def scenario(it: Rated) -> None:
        await it.add(FIRST)
        assert it.programmed() == BEFORE
        assert await it.change(SECOND) is None
        assert it.programmed() == AFTER
        receipt = it.receipt()
        assert (receipt.generation, receipt.change) == (1, None)
        rates = [(each.min_tx_rate_mbps, each.max_tx_rate_mbps) for each in receipt.interfaces]
        assert rates == [(700, 900), (100, 200)]
        [allocation] = it.report().allocations
        assert (allocation.generation, allocation.interfaces[0].min_tx_rate) == (1, 700)
        assert status_of(it.report()).allocations[0].generation == 1
        [(message, refused)] = it.cluster.rates
        assert not refused
        assert message.endswith("eth0: min 700, max 900 Mb/s; eth1: min 100, max 200 Mb/s")
        it.check()

    run(machine, scenario)


def test_interfaces_of_a_changed_pod_pass_check_and_keep_their_new_caps(machine: Machine) -> None:
    async def scenario(it: Rated) -> None:
        await it.add(FIRST)
        await it.change(SECOND)
        await it.verbs.check(call("CHECK", uid=P, name=P), machine.stdin({}))
        device = it.machine.hardware.functions[it.receipt().interfaces[1].vf].device
        device.max_tx_rate_mbps = 0
        await it.verbs.restore_caps()
        assert it.programmed() == AFTER

    run(machine, scenario)


def test_cap_is_changed_on_the_vf_whatever_its_pod_calls_it(machine: Machine) -> None:
    async def scenario(it: Rated) -> None:
        receipt = await it.add(FIRST)
        for old, new in (("eth0", "x"), ("eth1", "eth0"), ("x", "eth1")):
            machine.hardware.alter_interface(old, receipt.netns, name=new)
        await it.change(SECOND)
        assert it.programmed() == AFTER

    run(machine, scenario)


def test_cap_of_an_interface_that_left_its_pod_is_restored_when_it_is_back(machine: Machine) -> None:
    async def scenario(it: Rated) -> None:
        receipt = await it.add(FIRST)
        device = machine.hardware.functions[receipt.interfaces[1].vf].device
        machine.hardware.move(device, machine.hardware.create_namespace().inode, "mine")
        assert await it.change(SECOND) is None
        assert it.programmed() == [(700, 900, 0), (100, 0, 0)]
        machine.hardware.move(device, receipt.netns.inode, "eth1")
        await it.verbs.restore_caps()
        it.check()

    run(machine, scenario)


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("halfway", [0, 1])
def test_rates_are_as_before_and_the_reason_is_reported_when_a_step_fails(
    machine: Machine, at: int, halfway: int
) -> None:
    async def scenario(it: Rated) -> None:
        await it.add(FIRST)
        machine.kernel.fail(index=at, after_changes=halfway)
        retry_s = await it.change(SECOND)
        if at == 3:  # it has three steps
            assert (retry_s, it.programmed()) == (None, AFTER)
            return
        assert (retry_s, it.programmed(), it.receipt().generation) == (1.0, BEFORE, 0)
        it.check()
        [problem] = it.report().problems
        assert problem.startswith("pod default/uid-p: the rates of its placement's generation 1 are not ")
        assert "made to fail" in problem
        assert it.cluster.rates[0][1]
        it.now = 1.0
        assert await it.change(SECOND) is None
        assert (it.programmed(), it.report().problems) == (AFTER, ())

    run(machine, scenario)


def test_attempts_become_rarer_without_changes_and_come_at_once_for_a_later_placement(
    machine: Machine,
) -> None:
    async def scenario(it: Rated) -> None:
        await it.add(FIRST)
        too_much = placed(on(PF0, 200_000, 0), FIRST.interfaces[1], generation=1)
        for number in range(5):
            assert await it.change(too_much) == 2**number
            assert await it.change(too_much) == 2**number
            it.now += 2**number
        assert len(it.cluster.rates) == 5
        assert it.live.refused == 5
        [allocation] = status_of(it.report()).allocations
        assert allocation.refused is not None
        assert allocation.refused.generation == 1
        assert "200000 Mb/s needed, and others leave 100000" in allocation.refused.message
        assert await it.change(replace(SECOND, generation=2)) is None
        assert (it.programmed(), it.report().problems) == (AFTER, ())
        assert it.report().allocations[0].refused is None
        assert it.receipt().generation == 2

    run(machine, scenario)


def test_refused_change_is_made_when_there_is_room(machine: Machine) -> None:
    async def scenario(it: Rated) -> None:
        await it.add(FIRST)
        await it.add(placed(on(PF0, 99_400)), "c2", PodUid("uid-q"))
        assert await it.change(SECOND) == 1.0
        [problem] = it.report().problems
        assert problem.endswith("PF f0: 700 Mb/s needed, and others leave 600 of 100000 Mb/s to the pod")
        it.now = 0.5
        await it.verbs.delete(call("DEL", "c2"), "net")
        assert await it.change(SECOND) == 0.5
        it.now = 1.0
        assert await it.change(SECOND) is None
        assert it.programmed() == AFTER

    run(machine, scenario)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (on(PF1, 100), "interface eth0: is not placed on PF 0000:03:00.0, where its VF is"),
        (on(PF0, 100, enforce=SOFTWARE), "interface eth0: has another enforce than the placement"),
        (on(PF0, 100, options=InterfaceOptions(vlan=7)), "interface eth0: has another vlan than"),
        (on(PF0, 100, options=InterfaceOptions(name="x")), "interface eth0: has another name than"),
        (on(PF0, 100, entry=1), "interface eth0: is not placed on PF"),
        (
            on(PF0, 100_001),
            "PF f0: 100001 Mb/s needed, and others leave 100000 of 100000 Mb/s to the pod",
        ),
    ],
)
def test_change_of_more_than_rates_or_beyond_the_link_is_refused_by_name(
    machine: Machine, target: PlacedInterface, why: str
) -> None:
    async def scenario(it: Rated) -> None:
        await it.add(placed(FIRST.interfaces[0]))
        applied = len(machine.kernel.applied)
        assert await it.change(placed(target, generation=1)) == 1.0
        assert why in it.report().problems[0]
        assert len(machine.kernel.applied) == applied
        assert it.receipt().generation == 0
        it.check()

    run(machine, scenario)


HARDWARE_ONLY = RateAbility(min=None, max=RateRange(smallest=100, largest=1000, step=100))


@pytest.mark.parametrize(
    ("ability", "link_mbps", "why"),
    [
        (HARDWARE_ONLY, 100_000, "takes no minimum rates (700 Mb/s wanted), and enforcement by hardware"),
        (replace(HARDWARE_ONLY, needs_link=True), None, "takes rates only while the link is up"),
    ],
)
def test_change_that_the_driver_does_not_take_is_refused(
    machine: Machine, ability: RateAbility, link_mbps: int | None, why: str
) -> None:
    async def scenario(it: Rated) -> None:
        await it.add(placed(on(PF0, 0, 500, enforce=Enforce.HARDWARE)))
        machine.hardware.pfs[PF0] = replace(machine.hardware.pfs[PF0], rates=ability)
        machine.hardware.links[PF0] = link_mbps
        await machine.worker.run(it.node.refresh)
        await it.change(placed(on(PF0, 700, 800, enforce=Enforce.HARDWARE), generation=1))
        assert why in it.report().problems[0]
        assert it.programmed() == [(0, 500, 0)]

    run(machine, scenario)


def test_reservation_is_lowered_on_a_link_that_became_slower_and_not_raised(machine: Machine) -> None:
    async def scenario(it: Rated) -> None:
        await it.add(placed(on(PF0, 60_000)))
        await it.add(placed(on(PF0, 30_000)), "c2", PodUid("uid-q"))
        machine.hardware.links[PF0] = 40_000
        await machine.worker.run(it.node.refresh)
        assert await it.change(placed(on(PF0, 50_000), generation=1)) is None
        assert await it.change(placed(on(PF0, 31_000), generation=1), PodUid("uid-q")) == 1.0
        assert it.programmed() == [(50_000, 0, 0)]
        assert it.programmed("c2") == [(30_000, 0, 0)]

    run(machine, scenario)


def test_change_is_made_in_two_pods_of_a_full_link_once_the_first_made_room(machine: Machine) -> None:
    async def scenario(it: Rated) -> None:
        await it.add(placed(on(PF0, 60_000)))
        await it.add(placed(on(PF0, 40_000)), "c2", PodUid("uid-q"))
        it.cluster.place(placed(on(PF0, 70_000), generation=1), PodUid("uid-q"))
        assert await it.change(placed(on(PF0, 30_000), generation=1)) is None
        it.now = 1.0
        await it.live.change_all(it.cluster.placements())
        assert it.programmed("c2") == [(70_000, 0, 0)]
        it.check()

    run(machine, scenario)


@pytest.mark.parametrize("exclusive", [False, True])
def test_raise_that_is_admitted_and_not_programmed_counts_for_pods_without_a_placement(
    machine: Machine, *, exclusive: bool
) -> None:
    machine.cluster = cluster = PlacingCluster()
    if exclusive:
        machine.rdma = True
        machine.boot()
        machine.resources = (ExclusiveResource(select=Selector(pfs=("f0#2", "f0#3"))),)
        machine.kubelet = kubelet = FakePodResources()
        kubelet.allocate("default", "uid-q", HUSTCAT_RESOURCE, "f0r3")

    def asks(mbps: int) -> bytes:
        wanted = {"min_tx_rate": mbps} if exclusive else {"min_tx_rate": mbps, "pf": "f0"}
        return machine.stdin({REQUEST: json.dumps([wanted])}, name="net")

    async def scenario() -> None:
        with machine.running(KEY, allow_unplaced=True) as (node, verbs):
            it = Rated(machine, node, verbs, cluster, Patience())
            await it.add(placed(on(PF0, 500)))
            cluster.place(placed(on(PF0, 99_000), generation=1))
            q = call("ADD", "c2", uid=PodUid("uid-q"), name="uid-q")
            netns = machine.hardware.create_namespace()
            with pytest.raises(K8sRdmaError, match=r"1000 (Mb/s and 3 VFs free|of 100000 are unreserved)"):
                await verbs.add(q, netns, asks(1001))
            given = await verbs.add(q, netns, asks(1000))
            assert given is not None
            assert await it.live.change_all(it.cluster.placements()) is None
            assert it.programmed() == [(99_000, 0, 0)]

    asyncio.run(scenario())


def test_vlan_and_driver_of_the_network_are_no_difference(machine: Machine) -> None:
    async def scenario(it: Rated) -> None:
        netns = machine.hardware.create_namespace()
        first = placed(on(PF0, 500, 800))
        stdin = machine.stdin(
            {PLACEMENT_ANNOTATION: encode(first, P, KEY)}, vlan=7, dpdk={"dpdk_driver": "vfio-pci"}
        )
        await it.verbs.add(call("ADD", uid=P, name=P), netns, stdin)
        assert await it.change(placed(on(PF0, 700, 900), generation=1)) is None
        assert it.programmed() == [(700, 900, 0)]

    run(machine, scenario)


def test_new_sandbox_has_the_generation_of_its_placement_also_if_it_is_placed_anew(
    machine: Machine,
) -> None:
    async def scenario(it: Rated) -> None:
        assert (await it.add(placed(on(PF0, 700), generation=3))).generation == 3
        gone = placed(on(PciAddress("0000:77:00.0"), 700), generation=4)
        receipt = await it.add(gone, "c2", PodUid("uid-q"))
        assert (receipt.interfaces[0].vf.pf in (PF0, PF1), receipt.generation) == (True, 4)

    run(machine, scenario)


def test_new_sandbox_gets_the_latest_rates_although_its_annotations_are_older(machine: Machine) -> None:
    async def scenario(it: Rated) -> None:
        it.cluster.place(SECOND)
        receipt = await it.add_with(FIRST)
        assert receipt.generation == 1
        assert it.programmed() == AFTER

    run(machine, scenario)


def test_replay_of_an_earlier_placement_by_a_new_sandbox_is_refused(machine: Machine) -> None:
    async def scenario(it: Rated) -> None:
        receipt = await it.add(FIRST)
        await it.change(SECOND)
        machine.hardware.destroy_namespace(receipt.netns)
        it.cluster.known = {}
        with pytest.raises(K8sRdmaError, match="of generation 0, and generation 1 was programmed"):
            await it.add_with(FIRST, "c2")
        receipt = await it.add_with(SECOND, "c2")
        assert (receipt.generation, it.programmed("c2")) == (1, AFTER)

    run(machine, scenario)


def test_earlier_or_equal_placement_has_no_effect(machine: Machine) -> None:
    async def scenario(it: Rated) -> None:
        await it.add(FIRST)
        await it.change(SECOND)
        applied = len(machine.kernel.applied)
        for placement in (FIRST, replace(FIRST, generation=1)):
            assert await it.change(placement) is None
        assert len(machine.kernel.applied) == applied
        assert it.programmed() == AFTER

    run(machine, scenario)


def test_pod_whose_deletion_is_under_way_is_left_to_it(machine: Machine) -> None:
    async def scenario(it: Rated) -> None:
        receipt = await it.add(FIRST)
        async with it.verbs.commands.locks.alone(receipt.attachment.container):
            assert await it.change(SECOND) == 1.0
            assert it.programmed() == BEFORE
        outcomes = await asyncio.gather(
            it.verbs.delete(call("DEL", "c1", uid=P), "net"), it.live.change_all(it.cluster.placements())
        )
        assert outcomes == [None, 1.0]
        assert await it.live.change_all(it.cluster.placements()) is None
        assert machine.is_pristine()
        assert it.report().problems == ()

    run(machine, scenario)


def test_pod_that_ends_during_changes_of_other_rates_needs_none(machine: Machine) -> None:
    others = [(PodUid(f"uid-{number}"), (PF0, PF1)[number % 2]) for number in range(6)]

    async def scenario(it: Rated) -> None:
        for number, (uid, pf) in enumerate((*others, (P, PF0))):
            await it.add(placed(on(pf, 100)), f"c{number}", uid)
            it.cluster.place(placed(on(pf, 200), generation=1), uid)
        delete = it.verbs.delete(call("DEL", "c6", uid=P), "net")
        assert await asyncio.gather(it.live.change_all(it.cluster.placements()), delete) == [None, None]
        assert [it.programmed(f"c{number}") for number in range(6)] == [[(200, 0, 0)]] * 6
        it.check()

    run(machine, scenario)


def test_changes_come_with_the_placements_and_with_the_state_of_the_node(machine: Machine) -> None:
    async def scenario(it: Rated) -> None:
        reporter = Reporter(it.node, it.live.problems)
        await it.add(FIRST)
        following = asyncio.create_task(it.live.run(reporter))
        report = reporter.now()
        it.cluster.place(SECOND)
        async with asyncio.timeout(120):
            report = await reporter.wait_for_change(report)
            assert report.allocations[0].generation == 1
            it.cluster.place(placed(on(PF0, 200_000), SECOND.interfaces[1], generation=2))
            assert await it.patience.next() == 1.0
            report = reporter.now()
            assert "200000 Mb/s needed" in report.problems[0]
            machine.hardware.links[PF0] = 300_000
            await machine.worker.run(it.node.refresh)
            it.now = 1.0
            await reporter.publish()
            while report.allocations[0].generation != 2 or report.problems:
                report = await reporter.wait_for_change(report)
        following.cancel()
        await asyncio.wait([following])

    run(machine, scenario)


class CountingReporter(Reporter):
    """Counts the questions for the report of now."""

    asked = 0

    def now(self) -> NodeReport:
        self.asked += 1
        return super().now()


def test_changes_of_the_node_wake_nothing_while_no_pod_has_a_placement(machine: Machine) -> None:
    async def scenario(it: Rated) -> None:
        reporter = CountingReporter(it.node)
        following = asyncio.create_task(it.live.run(reporter))
        await it.add_with(FIRST)
        await reporter.publish()
        for _ in range(9):
            await asyncio.sleep(0)
        assert reporter.asked == 1
        sent = await reporter.publisher.wait_for_change(None)
        it.cluster.place(SECOND)
        async with asyncio.timeout(120):
            while it.receipt().generation != SECOND.generation:
                sent = await reporter.publisher.wait_for_change(sent)
        following.cancel()
        await asyncio.wait([following])

    run(machine, scenario)


def test_interfaces_by_claim_keep_their_rates_beside_changed_ones_of_the_annotation(machine: Machine) -> None:
    machine.rules = (PfRule(names=frozenset({"f1"}), use=PfUse.CLAIMS), PfRule())

    async def scenario(it: Rated) -> None:
        wanted = claimed_interface("a", "f1", bandwidth="60G", maxTxRate="70G")
        document = of_pod(claim(wanted, uid="claim-p", name="uid-p"), "p")
        await machine.claim_commands.prepare(prepare(document))
        await it.add(placed(on(PF0, 500, 800)))
        assert it.programmed() == [(500, 800, 0), (60_000, 70_000, 0)]
        assert await it.change(placed(on(PF0, 700, 900), on(PF1, 5), generation=1)) is None
        assert it.programmed() == [(700, 900, 0), (60_000, 70_000, 0)]
        assert it.cluster.rates[0][0].endswith("programmed: eth0: min 700, max 900 Mb/s")
        it.check()

    run(machine, scenario)


def test_attachment_of_claims_alone_has_the_generation_of_its_pod(machine: Machine) -> None:
    """The node reports the least of a pod's generations."""
    machine.rules = (PfRule(names=frozenset({"f1"}), use=PfUse.CLAIMS), PfRule())

    async def scenario(it: Rated) -> None:
        document = of_pod(
            claim(claimed_interface("a", "f1", bandwidth="60G"), uid="claim-p", name="uid-p"), "p"
        )
        await machine.claim_commands.prepare(prepare(document))
        netns = machine.hardware.create_namespace()
        await it.verbs.add(call("ADD", uid=P, name=P), netns, machine.stdin({}))
        assert await it.change(placed(on(PF0, 500), generation=3)) is None
        assert it.receipt().generation == 3
        assert it.programmed() == [(60_000, 0, 0)]

    run(machine, scenario)


def test_rates_of_an_exclusive_device_change_on_the_pf_that_kubelet_chose(machine: Machine) -> None:
    machine.rdma = True
    machine.boot()
    machine.resources = (ExclusiveResource(select=Selector(pfs=("f0#2", "f0#3"))),)
    machine.kubelet = kubelet = FakePodResources()
    kubelet.allocate("default", P, HUSTCAT_RESOURCE, "f0r3")

    def either(least: int, most: int, generation: int = 0) -> Placement:
        device = on(PF0, least, most, pool=HUSTCAT_RESOURCE, entry=0)
        return placed(device, replace(device, pf=PF1), generation=generation)

    async def scenario(it: Rated) -> None:
        await it.add(either(500, 800))
        assert it.receipt().interfaces[0].vf == VfRef(PF0, 3)
        assert await it.change(either(700, 900, 1)) is None
        assert it.programmed() == [(700, 900, 0)]
        it.check()

    run(machine, scenario)
