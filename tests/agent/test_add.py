"""CNI ADD against the fake kernel, a real ledger on disk and the real host-local plugin."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from agent.machine import PLUGINS, Machine, asks, call, names_in, needs_host_local, no_other_vfs
from factories import PF0, PF1
from k8s_rdma.core.ledger import Phase
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.placement_annotation import encode
from k8s_rdma.wire.placement_keys import PlacementKeys

if TYPE_CHECKING:
    from pathlib import Path


KEY = PlacementKeys.shared(b"a key of the cluster")
ANOTHER = PlacementKeys.shared(b"another key")


def test_add_gives_each_interface_its_rates_and_name(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            stdin = machine.stdin(
                asks({"min_tx_rate": 60_000, "max_tx_rate": 70_000}, {"min_tx_rate": 60_000}, {})
            )
            receipt = (await verbs.add(call("ADD"), netns, stdin)).receipt
            assert [each.ifname for each in receipt.interfaces] == ["eth0", "eth1", "eth2"]
            assert names_in(machine, netns, "eth0", "eth1", "eth2") == [True] * 3
            assert {receipt.interfaces[0].vf.pf, receipt.interfaces[1].vf.pf} == {PF0, PF1}
            rates = {
                (pf.pci, vf.index): (vf.min_tx_rate_mbps, vf.max_tx_rate_mbps)
                for pf in machine.kernel.observe().pfs
                for vf in pf.vfs
            }
            first = receipt.interfaces[0].vf
            assert rates[first.pf, first.index] == (60_000, 70_000)
            assert node.ledger.receipts[receipt.attachment].phase is Phase.ATTACHED
            assert machine.markers() == {"c1"}
            assert node.hardware == machine.kernel.observe()

    asyncio.run(scenario())


def test_vf_whose_netdev_has_another_mac_than_its_pf_for_it_gets_that_in_the_pod_and_keeps_it(
    machine: Machine,
) -> None:
    async def scenario() -> None:
        home = machine.pristine.pfs[0].vfs[0]
        machine.hardware.alter_interface(home.netdev, None, mac="02:00:00:00:00:77")
        assert not machine.is_pristine()
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            [made] = (await verbs.add(call("ADD"), netns, machine.stdin(asks({})))).receipt.interfaces
            assert (made.mac, made.home.mac) == (home.mac, home.mac)
            assert machine.hardware.interface("eth0", netns).mac == home.mac
            assert node.hardware == machine.kernel.observe()
            await verbs.delete(call("DEL"), "net")
            assert machine.is_pristine()

    asyncio.run(scenario())


def test_add_of_a_pod_without_requests_has_no_effect(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            for annotations in ({}, {"rdma_interfaces_required": ""}, {"rdma_interfaces_required": "[]"}):
                stdin = machine.stdin(annotations, emptyResult=True)
                assert await verbs.add(call("ADD"), netns, stdin) is None
            assert machine.kernel.applied == []
            assert not machine.markers()

    asyncio.run(scenario())


def test_add_gives_advice_if_the_runtime_delivers_no_annotations(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (_, verbs):
            with pytest.raises(K8sRdmaError, match=r"io\.kubernetes\.cri\.pod-annotations") as caught:
                await verbs.add(call("ADD"), machine.hardware.create_namespace(), machine.stdin(None))
            assert caught.value.reason is Reason.INVALID_NETCONF

    asyncio.run(scenario())


@needs_host_local
@pytest.mark.parametrize("step", range(8))
@pytest.mark.parametrize("changes", [0, 1, 99])
def test_add_undoes_everything_when_a_step_fails(tmp_path: Path, step: int, changes: int) -> None:
    machine = Machine(tmp_path, ipam=True, pfs=no_other_vfs(2, 1))

    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            machine.kernel.fail(index=step, after_changes=changes)
            stdin = machine.stdin(asks({"min_tx_rate": 60_000}, {"min_tx_rate": 60_000}, {"max_tx_rate": 9}))
            with pytest.raises(K8sRdmaError, match="made to fail"):
                await verbs.add(call("ADD"), netns, stdin)
            assert machine.is_pristine()
            assert not node.ledger.receipts
            assert not machine.markers()
            await verbs.delete(call("DEL"), "net")

    asyncio.run(scenario())


@needs_host_local
@pytest.mark.parametrize("step", range(8))
@pytest.mark.parametrize("changes", [0, 1, 99])
def test_add_takes_other_vfs_when_a_step_fails(tmp_path: Path, step: int, changes: int) -> None:
    machine = Machine(tmp_path, ipam=True)

    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            machine.kernel.fail(index=step, after_changes=changes)
            stdin = machine.stdin(asks({"min_tx_rate": 60_000}, {"min_tx_rate": 60_000}, {"max_tx_rate": 9}))
            added = await verbs.add(call("ADD"), netns, stdin)
            assert added is not None
            [kept] = node.ledger.receipts.values()
            assert (kept, kept.phase, len(machine.leases())) == (added.receipt, Phase.ATTACHED, 3)
            assert {each.vf.pf for each in kept.interfaces} == {PF0, PF1}
            await verbs.delete(call("DEL"), "net")
            assert machine.is_pristine()
            assert not machine.markers()

    asyncio.run(scenario())


def test_add_inherits_when_the_older_sandbox_is_gone(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            stdin = machine.stdin(asks(*[{"min_tx_rate": 100_000}] * 2))
            old, new = machine.hardware.create_namespace(), machine.hardware.create_namespace()
            await verbs.add(call("ADD", "old"), old, stdin)
            with pytest.raises(K8sRdmaError, match="try again") as caught:
                await verbs.add(call("ADD", "new"), new, stdin)
            assert caught.value.reason is Reason.HELD_BY_OLDER_SANDBOX
            machine.hardware.destroy_namespace(old)
            await verbs.add(call("ADD", "new"), new, stdin)
            assert {key.container for key in node.ledger.receipts} == {"new"}
            await verbs.delete(call("DEL", "old"), "net")
            assert names_in(machine, new, "eth0", "eth1") == [True, True]

    asyncio.run(scenario())


def test_add_is_refused_when_the_attachment_exists(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({})))
            before = node.ledger
            with pytest.raises(K8sRdmaError) as caught:
                await verbs.add(call("ADD"), netns, machine.stdin(asks({})))
            assert caught.value.reason is Reason.ALREADY_ATTACHED
            assert node.ledger is before

    asyncio.run(scenario())


def test_add_is_refused_when_the_attachment_exists_for_another_pod(machine: Machine) -> None:
    """No runtime gives a container to two pods; if one did, the first one's VFs must not be forgotten."""

    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({})))
            before = node.ledger
            named = machine.stdin(asks({}), if0name="x0")
            with pytest.raises(K8sRdmaError) as caught:
                await verbs.add(call("ADD", uid="another"), netns, named)
            assert caught.value.reason is Reason.ALREADY_ATTACHED
            assert node.ledger is before

    asyncio.run(scenario())


