"""The end of attachments by DEL, by GC and by the reconciler, over a real ledger on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine, asks, call, names_in, needs_host_local
from agent.pods import conf, ordinary
from agent.runtime import Runtime, in_turn
from agent.scripted_plugin import ScriptedPlugin
from agent.test_status import GC_VERSION
from factories import PF0, PF1
from k8s_rdma.agent.plugins.called_plugins import called_plugins
from k8s_rdma.agent.plugins.execution import Plugins
from k8s_rdma.agent.plugins.ipam import IpamPlugins, addressing
from k8s_rdma.agent.sandbox import Sandbox
from k8s_rdma.core.allocation import foreign_vfs
from k8s_rdma.core.kernel import Unreadable
from k8s_rdma.core.ledger import Attachment, Phase, Pod, Receipt
from k8s_rdma.core.step import NetnsRef, VfRef
from k8s_rdma.core.types import ContainerId, PciAddress, PodUid
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.annotation import ANNOTATION, parse_request
from k8s_rdma.wire.cni_request import decode_netconf
from k8s_rdma.wire.report_builder import NodeReports
from plans import plan

if TYPE_CHECKING:
    from agent.machine import Verbs
    from k8s_rdma.agent.node import Node


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

    asyncio.run(scenario())


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

    asyncio.run(cut_short())
    asyncio.run(start_again())


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

    asyncio.run(before())
    asyncio.run(after())


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
            # A namespace with the name and the number of one of the boot before is another pod's.
            machine.hardware.create_namespace()
            assert await verbs.reconcile()
            assert not node.ledger.receipts
            assert not machine.markers()
        assert machine.kernel.applied == []
        assert machine.is_pristine()

    asyncio.run(before())
    machine.boot()
    asyncio.run(after())


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

    asyncio.run(scenario())


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

    asyncio.run(scenario())


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

    asyncio.run(scenario())


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

    asyncio.run(scenario())


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

    asyncio.run(before())
    asyncio.run(after())


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

    asyncio.run(scenario())


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

    asyncio.run(scenario())


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

    asyncio.run(scenario())


def test_delete_succeeds_when_the_pf_is_there_no_more(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (node, verbs):
            netns = machine.hardware.create_namespace()
            receipt = (await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))).receipt
            machine.hardware.remove_pf(receipt.interfaces[0].vf.pf)
            await verbs.delete(call("DEL"), "net")
            assert not node.ledger.receipts

    asyncio.run(scenario())


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

    asyncio.run(scenario())


def test_start_ends_receipts_after_a_reboot_for_vfs_that_no_longer_exist(machine: Machine) -> None:
    async def before() -> None:
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({"min_tx_rate": 5})))

    async def after() -> None:
        with machine.running(boot_id="boot-2") as (node, verbs):
            assert await verbs.reconcile()
            assert not node.ledger.receipts

    asyncio.run(before())
    machine.hardware.remove_vfs(PF0, but=0)
    asyncio.run(after())


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

    asyncio.run(scenario())


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

    asyncio.run(scenario())


KEYS = ("cni.dev/valid-attachments", "cni.dev/attachments")


def held(*containers: str, ifname: str = "eth0") -> list[dict[str, str]]:
    return [{"containerID": container, "ifname": ifname} for container in containers]


@pytest.mark.parametrize("keys", [KEYS[:1], KEYS[1:], KEYS])
def test_gc_ends_attachments_outside_all_lists_of_the_runtime(
    machine: Machine, keys: tuple[str, ...]
) -> None:
    async def scenario(runtime: Runtime) -> None:
        for container in ("keep", "drop"):
            await runtime.ask("ADD", conf(GC_VERSION), container, pod=container, annotations=asks({}))
        await runtime.ask("ADD", conf(GC_VERSION) | {"name": "other"}, "o", pod="o", annotations=asks({}))
        collected = conf(GC_VERSION) | dict.fromkeys(keys, held("keep"))
        assert (await runtime.ask("GC", collected)).exit_status == 0
        assert {key.container for key in runtime.node.ledger.receipts} == {"keep", "o"}

    in_turn(machine, scenario)


def test_gc_goes_by_the_name_that_the_runtime_called_the_attachment(machine: Machine) -> None:
    """It is not an interface's name in the pod, and differs between networks of one pod."""

    async def scenario(runtime: Runtime) -> None:
        chained = {"prev_result": ordinary(GC_VERSION), "annotations": asks({}, {})}
        await runtime.ask("ADD", conf(GC_VERSION), **chained)
        collected = conf(GC_VERSION) | {KEYS[0]: held("c1")}
        assert (await runtime.ask("GC", collected)).exit_status == 0
        assert runtime.inside() == {"rdma0", "rdma1"}
        collected = conf(GC_VERSION) | {KEYS[0]: held("c1", ifname="rdma0")}
        assert (await runtime.ask("GC", collected)).exit_status == 0
        assert runtime.inside() == set()

    in_turn(machine, scenario)
    assert machine.is_pristine()


