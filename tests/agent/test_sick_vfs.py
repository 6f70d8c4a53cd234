"""VFs that cannot be given: an ADD takes others, and the report says which are set aside."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine, Verbs, asks, call, no_other_vfs
from agent.test_claims import FOR_CLAIMS, Running, scenario
from agent.test_reconciler import RECONCILE_S, Kept
from agent.test_reconciler import run as keep
from factories import PF0, PF1
from fakes.machine import FakePf
from k8s_rdma.agent.adoption import Adoption
from k8s_rdma.agent.report import Reporter
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.step import (
    BindVf,
    BringHome,
    CleanVf,
    ConfigureInterface,
    GiveVf,
    ProgramVfs,
    SetRates,
    VfRef,
)
from k8s_rdma.core.types import PodUid
from k8s_rdma.core.vf_failures import FIRST_RETRY_S
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.adopt import AdoptRequest, decode_adopted, encode_adopt
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.report_builder import NodeReports
from resource_claims import interface as claimed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from k8s_rdma.agent.node import Node
    from k8s_rdma.wire.report import NodeReport

FIRST = VfRef(PF0, 0)
ONE = asks({"min_tx_rate": 10})


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def play(machine: Machine, scenario: Callable[[Node, Verbs], Awaitable[None]]) -> None:
    async def main() -> None:
        with machine.running() as (node, verbs):
            await scenario(node, verbs)

    asyncio.run(main())


async def given(
    machine: Machine, verbs: Verbs, name: str = "p", annotations: dict[str, str] | None = None
) -> list[VfRef]:
    """The VFs that a new pod gets."""
    add = call("ADD", f"c-{name}", f"uid-{name}", name=name)
    added = await verbs.add(add, machine.hardware.create_namespace(), machine.stdin(annotations or ONE))
    assert added is not None
    return [interface.vf for interface in added.receipt.interfaces]


async def ended(verbs: Verbs, name: str = "p") -> None:
    await verbs.delete(call("DEL", f"c-{name}", f"uid-{name}", name=name), "net")


def report(node: Node) -> NodeReport:
    return NodeReports(node.name, "e").build(node.hardware, node.ledger)


@pytest.mark.parametrize("step", [CleanVf, GiveVf, SetRates, ConfigureInterface])
def test_add_takes_another_vf_and_the_node_reports_the_one_that_failed(machine: Machine, step: type) -> None:
    async def scenario(node: Node, verbs: Verbs) -> None:
        for pf, netdev in ((PF0, "f0v0"), (PF1, "f1v0")):
            machine.hardware.make_sick(VfRef(pf, 0), step)
            if step is CleanVf:
                machine.hardware.tune_interface(netdev, None, held_program=True, XDP="98 (driver)")
        for number in range(6):
            assert VfRef(PF0, 0) not in await given(machine, verbs, f"p{number}")
        [foreign] = report(node).pfs[0].foreign
        assert foreign.vf == 0
        assert "EBUSY" in foreign.why
        [problem] = report(node).pfs[0].problems
        assert problem.startswith("VF 0 of PF f0 is set aside")
        assert len(machine.kernel.applied) < 60
        for number in range(6):
            await ended(verbs, f"p{number}")
        assert machine.is_pristine()

    play(machine, scenario)


def test_vf_that_was_set_aside_is_not_tried_before_its_time(machine: Machine) -> None:
    async def scenario(node: Node, verbs: Verbs) -> None:
        machine.hardware.make_sick(FIRST, GiveVf)
        await given(machine, verbs)
        await ended(verbs)
        steps = len(machine.kernel.applied)
        await given(machine, verbs, "q")
        assert not any(
            isinstance(step, GiveVf) and step.vf == FIRST for step in machine.kernel.applied[steps:]
        )
        machine.hardware.sick.clear()
        machine.now_s = FIRST_RETRY_S
        assert [await given(machine, verbs, name) for name in "rst"] == [
            [VfRef(PF0, 2)],
            [VfRef(PF0, 3)],
            [FIRST],
        ]
        assert not node.failures

    play(machine, scenario)


def test_fault_of_the_request_sets_no_vf_aside(machine: Machine) -> None:
    async def scenario(node: Node, verbs: Verbs) -> None:
        for index in range(4):
            machine.hardware.make_sick(VfRef(PF0, index), GiveVf, why="EINVAL: this MAC")
            machine.hardware.make_sick(VfRef(PF1, index), GiveVf, why="EINVAL: this MAC")
        with pytest.raises(K8sRdmaError, match="EINVAL") as caught:
            await given(machine, verbs)
        assert caught.value.reason is Reason.KERNEL_FAILURE
        assert [pf.foreign for pf in report(node).pfs] == [(), ()]
        assert not node.ledger.receipts
        machine.hardware.sick.clear()
        assert len(await given(machine, verbs, "q")) == 1

    play(machine, scenario)


def test_pf_that_gives_no_vf_is_left_for_another_and_named_without_setting_its_vfs_aside(
    machine: Machine,
) -> None:
    async def scenario(node: Node, verbs: Verbs) -> None:
        for index in range(4):
            machine.hardware.make_sick(VfRef(PF0, index), SetRates, ProgramVfs, why="EIO: firmware")
        for number in range(4):
            assert [vf.pf for vf in await given(machine, verbs, f"p{number}")] == [PF1]
        assert [pf.foreign for pf in report(node).pfs] == [(), ()]
        [problem] = report(node).pfs[0].problems
        assert "could not be given" in problem
        assert "firmware" in problem

    play(machine, scenario)


def test_pods_get_all_healthy_vfs_however_many_are_sick(tmp_path: Path) -> None:
    machine = Machine(tmp_path, pfs=(FakePf(name="f0", pci=PF0, vfs=12),))

    async def scenario(node: Node, verbs: Verbs) -> None:
        for index in range(8):
            machine.hardware.make_sick(VfRef(PF0, index), GiveVf)
        found, calls = [], 0
        while len(found) < 4:
            calls += 1
            assert calls < 12
            try:
                found += await given(machine, verbs, f"p{len(found)}")
            except K8sRdmaError:
                await ended(verbs, f"p{len(found)}")
        assert sorted(vf.index for vf in found) == [8, 9, 10, 11]

    play(machine, scenario)


def test_namespace_that_ended_is_no_failure_of_the_vf(machine: Machine) -> None:
    async def scenario(node: Node, verbs: Verbs) -> None:
        netns = machine.hardware.create_namespace()

        async def end() -> None:
            machine.hardware.destroy_namespace(netns)

        machine.on_prepared = end  # type: ignore[method-assign]
        with pytest.raises(K8sRdmaError):
            await verbs.add(call("ADD"), netns, machine.stdin(ONE))
        assert not node.failures
        assert not node.ledger.receipts

    play(machine, scenario)


def test_vf_that_cannot_be_brought_home_stays_with_its_receipt_and_others_go_on(machine: Machine) -> None:
    async def scenario(node: Node, verbs: Verbs) -> None:
        machine.hardware.make_sick(FIRST, ConfigureInterface, BringHome)
        with pytest.raises(K8sRdmaError):
            await given(machine, verbs)
        assert list(node.ledger.holders()) == [FIRST]
        assert await given(machine, verbs, "q") == [VfRef(PF0, 1)]
        machine.hardware.sick.clear()
        await ended(verbs)
        await ended(verbs, "q")
        assert machine.is_pristine()

    play(machine, scenario)


def test_placement_by_the_extender_is_kept_beside_a_sick_vf(machine: Machine) -> None:
    async def scenario(node: Node, verbs: Verbs) -> None:
        machine.hardware.make_sick(VfRef(PF1, 0), GiveVf)
        placed = PlacedInterface(pf=PF1, min_tx_rate_mbps=90_000, max_tx_rate_mbps=0)
        placement = Placement(node=machine.node, interfaces=(placed,))
        text = encode(placement, PodUid("uid-p"), None)
        annotations = asks({"min_tx_rate": 90_000}) | {PLACEMENT_ANNOTATION: text}
        assert await given(machine, verbs, annotations=annotations) == [VfRef(PF1, 1)]

    play(machine, scenario)


def test_last_free_vf_that_is_sick_fails_its_pod_with_the_kernels_words(tmp_path: Path) -> None:
    machine = Machine(tmp_path, pfs=no_other_vfs(1))

    async def scenario(node: Node, verbs: Verbs) -> None:
        machine.hardware.make_sick(FIRST, GiveVf)
        for name in "pq":
            with pytest.raises(K8sRdmaError, match="EBUSY"):
                await given(machine, verbs, name)
        [problem] = report(node).pfs[0].problems
        assert problem.startswith("VF 0 of PF f0 could not be given")
        machine.hardware.sick.clear()
        assert await given(machine, verbs) == [FIRST]
        assert report(node).pfs[0].problems == ()

    play(machine, scenario)


def test_vf_for_a_program_is_set_aside_as_well(machine: Machine) -> None:
    async def scenario(node: Node, verbs: Verbs) -> None:
        machine.hardware.make_sick(FIRST, BindVf)
        annotations = {"rdma_interfaces_required": '[{"driver": "vfio-pci"}]'}
        assert await given(machine, verbs, annotations=annotations) == [VfRef(PF0, 1)]
        assert report(node).pfs[0].foreign[0].vf == 0
        await ended(verbs)
        assert machine.is_pristine()

    play(machine, scenario)


def test_claims_vf_that_is_sick_is_exchanged_for_another_of_its_pf(tmp_path: Path) -> None:
    machine = Machine(tmp_path, rdma=True)
    machine.rules = (FOR_CLAIMS, PfRule())

    async def play(agent: Running) -> None:
        machine.hardware.make_sick(FIRST, GiveVf)
        [device] = await agent.prepare(claimed("a", bandwidth="25G"))
        await agent.add()
        assert [vf[:2] for vf in agent.vfs()] == [(PF0, 1)]
        [claim] = agent.node.ledger.claims.values()
        assert [kept.vf for kept in claim.interfaces] == [VfRef(PF0, 1)]
        [path] = (machine.directory / "host/var/run/cdi").glob("*")
        assert device.partition("=")[2] in path.read_text()
        assert [each.vf for each in report(agent.node).pfs[0].foreign] == [0]
        assert await agent.prepare(claimed("a", bandwidth="25G")) == (device,)
        await agent.delete()
        await agent.unprepare()
        await agent.prepare(claimed("a", bandwidth="25G"), pod_name="q", uid="claim-2", name="d")
        [claim] = agent.node.ledger.claims.values()
        assert claim.interfaces[0].vf != FIRST

    scenario(machine, play)


def test_exchanged_vf_of_a_claim_holds_after_a_restart(tmp_path: Path) -> None:
    machine = Machine(tmp_path, rdma=True)
    machine.rules = (FOR_CLAIMS, PfRule())

    async def first(agent: Running) -> None:
        machine.hardware.make_sick(FIRST, GiveVf)
        await agent.prepare(claimed("a", bandwidth="25G"))
        await agent.add()

    async def second(agent: Running) -> None:
        [claim] = agent.node.ledger.claims.values()
        assert [kept.vf for kept in claim.interfaces] == [VfRef(PF0, 1)]
        await agent.delete()
        await agent.unprepare()
        assert machine.is_pristine()

    scenario(machine, first)
    scenario(machine, second)


def test_claim_whose_pf_has_no_other_vf_fails_with_the_kernels_words(tmp_path: Path) -> None:
    machine = Machine(tmp_path, pfs=(FakePf(name="f0", pci=PF0, vfs=1, rdma=True),))
    machine.rules = (FOR_CLAIMS,)

    async def play(agent: Running) -> None:
        machine.hardware.make_sick(FIRST, GiveVf)
        await agent.prepare(claimed("a", bandwidth="25G"))
        with pytest.raises(K8sRdmaError, match="EBUSY"):
            await agent.add()
        machine.hardware.sick.clear()
        await agent.delete()
        await agent.add()
        assert [vf[:2] for vf in agent.vfs()] == [(PF0, 0)]

    scenario(machine, play)


def test_operator_has_a_vf_tried_again_at_once(machine: Machine) -> None:
    async def scenario(node: Node, verbs: Verbs) -> None:
        machine.hardware.make_sick(FIRST, GiveVf)
        await given(machine, verbs)
        machine.hardware.sick.clear()
        adoption = Adoption(node=node, worker=machine.worker, reporter=Reporter(node))
        reply = decode_adopted(await adoption.call(encode_adopt(AdoptRequest(pf="f0", vf=0), 1000)))
        assert [(vf.outcome, vf.why.partition(":")[0]) for vf in reply.vfs] == [("reset", "set aside")]
        assert await given(machine, verbs, "q") == [FIRST]

    play(machine, scenario)


def test_report_shows_that_a_vf_is_free_again_when_its_time_is_over(machine: Machine) -> None:
    async def scenario(kept: Kept) -> None:
        machine.hardware.make_sick(FIRST, GiveVf)
        await given(machine, kept.verbs)
        assert await kept.settle() == RECONCILE_S
        assert (await kept.report()).pfs[0].foreign
        looks = kept.looks
        machine.now_s = FIRST_RETRY_S
        assert await kept.patience.pass_by() == RECONCILE_S
        assert not (await kept.report()).pfs[0].foreign
        assert kept.looks == looks

    keep(machine, scenario)
