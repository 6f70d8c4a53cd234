"""VFs come home also where something stands in their way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine, asks, call
from factories import PF0
from k8s_rdma.agent.release import spare_name
from k8s_rdma.core.ledger import Phase
from k8s_rdma.errors import K8sRdmaError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("destroyed", [False, True])
def test_vf_whose_name_was_taken_comes_home_under_its_spare_name(machine: Machine, destroyed: bool) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            receipt = (
                await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5}, {})))
            ).receipt
            lost = next(each for each in receipt.interfaces if each.home.name == "f0v0")
            machine.hardware.add_interface("f0v0")
            if destroyed:
                machine.hardware.destroy_namespace(netns)
            await verbs.delete(call("DEL"), "net")
            assert not node.ledger.receipts
            assert not machine.markers()
            names = [vf.netdev for vf in machine.kernel.observe().pfs[0].vfs]
            assert names == [spare_name(lost.pci), "f0v1", "f0v2", "f0v3"]
            assert node.hardware == machine.kernel.observe()
            # It is as good as any other, and comes home as what it was called last.
            for _ in range(2):
                netns = machine.hardware.create_namespace()
                again = (await verbs.add(call("ADD"), netns, machine.stdin(asks({}, {})))).receipt
                assert again.interfaces[0].home.name == spare_name(lost.pci)
                await verbs.delete(call("DEL"), "net")

    asyncio.run(scenario())


def test_collection_succeeds_and_the_receipt_stays_when_only_rates_could_not_be_undone(
    machine: Machine,
) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))
            machine.kernel.fail(at=1)
            stdin = machine.stdin(None, **{"cni.dev/valid-attachments": []})
            await verbs.collect(call("GC"), stdin)
            assert machine.hardware.interface("f0v0") is not None
            assert [left.phase for left in node.ledger.receipts.values()] == [Phase.RELEASING]
            await verbs.collect(call("GC"), stdin)
            assert not node.ledger.receipts
            assert machine.is_pristine()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))
            machine.kernel.fail(at=0)
            with pytest.raises(K8sRdmaError, match="not undone"):
                await verbs.collect(call("GC"), stdin)

    asyncio.run(scenario())


def test_spare_names_are_names_of_netdevs_and_differ() -> None:
    pcis = [f"{domain}:{rest}" for domain in ("0000", "00010000") for rest in ("03:00.1", "03:01.0", PF0[5:])]
    names = {spare_name(pci) for pci in pcis}
    assert len(names) == len(pcis)
    assert all(len(name) <= 15 and name.isalnum() for name in names)