def test_gc_ends_finished_attachments_although_the_runtime_lists_them(machine: Machine) -> None:
    async def scenario(runtime: Runtime) -> None:
        await runtime.ask("ADD", conf(GC_VERSION), "c1", annotations=asks({}))
        machine.hardware.destroy_namespace(machine.sandboxes[machine.sandbox("c1")])
        assert (await runtime.ask("GC", conf(GC_VERSION) | {KEYS[0]: held("c1")})).exit_status == 0
        assert not runtime.node.ledger.receipts

    in_turn(machine, scenario)
    assert machine.is_pristine()


@pytest.mark.parametrize("lists", [{}, {KEYS[0]: None}])
def test_gc_without_a_list_frees_no_attachment(
    machine: Machine, ipam: ScriptedPlugin, lists: dict[str, object]
) -> None:
    async def scenario(runtime: Runtime) -> None:
        alone = conf(GC_VERSION, ipam={"type": "ipam"})
        await runtime.ask("ADD", alone, annotations=asks({}))
        assert (await runtime.ask("GC", alone | lists)).exit_status == 0
        assert runtime.inside() == {"eth0"}
        assert not ipam.calls("GC", "DEL")

    in_turn(machine, scenario)


def test_gc_with_two_lists_that_differ_is_refused(machine: Machine) -> None:
    async def scenario(runtime: Runtime) -> None:
        await runtime.ask("ADD", conf(GC_VERSION), annotations=asks({}))
        collected = conf(GC_VERSION) | {KEYS[0]: held("c1"), KEYS[1]: []}
        answer = await runtime.ask("GC", collected)
        assert (answer.exit_status, answer.document["code"]) == (1, 7)
        assert "cni.dev/attachments: differs" in answer.document["msg"]
        assert runtime.inside() == {"eth0"}

    in_turn(machine, scenario)


@pytest.mark.parametrize("chained", [True, False])
def test_gc_of_other_plugins_has_our_interfaces_and_never_the_main_plugins_network(
    machine: Machine, ipam: ScriptedPlugin, *, chained: bool
) -> None:
    """The call does not say whether another one, whose leases are under the network's name, ran before."""

    async def scenario(runtime: Runtime) -> None:
        ours = conf(GC_VERSION, ipam={"type": "ipam"})
        prev_result = ordinary(GC_VERSION) if chained else None
        for container in ("keep", "drop"):
            await runtime.ask(
                "ADD", ours, container, pod=container, annotations=asks({}, {}), prev_result=prev_result
            )
        assert (await runtime.ask("GC", ours | {KEYS[0]: held("keep")})).exit_status == 0
        calls = {each.stdin["name"]: each.stdin[KEYS[0]] for each in ipam.calls("GC")}
        names = ("rdma0", "rdma1") if chained else ("eth0", "eth1")
        leases = [{"containerID": "keep", "ifname": name} for name in names]
        if chained:
            assert calls == {"net-rdma": leases}
        else:
            assert calls == {"net-rdma": [], "net": leases}

    in_turn(machine, scenario)


def test_gc_of_the_delegate_has_the_runtimes_own_list(machine: Machine) -> None:
    main = ScriptedPlugin(machine.directory / "plugins", "main")
    main.speak(("1.1.0",), ADD='echo \'{"cniVersion": "1.1.0"}\'')

    async def scenario(runtime: Runtime) -> None:
        delegating = conf(GC_VERSION, delegate={"type": "main"})
        for container in ("keep", "drop"):
            await runtime.ask("ADD", delegating, container, pod=container, annotations={})
        answer = await runtime.ask("GC", delegating | {KEYS[0]: held("keep", "unheard-of")})
        assert answer.exit_status == 0, answer.document
        assert [each.container for each in main.calls("DEL")] == ["drop"]
        [collected] = main.calls("GC")
        assert collected.stdin[KEYS[0]] == held("keep", "unheard-of")

    in_turn(machine, scenario)


def test_gc_of_older_plugins_is_left_out(machine: Machine, main: ScriptedPlugin) -> None:
    async def scenario(runtime: Runtime) -> None:
        delegating = conf(GC_VERSION, delegate={"type": "main"}, ipam={"type": "main"})
        assert (await runtime.ask("GC", delegating | {KEYS[0]: []})).exit_status == 0
        assert not main.calls("GC")

    in_turn(machine, scenario)
