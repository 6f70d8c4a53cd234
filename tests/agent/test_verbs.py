"""The CNI verbs against the fake kernel, a real ledger on disk and the real host-local plugin."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.machine import PLUGINS, Machine, asks, call, no_other_vfs
from factories import PF0, PF1
from k8s_rdma.agent.plugins.called_plugins import called_plugins
from k8s_rdma.agent.plugins.execution import Plugins
from k8s_rdma.agent.plugins.ipam import IpamPlugins, addressing
from k8s_rdma.agent.sandbox import Sandbox
from k8s_rdma.core.allocation import foreign_vfs
from k8s_rdma.core.kernel import Unreadable
from k8s_rdma.core.ledger import Attachment, Phase, Pod, Receipt
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.step import NetnsRef, VfRef
from k8s_rdma.core.types import ContainerId, NodeName, PciAddress, PodUid
from k8s_rdma.errors import STATUS, TRY_AGAIN_LATER, K8sRdmaError, Reason
from k8s_rdma.wire.annotation import ANNOTATION, parse_request
from k8s_rdma.wire.cni_request import decode_netconf
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.placement_keys import PlacementKeys
from k8s_rdma.wire.report_builder import NodeReports
from plans import plan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.machine import Verbs
    from k8s_rdma.agent.node import Node

KEY = PlacementKeys.shared(b"a key of the cluster")
ANOTHER = PlacementKeys.shared(b"another key")
needs_host_local = pytest.mark.skipif(
    shutil.which("host-local", path=PLUGINS) is None, reason="needs Debian's containernetworking-plugins"
)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())


def names_in(machine: Machine, netns: NetnsRef, *names: str) -> list[bool]:
    return [machine.hardware.interface(name, netns) is not None for name in names]


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

    run(scenario)


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

    run(scenario)


@needs_host_local
def test_delete_brings_everything_home_when_called_once_or_twice(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ipam=True)

    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            addresses = (
                await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5}, {})))
            ).addresses
            assert len({result.addresses for result in addresses.values()}) == 2
            assert machine.hardware.interface("eth1", netns).addresses == addresses["eth1"].addresses
            assert len(machine.leases()) == 2
            for _ in range(2):
                await verbs.delete(call("DEL"), "net")
                assert machine.is_pristine()
                assert not node.ledger.receipts
                assert not machine.markers()
            assert node.hardware == machine.pristine

    run(scenario)


def test_markers_come_back_when_their_directory_was_removed(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({})))
            shutil.rmtree(machine.directory / "run" / "attachments")
            await verbs.reconcile()
            assert machine.markers() == {"c1"}
            await verbs.delete(call("DEL"), "net")
            assert not machine.markers()

    run(scenario)


def test_add_of_a_pod_without_requests_has_no_effect(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            for annotations in ({}, {"rdma_interfaces_required": ""}, {"rdma_interfaces_required": "[]"}):
                stdin = machine.stdin(annotations, emptyResult=True)
                assert await verbs.add(call("ADD"), netns, stdin) is None
            assert machine.kernel.applied == []
            assert not machine.markers()

    run(scenario)


def test_add_gives_advice_if_the_runtime_delivers_no_annotations(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (_, verbs):
            with pytest.raises(K8sRdmaError, match=r"io\.kubernetes\.cri\.pod-annotations") as caught:
                await verbs.add(call("ADD"), machine.hardware.create_namespace(), machine.stdin(None))
            assert caught.value.reason is Reason.INVALID_NETCONF

    run(scenario)


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

    run(scenario)


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

    run(scenario)


@needs_host_local
@pytest.mark.parametrize("steps", range(9))
def test_start_undoes_an_add_that_a_crash_cut_short(tmp_path: Path, steps: int) -> None:
    machine = Machine(tmp_path, ipam=True)
    netns = machine.hardware.create_namespace()
    stdin = machine.stdin(asks({"min_tx_rate": 60_000}, {"min_tx_rate": 60_000}, {"max_tx_rate": 9}))

    async def cut_short() -> None:
        with machine.running() as (node, _):
            receipt = prepared(node, netns, stdin)
            results = await IpamPlugins(Plugins(host_root=Path("/"), timeout_s=10)).add(receipt)
            for step in plan(receipt, addressing(results))[:steps]:
                machine.kernel.apply(step)
            assert machine.leases()

    async def start_again() -> None:
        with machine.running() as (node, verbs):
            assert machine.markers() == {"c1"}
            assert await verbs.reconcile()
            assert machine.is_pristine()
            assert not node.ledger.receipts
            assert not machine.markers()
            node.refresh()
            await verbs.delete(call("DEL"), "net")
            assert await verbs.add(call("ADD", "c2"), netns, stdin) is not None

    run(cut_short)
    run(start_again)


def prepared(node: Node, netns: NetnsRef, stdin: bytes) -> Receipt:
    conf = decode_netconf(stdin)
    sandbox = Sandbox(
        attachment=Attachment("net", ContainerId("c1"), "eth0"),
        pod=Pod(namespace="default", name="p", uid=PodUid("uid-p")),
        netns=netns,
        ifnames=("eth0", "eth1", "eth2"),
        entries=(0, 1, 2),
        ipam=called_plugins(stdin, conf, call("ADD"), chained=False).ipam,
    )
    receipt = node.prepare(sandbox, parse_request(conf.pod_annotations[ANNOTATION]), None)
    assert isinstance(receipt, Receipt)
    return receipt


def test_start_leaves_running_pods_alone(machine: Machine) -> None:
    netns = machine.hardware.create_namespace()

    async def before() -> None:
        with machine.running() as (_, verbs):
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))

    async def after() -> None:
        applied = len(machine.kernel.applied)
        with machine.running() as (node, verbs):
            assert not await verbs.reconcile()
            assert len(machine.kernel.applied) == applied
            assert next(iter(node.ledger.receipts.values())).phase is Phase.ATTACHED
            await verbs.delete(call("DEL"), "net")
        assert machine.is_pristine()

    run(before)
    run(after)


@needs_host_local
def test_start_after_a_reboot_gives_addresses_back_and_leaves_the_new_kernel_alone(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ipam=True)

    async def before() -> None:
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5}, {})))
            assert len(machine.leases()) == 2

    async def after() -> None:
        with machine.running(boot_id="boot-2") as (node, verbs):
            assert machine.markers() == {"c1"}
            # What has the name and the number of a namespace of the boot before is another pod's.
            machine.hardware.create_namespace()
            assert await verbs.reconcile()
            assert not node.ledger.receipts
            assert not machine.markers()
        assert machine.kernel.applied == []
        assert machine.is_pristine()

    run(before)
    machine.boot()
    run(after)


def test_reconcile_brings_vfs_home_when_their_sandbox_vanished(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5}, {})))
            assert not await verbs.reconcile()
            machine.hardware.destroy_namespace(netns)
            assert await verbs.reconcile()
            assert machine.is_pristine()
            assert not node.ledger.receipts

    run(scenario)


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

    run(scenario)


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

    run(scenario)


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

    run(scenario)


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

    run(scenario)


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

    run(scenario)


def test_add_gives_the_promised_interfaces_if_the_request_was_edited_since(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running(KEY) as (_, verbs):
            netns = machine.hardware.create_namespace()
            annotations = asks({"min_tx_rate": 90_000}, {}) | promise(PF1, key=KEY)
            receipt = (await verbs.add(call("ADD"), netns, machine.stdin(annotations))).receipt
            assert [(each.vf.pf, each.min_tx_rate_mbps) for each in receipt.interfaces] == [(PF1, 10)]

    run(scenario)


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

    run(scenario)


def test_add_takes_pfs_but_never_rates_from_an_unsigned_placement(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            annotations = asks({"min_tx_rate": 7}) | promise(PF1, rate=90_000)
            receipt = (await verbs.add(call("ADD"), netns, machine.stdin(annotations))).receipt
            assert [each.min_tx_rate_mbps for each in receipt.interfaces] == [7]

    run(scenario)


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

    run(scenario)


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

    run(scenario)


def test_collect_ends_attachments_that_the_runtime_no_longer_holds_valid(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            for name in ("keep", "drop"):
                netns = machine.hardware.create_namespace()
                await verbs.add(call("ADD", name, name), netns, machine.stdin(asks({})))
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD", "other", "other"), netns, machine.stdin(asks({}), name="othernet"))
            valid = [{"containerID": "keep", "ifname": "eth0"}]
            await verbs.collect(call("GC"), machine.stdin(None, **{"cni.dev/valid-attachments": valid}))
            assert {key.container for key in node.ledger.receipts} == {"keep", "other"}
            await verbs.collect(call("GC"), machine.stdin(None))
            assert {key.container for key in node.ledger.receipts} == {"keep", "other"}

    run(scenario)


@needs_host_local
def test_delete_keeps_the_receipt_when_something_could_not_be_undone(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ipam=True)

    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5}, {})))
            machine.kernel.fail(index=1, times=2)
            with pytest.raises(K8sRdmaError, match="not undone") as caught:
                await verbs.delete(call("DEL"), "net")
            assert caught.value.details.count("made to fail") == 2
            assert len(machine.leases()) == 2  # an address may still be on an interface in the pod
            assert machine.markers() == {"c1"}
            assert next(iter(node.ledger.receipts.values())).phase is Phase.RELEASING
            await verbs.delete(call("DEL"), "net")
            assert machine.is_pristine()

    run(scenario)


@needs_host_local
def test_delete_succeeds_and_the_receipt_stays_when_only_rates_could_not_be_undone(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ipam=True)

    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            receipt = (
                await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5}, {})))
            ).receipt
            held = {interface.vf for interface in receipt.interfaces}
            machine.kernel.fail(index=2, times=2)
            await verbs.delete(call("DEL"), "net")
            assert names_in(machine, netns, "eth0", "eth1") == [False] * 2
            assert not machine.leases()
            assert node.ledger.holders().keys() == held
            assert [left.ipam for left in node.ledger.receipts.values()] == [None]  # not to be asked for ever
            assert not await verbs.reconcile()
            assert node.ledger.holders().keys() == held
            assert await verbs.reconcile()
            assert not node.ledger.receipts
            assert machine.is_pristine()

    run(scenario)


def test_vf_goes_to_no_pod_before_its_rates_are_reset_although_the_agent_restarts(machine: Machine) -> None:
    stdin = machine.stdin(asks({"min_tx_rate": 60_000}))

    async def add(verbs: Verbs, container: str) -> PciAddress:
        netns = machine.hardware.create_namespace()
        receipt = (await verbs.add(call("ADD", container, f"uid-{container}"), netns, stdin)).receipt
        return receipt.interfaces[0].vf.pf

    async def before() -> None:
        with machine.running() as (_, verbs):
            assert await add(verbs, "old") == PF0
            machine.kernel.fail(index=1)
            await verbs.delete(call("DEL", "old", "uid-old"), "net")

    async def after() -> None:
        with machine.running() as (node, verbs):
            machine.kernel.fail(index=1)
            assert not await verbs.reconcile()
            [allocation] = NodeReports(node.name, "e").build(node.hardware, node.ledger).allocations
            assert (allocation.phase, allocation.interfaces[0].min_tx_rate) == ("releasing", 60_000)
            assert await add(verbs, "new") == PF1
            with pytest.raises(K8sRdmaError, match="best PF has 40000 Mb/s and 3 VFs free"):
                await add(verbs, "newer")
            assert await verbs.reconcile()
            assert await add(verbs, "newer") == PF0

    run(before)
    run(after)


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

    run(scenario)


def test_reconcile_leaves_an_add_alone_that_ended_well_meanwhile(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            orphan, alive = machine.hardware.create_namespace(), machine.hardware.create_namespace()
            await verbs.add(call("ADD", "orphan", "u1"), orphan, machine.stdin(asks({})))
            machine.hardware.destroy_namespace(orphan)
            claimed, go_on = asyncio.Event(), asyncio.Event()

            async def on_prepared() -> None:
                claimed.set()
                await go_on.wait()

            machine.on_prepared = on_prepared
            adding = asyncio.create_task(verbs.add(call("ADD", "new", "u2"), alive, machine.stdin(asks({}))))
            await claimed.wait()
            reconciling = asyncio.create_task(verbs.reconcile())
            go_on.set()
            await adding
            assert await reconciling
            assert {key.container for key in node.ledger.receipts} == {"new"}
            assert names_in(machine, alive, "eth0") == [True]

    run(scenario)


def test_collect_leaves_an_add_alone_that_is_under_way(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            nothing_valid = machine.stdin(None, **{"cni.dev/valid-attachments": []})
            collecting: list[asyncio.Task[None]] = []

            async def on_prepared() -> None:
                collecting.append(asyncio.create_task(verbs.collect(call("GC"), nothing_valid)))
                await asyncio.sleep(0)

            machine.on_prepared = on_prepared
            await verbs.add(call("ADD"), netns, machine.stdin(asks({})))
            await collecting[0]
            assert len(node.ledger.receipts) == 1

    run(scenario)


def test_collect_tries_everything_when_one_cannot_be_ended(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            for name in ("a", "b", "c"):
                netns = machine.hardware.create_namespace()
                await verbs.add(call("ADD", name, name), netns, machine.stdin(asks({})))
            machine.kernel.fail()
            with pytest.raises(K8sRdmaError, match="not undone"):
                await verbs.collect(call("GC"), machine.stdin(None, **{"cni.dev/valid-attachments": []}))
            assert {key.container for key in node.ledger.receipts} == {"a"}

    run(scenario)


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

    run(scenario)


def test_add_does_not_begin_if_the_runtime_gave_up_while_it_waited(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            with pytest.raises(K8sRdmaError, match="no longer waits"):
                await verbs.add(call("ADD"), netns, machine.stdin(asks({})), lambda: False)
            assert not node.ledger.receipts
            assert not machine.markers()
            assert machine.kernel.applied == []

    run(scenario)


def test_add_tells_of_its_claim_before_it_gives_anything(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):

            async def on_prepared() -> None:
                assert [receipt.phase for receipt in node.ledger.receipts.values()] == [Phase.PREPARED]
                assert machine.kernel.applied == []

            machine.on_prepared = on_prepared
            await verbs.add(call("ADD"), machine.hardware.create_namespace(), machine.stdin(asks({})))
            assert machine.prepared == 1

    run(scenario)


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

    run(scenario)


def test_delete_succeeds_when_the_pf_is_there_no_more(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            receipt = (await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))).receipt
            machine.hardware.remove_pf(receipt.interfaces[0].vf.pf)
            await verbs.delete(call("DEL"), "net")
            assert not node.ledger.receipts

    run(scenario)


def test_delete_succeeds_when_some_vfs_are_there_no_more(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            stdin = machine.stdin(asks({"min_tx_rate": 5}, {"min_tx_rate": 6}, {"min_tx_rate": 7}))
            receipt = (await verbs.add(call("ADD"), netns, stdin)).receipt
            assert [interface.vf for interface in receipt.interfaces] == [
                VfRef(PF0, index) for index in range(3)
            ]
            machine.hardware.remove_vfs(PF0, but=2)
            await verbs.delete(call("DEL"), "net")
            assert not node.ledger.receipts
            assert not foreign_vfs(machine.kernel.observe(), node.ledger)

    run(scenario)


def test_start_ends_receipts_after_a_reboot_for_vfs_that_no_longer_exist(machine: Machine) -> None:
    async def before() -> None:
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))

    async def after() -> None:
        with machine.running(boot_id="boot-2") as (node, verbs):
            assert await verbs.reconcile()
            assert not node.ledger.receipts

    run(before)
    machine.hardware.remove_vfs(PF0, but=0)
    run(after)


def test_delete_does_not_take_unreadable_vfs_for_gone(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))
            machine.hardware.remove_vfs(PF0, but=0)
            machine.hardware.silent = "netlink says no"
            with pytest.raises(K8sRdmaError, match="not undone"):
                await verbs.delete(call("DEL"), "net")
            machine.hardware.silent = ""
            machine.hardware.set_unreadable(Unreadable("PF f0", "no answer"))
            with pytest.raises(K8sRdmaError, match="not undone"):
                await verbs.delete(call("DEL"), "net")
            assert node.ledger.receipts

    run(scenario)


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

    run(scenario)


def test_delete_brings_vfs_home_when_the_disk_is_full(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))
            with machine.full_disk(), pytest.raises(K8sRdmaError) as caught:
                await verbs.delete(call("DEL"), "net")
            assert caught.value.reason is Reason.LEDGER_FAILURE
            assert machine.is_pristine()
            await verbs.delete(call("DEL"), "net")
            assert not node.ledger.receipts

    run(scenario)


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

    run(scenario)


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

    run(scenario)


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

    run(scenario)


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

    run(scenario)


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

    run(scenario)