def test_add_is_refused_with_the_numbers_when_the_node_is_full(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD", "a", "a"), netns, machine.stdin(asks({"min_tx_rate": 70_000})))
            await verbs.add(
                call("ADD", "b", "b", "eth5"),
                netns,
                machine.stdin(asks({"min_tx_rate": 70_000}), if0name="eth5"),
            )
            with pytest.raises(K8sRdmaError, match="30000") as caught:
                await verbs.add(call("ADD", "c", "c"), netns, machine.stdin(asks({"min_tx_rate": 40_000})))
            assert caught.value.reason is Reason.INSUFFICIENT
            assert len(node.ledger.receipts) == 2
            assert machine.markers() == {"a", "b"}

    asyncio.run(scenario())


def promise(
    *pfs: str, rate: int = 10, uid: str = "uid-p", key: PlacementKeys | None = None
) -> dict[str, str]:
    placement = Placement(
        node=NodeName("w1"), interfaces=tuple(PlacedInterface(pf=pf, min_tx_rate_mbps=rate) for pf in pfs)
    )
    return {"k8s-rdma.io/placement": encode(placement, PodUid(uid), key)}


@pytest.mark.parametrize("key", [None, KEY])
def test_add_follows_the_placement_that_the_extender_promised(
    machine: Machine, key: PlacementKeys | None
) -> None:
    async def scenario() -> None:
        with machine.running(key) as (_, verbs):
            netns = machine.hardware.create_namespace()
            annotations = asks({"min_tx_rate": 10}, {"min_tx_rate": 10}) | promise(PF1, PF0, key=key)
            receipt = (await verbs.add(call("ADD"), netns, machine.stdin(annotations))).receipt
            assert [each.vf.pf for each in receipt.interfaces] == [PF1, PF0]

    asyncio.run(scenario())


def test_add_gives_the_promised_interfaces_if_the_request_was_edited_since(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running(KEY) as (_, verbs):
            netns = machine.hardware.create_namespace()
            annotations = asks({"min_tx_rate": 90_000}, {}) | promise(PF1, key=KEY)
            receipt = (await verbs.add(call("ADD"), netns, machine.stdin(annotations))).receipt
            assert [(each.vf.pf, each.min_tx_rate_mbps) for each in receipt.interfaces] == [(PF1, 10)]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "forged",
    [promise(PF1, rate=90_000), promise(PF1, key=ANOTHER), promise(PF1, uid="another", key=KEY)],
    ids=["unsigned", "other-key", "other-pod"],
)
def test_add_refuses_a_placement_that_it_cannot_trust_and_never_follows_it(
    machine: Machine, forged: dict[str, str]
) -> None:
    async def scenario() -> None:
        with machine.running(KEY) as (node, verbs):
            netns = machine.hardware.create_namespace()
            with pytest.raises(K8sRdmaError, match=r"^the pod's placement does not count: ") as caught:
                await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 7}) | forged))
            assert caught.value.reason is Reason.STALE_PLACEMENT
            assert not node.ledger.receipts
        with machine.running(KEY, allow_unplaced=True) as (_, verbs):
            netns = machine.hardware.create_namespace()
            receipt = (
                await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 7}) | forged))
            ).receipt
            assert [each.min_tx_rate_mbps for each in receipt.interfaces] == [7]

    asyncio.run(scenario())


