"""A pod's new sandbox takes over from the one before; no other pod gets between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine, asks, call
from k8s_rdma.agent.cni.add import AddResult
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import K8sRdmaError, Reason

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = asks({"min_tx_rate": 100_000}, {"min_tx_rate": 100_000})
ANYTHING = asks({"min_tx_rate": 1})


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("heir_first", [True, False])
def test_no_other_pod_gets_vfs_that_a_pod_inherits_from_its_former_sandbox(
    machine: Machine, heir_first: bool
) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            old, new, other = (machine.hardware.create_namespace() for _ in range(3))
            before = (await verbs.add(call("ADD", "old"), old, machine.stdin(WHOLE))).receipt
            machine.hardware.destroy_namespace(old)
            calls = [
                verbs.add(call("ADD", "new"), new, machine.stdin(WHOLE)),
                verbs.add(call("ADD", "other", "uid-q"), other, machine.stdin(ANYTHING)),
            ]
            outcomes = await asyncio.gather(*calls[:: 1 if heir_first else -1], return_exceptions=True)
            heir, refused = outcomes[:: 1 if heir_first else -1]
            assert isinstance(heir, AddResult)
            assert isinstance(refused, K8sRdmaError)
            assert refused.reason is Reason.INSUFFICIENT
            assert [each.vf.pf for each in heir.receipt.interfaces] == [
                each.vf.pf for each in before.interfaces
            ]
            assert {key.container for key in node.ledger.receipts} == {"new"}
            assert node.addresses.keys() == node.ledger.receipts.keys()
            assert machine.markers() == {"new"}
            await verbs.delete(call("DEL", "old"), "net")
            assert {key.container for key in node.ledger.receipts} == {"new"}

    asyncio.run(scenario())


def test_pod_whose_new_sandbox_is_refused_keeps_no_vf_of_the_former_one(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            old, new = machine.hardware.create_namespace(), machine.hardware.create_namespace()
            await verbs.add(call("ADD", "old"), old, machine.stdin(WHOLE))
            machine.hardware.destroy_namespace(old)
            too_much = machine.stdin(asks({"min_tx_rate": 100_000}, *[{}] * 8))
            with pytest.raises(K8sRdmaError, match="cannot give pod"):
                await verbs.add(call("ADD", "new"), new, too_much)
            assert machine.is_pristine()
            assert await verbs.reconcile()
            assert not node.ledger.receipts
            assert not machine.markers()

    asyncio.run(scenario())


class Promising:
    """A cluster whose pods were promised something, of which the agent has yet to hear."""

    def __init__(self, **promises: Placement) -> None:
        self._promises = {PodUid(uid): placement for uid, placement in promises.items()}
        self._known = False

    def placements(self) -> dict[PodUid, Placement]:
        return self._promises if self._known else {}

    async def wait_listed(self) -> None:
        self._known = True

    def attached(self, *_: object) -> None:
        pass

    def cap_altered(self, *_: object, **__: object) -> None: ...

    def annotation_ignored(self, *_: object) -> None: ...

    def placed_anew(self, *_: object) -> None:
        pass

    def refused(self, *_: object) -> None:
        pass


def test_pod_without_a_placement_never_gets_room_promised_to_others(machine: Machine) -> None:
    pfs = [pf.pci for pf in machine.pristine.pfs]
    placed = tuple(PlacedInterface(pf=pf, min_tx_rate_mbps=99_999) for pf in pfs)
    machine.cluster = Promising(promised=Placement(node=NodeName("w1"), interfaces=placed))

    async def scenario() -> None:
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            with pytest.raises(K8sRdmaError, match="1 Mb/s"):
                await verbs.add(call("ADD", "c1", "unplaced"), netns, machine.stdin(asks({"min_tx_rate": 2})))
            await verbs.add(call("ADD", "c1", "unplaced"), netns, machine.stdin(ANYTHING))
            netns = machine.hardware.create_namespace()
            wants = machine.stdin(asks({"min_tx_rate": 99_999}, {"min_tx_rate": 99_999}))
            given = await verbs.add(call("ADD", "c2", "promised"), netns, wants)
            assert sorted(each.vf.pf for each in given.receipt.interfaces) == pfs

    asyncio.run(scenario())
