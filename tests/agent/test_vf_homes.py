"""A pod's settings of its VF's netdev end with it, and the node says why a VF is not free meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine, asks, call
from fakes.machine import ATTRIBUTES
from k8s_rdma.core.ledger import Phase
from k8s_rdma.core.step import BringHome
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.core.step import NetnsRef

PROGRAM = {"XDP": "98 (driver)"}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def attributes_in(machine: Machine, netns: NetnsRef) -> dict[str, str]:
    return machine.hardware.device(netns, "eth0").attributes


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("destroyed", [False, True])
def test_next_pod_has_no_settings_of_its_predecessor(machine: Machine, held: bool, destroyed: bool) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            receipt = (await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))).receipt
            assert dict(receipt.interfaces[0].home.attributes) == ATTRIBUTES
            machine.hardware.tune_interface(
                "eth0", netns, held_program=held, txqueuelen="7", alias="mine", **PROGRAM
            )
            if destroyed:
                machine.hardware.destroy_namespace(netns)
                await verbs.reconcile()
            else:
                await verbs.delete(call("DEL"), "net")
            assert node.hardware == machine.pristine
            assert not node.homes.failures
            other = machine.hardware.create_namespace()
            again = (await verbs.add(call("ADD"), other, machine.stdin(asks({"min_tx_rate": 5})))).receipt
            assert again.interfaces[0].vf == receipt.interfaces[0].vf
            assert attributes_in(machine, other) == ATTRIBUTES

    asyncio.run(scenario())


def test_vf_is_not_free_and_the_node_says_why_until_it_is_as_it_was(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            receipt = (await verbs.add(call("ADD"), netns, machine.stdin(asks({})))).receipt
            machine.hardware.tune_interface("eth0", netns, held_program=True, **PROGRAM)
            machine.kernel.fail(after_changes=2)  # home, and its driver is not bound anew
            with pytest.raises(KernelError):
                await verbs.delete(call("DEL"), "net")
            [stuck] = node.ledger.receipts.values()
            assert stuck.phase is Phase.RELEASING
            [why] = node.homes.failures.values()
            assert why.startswith("VFs of a pod that ended are not free: BringHome: made to fail")
            other = machine.hardware.create_namespace()
            env = call("ADD", container="c2", uid="uid-q", name="q")
            second = (await verbs.add(env, other, machine.stdin(asks({})))).receipt
            assert second.interfaces[0].vf != receipt.interfaces[0].vf
            assert await verbs.reconcile()
            assert not node.homes.failures
            await verbs.delete(call("DEL", container="c2"), "net")
            node.refresh()
            assert node.hardware == machine.pristine

    asyncio.run(scenario())


def test_pod_is_given_a_clean_vf_whatever_was_attached_to_it_on_the_host(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (_, verbs):
            machine.hardware.tune_interface("f0v0", None, held_program=True, **PROGRAM)
            for _ in range(2):
                netns = machine.hardware.create_namespace()
                await verbs.add(call("ADD"), netns, machine.stdin(asks({})))
                assert attributes_in(machine, netns) == ATTRIBUTES
                await verbs.delete(call("DEL"), "net")
                machine.hardware.tune_interface("f0v0", None, txqueuelen="7", **{"ring sizes": "64"})

    asyncio.run(scenario())


def test_vf_that_came_home_is_given_as_it_came_and_one_that_was_tuned_before_as_it_was_tuned(
    machine: Machine,
) -> None:
    """The operator may tune VFs, such as by udev, before pods have them."""
    machine.hardware.tune_interface("f0v0", None, txqueuelen="500", **{"ring sizes": "4096"})

    async def scenario() -> None:
        with machine.running() as (_, verbs):
            for _ in range(3):
                netns = machine.hardware.create_namespace()
                await verbs.add(call("ADD"), netns, machine.stdin(asks({})))
                assert attributes_in(machine, netns) == {
                    **ATTRIBUTES,
                    "txqueuelen": "500",
                    "ring sizes": "4096",
                }
                await verbs.delete(call("DEL"), "net")

    asyncio.run(scenario())


def test_vf_that_the_host_tunes_whenever_it_is_bound_anew_is_bound_anew_once(machine: Machine) -> None:
    """As udev does, whose rules apply some time after a netdev is there."""

    async def scenario() -> None:
        tuned = {"ring sizes": "4096"}
        machine.hardware.tune_interface("f0v0", None, **tuned)
        with machine.running() as (node, verbs):
            devices = []
            for number in range(4):
                netns = machine.hardware.create_namespace()
                await verbs.add(call("ADD"), netns, machine.stdin(asks({})))
                devices.append(machine.hardware.device(netns, "eth0"))
                assert devices[-1].attributes == ATTRIBUTES | tuned
                if number == 0:
                    machine.hardware.tune_interface("eth0", netns, held_program=True, **PROGRAM)
                await verbs.delete(call("DEL"), "net")
                if number == 0:
                    machine.hardware.tune_interface("f0v0", None, **tuned)
            assert devices[0] is not devices[1]
            assert devices[1] is devices[2] is devices[3]
            assert not node.homes.failures

    asyncio.run(scenario())


def test_vf_that_its_pod_hid_in_another_namespace_is_given_with_a_new_netdev(machine: Machine) -> None:
    """An agent that did not move the VF there itself takes it for another sandbox's."""

    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns, hidden = machine.hardware.create_namespace(), machine.hardware.create_namespace()
            receipt = (await verbs.add(call("ADD"), netns, machine.stdin(asks({})))).receipt
            device = machine.hardware.device(netns, "eth0")
            machine.hardware.tune_interface("eth0", netns, **{"ring sizes": "64"})
            machine.hardware.move(device, hidden.inode, "f0v0")
            await verbs.delete(call("DEL"), "net")
            machine.hardware.destroy_namespace(hidden)
            node.refresh()
            for _ in range(2):
                again = machine.hardware.create_namespace()
                found = (await verbs.add(call("ADD"), again, machine.stdin(asks({})))).receipt
                assert found.interfaces[0].vf == receipt.interfaces[0].vf
                assert attributes_in(machine, again) == ATTRIBUTES
                now = machine.hardware.device(again, "eth0")
                await verbs.delete(call("DEL"), "net")
            assert now is not device

    asyncio.run(scenario())


def test_vf_of_a_receipt_without_attributes_comes_home_by_a_new_netdev(machine: Machine) -> None:
    """As after an update of the agent, and of a ledger that was rebuilt."""

    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            receipt = (await verbs.add(call("ADD"), netns, machine.stdin(asks({})))).receipt
            unknown = tuple(
                replace(each, home=replace(each.home, attributes=None)) for each in receipt.interfaces
            )
            node.ledger_store.note(replace(receipt, interfaces=unknown))
            machine.hardware.tune_interface("eth0", netns, held_program=True, alias="mine", **PROGRAM)
        with machine.running() as (node, verbs):
            await verbs.delete(call("DEL"), "net")
            assert machine.kernel.applied[-2] == BringHome(
                vf=receipt.interfaces[0].vf, home=unknown[0].home, netns=netns, ifname="eth0"
            )
            assert machine.hardware.device(None, "f0v0").attributes == ATTRIBUTES
            assert node.hardware == machine.pristine

    asyncio.run(scenario())
