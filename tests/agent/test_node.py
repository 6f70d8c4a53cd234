"""Interfaces of a node: chosen by its hardware of now, and never more than PFs have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine, asks, call
from agent.test_add import KEY
from factories import PF0, PF1
from k8s_rdma.core.kernel import Unreadable
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import STATUS, TRY_AGAIN_LATER, K8sRdmaError
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode

if TYPE_CHECKING:
    from collections.abc import Awaitable


def test_concurrent_adds_never_share_a_vf_or_overcommit_a_pf(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):

            def one(index: int) -> Awaitable[object]:
                stdin = machine.stdin(asks({"min_tx_rate": 30_000}))
                return verbs.add(
                    call("ADD", f"c{index}", f"u{index}"), machine.hardware.create_namespace(), stdin
                )

            results = await asyncio.gather(*map(one, range(12)), return_exceptions=True)
            assert sum(not isinstance(result, Exception) for result in results) == 6
            assert {type(result) for result in results if isinstance(result, Exception)} == {K8sRdmaError}
            assert len(node.ledger.holders()) == 6
            for pf in machine.kernel.observe().pfs:
                assert sum(vf.min_tx_rate_mbps for vf in pf.vfs) <= pf.link_mbps

    asyncio.run(scenario())


def test_add_looks_at_the_hardware_again_before_it_refuses(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            machine.hardware.set_link(PF0, None)
            machine.hardware.set_link(PF1, None)
            node.refresh()
            machine.hardware.set_link(PF1, 100_000)
            netns = machine.hardware.create_namespace()
            receipt = (await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))).receipt
            assert receipt.interfaces[0].vf.pf == PF1

    asyncio.run(scenario())


def test_add_is_to_be_tried_again_if_the_promised_pf_cannot_be_read(machine: Machine) -> None:
    async def scenario() -> None:
        promised = Placement(
            node=NodeName("w1"), interfaces=(PlacedInterface(pf=PF0, min_tx_rate_mbps=5, max_tx_rate_mbps=0),)
        )
        annotations = {PLACEMENT_ANNOTATION: encode(promised, PodUid("uid-p"), KEY)}
        with machine.running(key=KEY) as (node, verbs):
            machine.hardware.set_unreadable(Unreadable("PF f0", "no answer"), hidden=[PF0])
            node.refresh()
            netns = machine.hardware.create_namespace()
            with pytest.raises(K8sRdmaError, match=f"PF {PF0} is promised") as caught:
                await verbs.add(call("ADD"), netns, machine.stdin(annotations))
            assert STATUS[caught.value.reason].cni == TRY_AGAIN_LATER
            assert "no answer" in caught.value.details
            assert not node.ledger.receipts
            machine.hardware.set_unreadable()
            receipt = (await verbs.add(call("ADD"), netns, machine.stdin(annotations))).receipt
            assert receipt.interfaces[0].vf.pf == PF0

    asyncio.run(scenario())


def test_add_uses_readable_pfs_and_is_to_be_tried_again_if_they_are_too_few(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            machine.hardware.set_unreadable(Unreadable("PF f0", "no answer"), hidden=[PF0])
            node.refresh()
            for number in range(4):
                netns = machine.hardware.create_namespace()
                given = await verbs.add(
                    call("ADD", f"c{number}", f"uid-{number}"), netns, machine.stdin(asks({}))
                )
                assert given.receipt.interfaces[0].vf.pf == PF1
            with pytest.raises(K8sRdmaError, match="not everything could be looked at: PF f0") as caught:
                await verbs.add(
                    call("ADD", "one-more"), machine.hardware.create_namespace(), machine.stdin(asks({}))
                )
            assert STATUS[caught.value.reason].cni == TRY_AGAIN_LATER

    asyncio.run(scenario())


def test_link_that_slows_below_its_reservations_keeps_them_and_gives_no_more(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            machine.hardware.remove_pf(PF1)
            machine.hardware.set_link(PF0, 1000)
            node.refresh()
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 600})))
            applied = len(machine.kernel.applied)
            for link_mbps in (500, None):
                machine.hardware.set_link(PF0, link_mbps)
                node.refresh()
                assert not await verbs.reconcile()
                with pytest.raises(K8sRdmaError, match="cannot give pod"):
                    await verbs.add(
                        call("ADD", "c2", "uid-q"),
                        machine.hardware.create_namespace(),
                        machine.stdin(asks({"min_tx_rate": 1})),
                    )
            assert len(machine.kernel.applied) == applied
            assert node.hardware.pfs[0].vfs[0].min_tx_rate_mbps == 600
            assert machine.hardware.interface("eth0", netns) is not None

    asyncio.run(scenario())
