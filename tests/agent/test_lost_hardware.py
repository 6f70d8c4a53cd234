"""Cards that fall off the bus, and VFs that lack their RDMA device: the report says so, pods get others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine, Verbs, asks, call
from factories import PF0, PF1
from k8s_rdma.core.devices.required_rdma import WITHOUT_RDMA
from k8s_rdma.core.step import VfRef
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.rdma_node import status_of
from k8s_rdma.wire.report_builder import NodeReports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from k8s_rdma.agent.node import Node
    from k8s_rdma.wire.report import NodeReport

ONE = asks({"min_tx_rate": 1000})


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, rdma=True)


def play(machine: Machine, scenario: Callable[[Node, Verbs], Awaitable[None]]) -> None:
    async def main() -> None:
        with machine.running() as (node, verbs):
            await scenario(node, verbs)

    asyncio.run(main())


async def given(machine: Machine, verbs: Verbs, name: str = "p") -> VfRef:
    add = call("ADD", f"c-{name}", f"uid-{name}", name=name)
    added = await verbs.add(add, machine.hardware.create_namespace(), machine.stdin(ONE))
    assert added is not None
    return added.receipt.interfaces[0].vf


def report(node: Node) -> NodeReport:
    return NodeReports(node.name, "e").build(node.hardware, node.ledger)


def test_card_that_falls_off_the_bus_is_a_problem_of_the_node_and_of_its_pods(machine: Machine) -> None:
    async def scenario(node: Node, verbs: Verbs) -> None:
        assert (await given(machine, verbs)).pf == PF0
        machine.hardware.remove_pf(PF0)
        node.refresh()
        gone, of_pod = report(node).problems
        assert gone.startswith(f"PF f0 ({PF0}) is gone")
        assert of_pod.startswith(f"VF 0 of PF {PF0}, which pod default/p was given as eth0, is lost to it")
        [ready] = status_of(report(node)).conditions
        assert (ready.status, ready.reason) == ("True", "ProblemsReported")
        assert gone[:30] in ready.message
        with pytest.raises(K8sRdmaError, match="is not in the pod") as caught:
            await verbs.check(call("CHECK", "c-p", "uid-p"), machine.stdin(ONE))
        assert caught.value.reason is Reason.ALTERED
        assert (await given(machine, verbs, "q")).pf == PF1
        await verbs.delete(call("DEL", "c-p", "uid-p"), "net")
        assert [attachment.container for attachment in node.ledger.receipts] == ["c-q"]
        assert report(node).problems == (gone,)

    play(machine, scenario)


def test_card_without_pods_is_missed_as_well(machine: Machine) -> None:
    async def scenario(node: Node, verbs: Verbs) -> None:
        machine.hardware.remove_pf(PF1)
        node.refresh()
        [gone] = report(node).problems
        assert gone.startswith(f"PF f1 ({PF1}) is gone")
        assert (await given(machine, verbs)).pf == PF0

    play(machine, scenario)


def test_restarted_agent_misses_the_card_that_its_ledger_names(machine: Machine) -> None:
    async def first(_: Node, verbs: Verbs) -> None:
        await given(machine, verbs)

    async def second(node: Node, _: Verbs) -> None:
        [of_pod] = report(node).problems
        assert f"PF {PF0}" in of_pod
        assert "the PF is gone" in of_pod

    play(machine, first)
    machine.hardware.remove_pf(PF0)
    play(machine, second)


def test_status_names_the_cards_that_are_gone(machine: Machine) -> None:
    async def scenario(node: Node, verbs: Verbs) -> None:
        for pf in (PF0, PF1):
            machine.hardware.remove_pf(pf)
        node.refresh()
        with pytest.raises(K8sRdmaError) as caught:
            await verbs.status(call("STATUS"), machine.stdin(None))
        assert caught.value.reason is Reason.NOT_READY
        assert f"PF f1 ({PF1}) is gone" in caught.value.details

    play(machine, scenario)


def test_vf_without_rdma_device_goes_to_no_pod_while_rdma_is_required(machine: Machine) -> None:
    machine.hardware.functions[VfRef(PF0, 0)].rdma_device = None

    async def scenario(node: Node, verbs: Verbs) -> None:
        assert await given(machine, verbs) == VfRef(PF0, 1)
        [foreign] = report(node).pfs[0].foreign
        assert (foreign.vf, foreign.why) == (0, WITHOUT_RDMA)

    play(machine, scenario)


def test_vf_without_rdma_device_is_given_if_rdma_is_not_required(machine: Machine) -> None:
    machine.hardware.functions[VfRef(PF0, 0)].rdma_device = None
    machine.require_rdma = False

    async def scenario(node: Node, verbs: Verbs) -> None:
        assert await given(machine, verbs) == VfRef(PF0, 0)
        assert not report(node).pfs[0].foreign

    play(machine, scenario)
