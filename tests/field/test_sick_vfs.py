"""VFs that failed on other people's nodes: a pod gets another VF, and the node reports the fault."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import pytest

from agent.machine import Machine, Verbs, asks, call
from factories import PF0, PF1
from k8s_rdma.core.devices.required_rdma import WITHOUT_RDMA
from k8s_rdma.core.step import ConfigureInterface, GiveVf, SetRates, VfRef
from k8s_rdma.wire.report_builder import NodeReports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from k8s_rdma.agent.node import Node


class Failure(NamedTuple):
    """A step that failed on a VF whose siblings were well."""

    step: type
    why: str
    source: str


FAILURES = (
    Failure(
        ConfigureInterface,
        "up: EBUSY: Device or resource busy",
        "https://github.com/k8snetworkplumbingwg/sriov-cni/issues/213",
    ),
    Failure(
        ConfigureInterface,
        "up: EBUSY: Device or resource busy",
        "https://github.com/hustcat/sriov-cni/issues/1",
    ),
    Failure(GiveVf, "move: EEXIST: File exists", "https://github.com/hustcat/sriov-cni/issues/35"),
    Failure(GiveVf, "move: ENODEV: No such device", "https://github.com/hustcat/sriov-cni/issues/16"),
    Failure(
        SetRates,
        "rates: EINVAL: Invalid argument",
        "https://github.com/k8snetworkplumbingwg/sriov-cni/issues/349",
    ),
)


def play(machine: Machine, scenario: Callable[[Node, Verbs], Awaitable[None]]) -> None:
    async def main() -> None:
        with machine.running() as (node, verbs):
            await scenario(node, verbs)

    asyncio.run(main())


async def given(machine: Machine, verbs: Verbs, name: str) -> VfRef:
    add = call("ADD", f"c-{name}", f"uid-{name}", name=name)
    stdin = machine.stdin(asks({"min_tx_rate": 10}))
    added = await verbs.add(add, machine.hardware.create_namespace(), stdin)
    assert added is not None
    return added.receipt.interfaces[0].vf


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.source.partition("com/")[2])
def test_one_sick_vf_of_each_pf_blocks_no_pod(tmp_path: Path, failure: Failure) -> None:
    machine = Machine(tmp_path)

    async def scenario(node: Node, verbs: Verbs) -> None:
        for pf in (PF0, PF1):
            machine.hardware.make_sick(VfRef(pf, 0), failure.step, why=failure.why)
        found = [await given(machine, verbs, f"p{number}") for number in range(6)]
        assert {vf.index for vf in found} == {1, 2, 3}
        report = NodeReports(node.name, "e").build(node.hardware, node.ledger)
        assert [[(vf.vf, failure.why in vf.why) for vf in pf.foreign] for pf in report.pfs] == [
            [(0, True)]
        ] * 2

    play(machine, scenario)


def test_node_whose_vf_lost_its_rdma_device_starts_no_pod_without_one(tmp_path: Path) -> None:
    """https://github.com/Mellanox/k8s-rdma-sriov-dev-plugin/issues/9: "launched normally", and no device."""
    machine = Machine(tmp_path, rdma=True)
    machine.hardware.functions[VfRef(PF0, 1)].rdma_device = None

    async def scenario(node: Node, verbs: Verbs) -> None:
        for number in range(3):
            vf = await given(machine, verbs, f"p{number}")
            assert machine.hardware.functions[vf].rdma_device
        report = NodeReports(node.name, "e").build(node.hardware, node.ledger)
        assert [(vf.vf, vf.why) for vf in report.pfs[0].foreign] == [(1, WITHOUT_RDMA)]

    play(machine, scenario)
