"""Scans of the hardware that fail: one is tolerated, and the last one that worked counts."""

from __future__ import annotations

import asyncio

import pytest

from agent.machine import Machine, asks, call
from agent.test_reconciler import RECONCILE_S, Kept, machine, run
from factories import PF1
from k8s_rdma.core.kernel import Unreadable
from k8s_rdma.errors import STATUS, TRY_AGAIN_LATER, K8sRdmaError

__all__ = ["machine"]


def test_silence_of_the_kernel_makes_the_node_unreadable_when_it_lasts(machine: Machine) -> None:
    async def scenario(it: Kept) -> None:
        fine = await it.report()
        machine.hardware.silent = "netlink says no"
        machine.hardware.changed()
        assert await it.settle() == 1
        assert await it.report() == fine
        assert await it.patience.pass_by() == 2
        told = await it.report()
        assert told.unreadable == ("the hardware: netlink says no",)
        assert told.pfs == fine.pfs
        machine.hardware.silent = ""
        assert await it.patience.pass_by() == RECONCILE_S
        assert (await it.report()).unreadable == ()
        assert it.node.scanner.scans.failed == 2

    run(machine, scenario)


def test_node_keeps_the_scan_of_a_delete(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))
            machine.hardware.set_unreadable(Unreadable("PF f1", "no answer"), hidden=[PF1])
            node.refresh()
            machine.hardware.set_unreadable()
            machine.kernel.fail()
            with pytest.raises(K8sRdmaError, match="not undone"):
                await verbs.delete(call("DEL"), "net")
            assert not node.scanner.incomplete
            assert node.hardware == machine.kernel.observe()

    asyncio.run(scenario())


def test_add_is_to_be_tried_again_while_the_kernel_is_silent(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            machine.hardware.silent = "netlink says no"
            node.refresh()
            netns = machine.hardware.create_namespace()
            with pytest.raises(K8sRdmaError, match="netlink says no") as caught:
                await verbs.add(call("ADD"), netns, machine.stdin(asks({})))
            assert STATUS[caught.value.reason].cni == TRY_AGAIN_LATER
            machine.hardware.silent = ""
            assert await verbs.add(call("ADD"), netns, machine.stdin(asks({}))) is not None

    asyncio.run(scenario())