def test_add_takes_pfs_but_never_rates_from_an_unsigned_placement(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            annotations = asks({"min_tx_rate": 7}) | promise(PF1, rate=90_000)
            receipt = (await verbs.add(call("ADD"), netns, machine.stdin(annotations))).receipt
            assert [each.min_tx_rate_mbps for each in receipt.interfaces] == [7]

    asyncio.run(scenario())


def test_add_places_anew_when_the_promise_no_longer_fits(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running(KEY) as (_, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(
                call("ADD", "a", "a"), netns, machine.stdin(promise(PF1, rate=90_000, uid="a", key=KEY))
            )
            late = machine.stdin(promise(PF1, rate=20_000, uid="b", key=KEY), if0name="eth7")
            receipt = (await verbs.add(call("ADD", "b", "b"), netns, late)).receipt
            assert [each.vf.pf for each in receipt.interfaces] == [PF0]

    asyncio.run(scenario())


def test_add_names_the_plugin_that_is_missing(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            stdin = machine.stdin(asks({}), ipam={"type": "no-such-plugin"})
            with pytest.raises(
                K8sRdmaError, match=f"'no-such-plugin' is not in CNI_PATH '{re.escape(PLUGINS)}'"
            ) as caught:
                await verbs.add(call("ADD"), machine.hardware.create_namespace(), stdin)
            assert caught.value.reason is Reason.IPAM_FAILURE
            assert not node.ledger.receipts
            assert not machine.markers()

    asyncio.run(scenario())


def test_two_adds_of_one_pod_give_its_interfaces_once(machine: Machine) -> None:
    """From two sandboxes at the same moment."""

    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            stdin = machine.stdin(asks({"min_tx_rate": 60_000}))
            results = await asyncio.gather(
                verbs.add(call("ADD", "c1"), netns, stdin),
                verbs.add(call("ADD", "c2"), machine.hardware.create_namespace(), stdin),
                return_exceptions=True,
            )
            refused = [result for result in results if isinstance(result, K8sRdmaError)]
            assert [error.reason for error in refused] == [Reason.HELD_BY_OLDER_SANDBOX]
            assert len(node.ledger.holders()) == 1

    asyncio.run(scenario())


def test_add_does_not_begin_if_the_runtime_gave_up_while_it_waited(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            with pytest.raises(K8sRdmaError, match="no longer waits"):
                await verbs.add(call("ADD"), netns, machine.stdin(asks({})), lambda: False)
            assert not node.ledger.receipts
            assert not machine.markers()
            assert machine.kernel.applied == []

    asyncio.run(scenario())


def test_add_reports_its_claim_before_it_gives_anything(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):

            async def on_prepared() -> None:
                assert [receipt.phase for receipt in node.ledger.receipts.values()] == [Phase.PREPARED]
                assert machine.kernel.applied == []

            machine.on_prepared = on_prepared
            await verbs.add(call("ADD"), machine.hardware.create_namespace(), machine.stdin(asks({})))
            assert machine.prepared == 1

    asyncio.run(scenario())


def test_failed_add_leaves_a_foreign_interface_alone(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({})))
            before = machine.hardware.interface("eth0", netns)
            assert before.is_up
            with pytest.raises(K8sRdmaError, match="eth0"):
                await verbs.add(call("ADD", "c2", "u2"), netns, machine.stdin(asks({})))
            assert machine.hardware.interface("eth0", netns) == before

    asyncio.run(scenario())
