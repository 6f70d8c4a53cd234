"""The ways to be attached, in every version: as the only plugin, with a delegate, chained."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from agent.machine import Machine, asks, no_other_vfs
from agent.pods import conf, ordinary, told
from agent.runtime import Runtime, every_version, in_turn, since_interfaces
from fakes.kernel import FakeKernel
from k8s_rdma.wire.cni_result import SINCE_CHECK, SUPPORTED_VERSIONS, WITHOUT_INTERFACES
from k8s_rdma.wire.cni_socket import MAX_STDOUT_BYTES

if TYPE_CHECKING:
    from agent.scripted_plugin import ScriptedPlugin


@every_version
def test_only_plugin_gives_eth0_and_on(machine: Machine, ipam: ScriptedPlugin, version: str) -> None:
    async def scenario(runtime: Runtime) -> None:
        wanted = asks({"min_tx_rate": 5}, {})
        alone = conf(version, ipam={"type": "ipam"})
        answer = await runtime.ask("ADD", alone, annotations=wanted)
        assert (answer.exit_status, answer.document["cniVersion"]) == (0, version)
        if version in WITHOUT_INTERFACES:
            assert answer.document["ip4"]["ip"] == "10.1.0.0/24"
        else:
            assert told(answer.document) == {"eth0": ["10.1.0.0/24"], "eth1": ["10.1.0.1/24"]}
        assert runtime.inside() == {"eth0", "eth1"}
        if version in SINCE_CHECK:
            checked = await runtime.ask("CHECK", alone, annotations=wanted, prev_result=answer.document)
            assert checked.exit_status == 0
        assert (await runtime.ask("DEL", alone, prev_result=answer.document)).exit_status == 0
        assert {each.stdin["name"] for each in ipam.calls("ADD", "DEL")} == {"net"}
        assert sorted(each.ifname for each in ipam.calls("DEL")) == ["eth0", "eth1"]

    in_turn(machine, scenario)
    assert machine.is_pristine()


@every_version
def test_only_plugin_refuses_a_pod_that_would_have_no_interface(machine: Machine, version: str) -> None:
    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", conf(version), annotations={})
        assert answer.exit_status == 1
        assert (answer.document["cniVersion"], answer.document["code"]) == (version, 7)
        assert "set `delegate`" in answer.document["msg"]
        assert "\n" not in answer.document["msg"]
        assert not runtime.node.ledger.receipts

    in_turn(machine, scenario)


@every_version
@pytest.mark.parametrize(
    "how",
    [{"conf": {"emptyResult": True}}, {"ifname": "net1"}, {"pod": None}],
    ids=["configured", "further-network", "not-kubernetes"],
)
def test_pod_without_requests_gets_an_empty_result_if_that_is_enough(
    machine: Machine, version: str, how: dict[str, Any]
) -> None:
    async def scenario(runtime: Runtime) -> None:
        call = {key: value for key, value in how.items() if key != "conf"}
        annotations = None if "pod" in how else {}
        answer = await runtime.ask(
            "ADD", conf(version, **how.get("conf", {})), annotations=annotations, **call
        )
        assert (answer.exit_status, answer.document) == (0, {"cniVersion": version})
        assert not machine.markers()

    in_turn(machine, scenario)


@every_version
def test_delegate_gives_eth0_to_a_pod_without_requests(
    machine: Machine, main: ScriptedPlugin, version: str
) -> None:
    async def scenario(runtime: Runtime) -> None:
        main.speak(SUPPORTED_VERSIONS, ADD=f"echo '{json.dumps(ordinary('1.0.0'))}'")
        alone = conf(version, delegate={"type": "main", "bridge": "b"})
        answer = await runtime.ask("ADD", alone, annotations={})
        assert (answer.exit_status, answer.document["cniVersion"]) == (0, version)
        if version in WITHOUT_INTERFACES:
            assert answer.document["ip4"]["ip"] == "10.244.0.7/24"
        else:
            assert told(answer.document) == {"cni0": [], "eth0": ["10.244.0.7/24"]}
        [added] = main.calls("ADD")
        assert (added.ifname, added.container) == ("eth0", "c1")
        assert (added.stdin["name"], added.stdin["bridge"], added.stdin["cniVersion"]) == (
            "net",
            "b",
            version,
        )
        assert machine.markers() == {"c1"}
        # DEL goes by the configuration of the ADD, whatever the configuration is now.
        assert (await runtime.ask("DEL", conf(version))).exit_status == 0
        [deleted] = main.calls("DEL")
        assert (deleted.ifname, deleted.stdin["bridge"]) == ("eth0", "b")
        assert not runtime.node.ledger.receipts
        assert (await runtime.ask("DEL", conf(version))).exit_status == 0
        assert len(main.calls("DEL")) == 1

    in_turn(machine, scenario)
    assert not machine.markers()


def test_add_is_undone_when_its_result_would_exceed_the_printable_size(machine: Machine) -> None:
    async def scenario(runtime: Runtime) -> None:
        before = {"cniVersion": "1.0.0", "dns": {"search": ["x" * (MAX_STDOUT_BYTES - 100)]}}
        answer = await runtime.ask("ADD", conf("1.0.0"), annotations=asks({}), prev_result=before)
        assert (answer.exit_status, answer.document["code"]) == (1, 7)
        assert "prevResult" in answer.document["msg"]
        assert not runtime.node.ledger.receipts

    in_turn(machine, scenario)
    assert machine.is_pristine()
    assert not machine.markers()


@since_interfaces
def test_delegate_is_left_out_if_a_vf_is_eth0(machine: Machine, main: ScriptedPlugin, version: str) -> None:
    async def scenario(runtime: Runtime) -> None:
        alone = conf(version, delegate={"type": "main"})
        answer = await runtime.ask("ADD", alone, annotations=asks({}))
        assert told(answer.document) == {"eth0": []}
        assert (await runtime.ask("DEL", alone)).exit_status == 0
        assert not main.calls("ADD", "DEL")

    in_turn(machine, scenario)
    assert machine.is_pristine()


@since_interfaces
def test_delegate_and_vfs_give_a_pod_both(
    machine: Machine, main: ScriptedPlugin, ipam: ScriptedPlugin, version: str
) -> None:
    async def scenario(runtime: Runtime) -> None:
        alone = conf(version, delegate={"type": "main"}, interfaceNames="rdma{i}", ipam={"type": "ipam"})
        wanted = asks({"min_tx_rate": 5}, {})
        answer = await runtime.ask("ADD", alone, annotations=wanted)
        assert told(answer.document) == {
            "cni0": [],
            "eth0": ["10.244.0.7/24"],
            "rdma0": ["10.1.0.0/24"],
            "rdma1": ["10.1.0.1/24"],
        }
        assert runtime.inside() == {"rdma0", "rdma1"}  # the other one is a script
        assert {each.stdin["name"] for each in ipam.calls("ADD")} == {"net-rdma"}
        if version in SINCE_CHECK:
            checked = await runtime.ask("CHECK", alone, prev_result=answer.document)
            assert checked.exit_status == 0, checked.document
            [asked] = main.calls("CHECK")
            assert told(asked.stdin["prevResult"]) == {"cni0": [], "eth0": ["10.244.0.7/24"]}
        assert (await runtime.ask("DEL", alone)).exit_status == 0
        assert [each.ifname for each in main.calls("DEL")] == ["eth0"]
        assert len(ipam.calls("DEL")) == 2

    in_turn(machine, scenario)
    assert machine.is_pristine()


@pytest.mark.parametrize("step", range(4))
def test_interface_of_the_delegate_is_removed_when_a_step_fails(
    machine: Machine, main: ScriptedPlugin, ipam: ScriptedPlugin, step: int
) -> None:
    machine.pfs = no_other_vfs(2)
    machine.boot()

    async def scenario(runtime: Runtime) -> None:
        machine.kernel.fail(index=step)
        alone = conf("1.0.0", delegate={"type": "main"}, interfaceNames="rdma{i}", ipam={"type": "ipam"})
        answer = await runtime.ask("ADD", alone, annotations=asks({"min_tx_rate": 5}, {}))
        assert (answer.exit_status, answer.document["code"]) == (1, 110)
        assert [each.ifname for each in main.calls("DEL")] == ["eth0"]
        assert len(ipam.calls("DEL")) == 2
        assert not runtime.node.ledger.receipts

    in_turn(machine, scenario)
    assert machine.is_pristine()


def test_delegate_that_fails_is_the_answer_and_its_del_follows(
    machine: Machine, main: ScriptedPlugin
) -> None:
    async def scenario(runtime: Runtime) -> None:
        main.speak(("1.0.0",), ADD="""echo '{"code": 7, "msg": "no bridge", "details": "b"}'; exit 1""")
        answer = await runtime.ask("ADD", conf("1.0.0", delegate={"type": "main"}), annotations={})
        assert answer.exit_status == 1
        assert "no bridge" in answer.document["msg"]
        assert len(main.calls("DEL")) == 1
        assert not runtime.node.ledger.receipts

    in_turn(machine, scenario)


def test_delegate_whose_del_fails_is_called_again(machine: Machine, main: ScriptedPlugin) -> None:
    async def scenario(runtime: Runtime) -> None:
        alone = conf("1.0.0", delegate={"type": "main"}, interfaceNames="rdma{i}")
        await runtime.ask("ADD", alone, annotations=asks({}))
        main.speak(("1.0.0",), DEL="echo '{}'; exit 1")
        assert (await runtime.ask("DEL", alone)).exit_status == 1
        assert machine.is_pristine()
        assert runtime.node.ledger.receipts
        main.speak(("1.0.0",))
        assert (await runtime.ask("DEL", alone)).exit_status == 0
        assert not runtime.node.ledger.receipts

    in_turn(machine, scenario)


def test_interface_of_the_delegate_is_removed_when_the_sandbox_vanished(
    machine: Machine, main: ScriptedPlugin
) -> None:
    async def scenario(runtime: Runtime) -> None:
        await runtime.ask("ADD", conf("1.0.0", delegate={"type": "main"}), annotations={})
        assert not await runtime.verbs.reconcile()
        [receipt] = runtime.node.ledger.receipts.values()
        machine.hardware.destroy_namespace(receipt.netns)
        assert await runtime.verbs.reconcile()
        assert [(each.ifname, each.netns) for each in main.calls("DEL")] == [("eth0", "")]
        assert not runtime.node.ledger.receipts

    in_turn(machine, scenario)
    assert not machine.markers()


def test_add_with_a_delegate_that_a_crash_cut_short_is_undone_by_the_next_start(
    machine: Machine, main: ScriptedPlugin
) -> None:
    class Crash(BaseException):
        """An error that no code handles."""

    async def cut_short(runtime: Runtime) -> None:
        async def crash() -> None:
            machine.kernel.fail(times=99)
            raise Crash

        machine.on_prepared = crash
        main.speak(("1.0.0",), DEL="exit 1")
        delegating = conf("1.0.0", delegate={"type": "main"}, interfaceNames="rdma{i}")
        with pytest.raises(Crash):
            await runtime.ask("ADD", delegating, annotations=asks({}))
        assert machine.markers() == {"c1"}

    async def start_again(runtime: Runtime) -> None:
        main.speak(("1.0.0",))
        assert await runtime.verbs.reconcile()
        assert not runtime.node.ledger.receipts

    in_turn(machine, cut_short)
    machine.kernel = FakeKernel(machine.hardware)
    in_turn(machine, start_again)
    assert len(main.calls("DEL")) == 2
    assert machine.is_pristine()
    assert not machine.markers()


def test_delegate_behind_another_plugin_is_refused(machine: Machine, main: ScriptedPlugin) -> None:
    async def scenario(runtime: Runtime) -> None:
        both = conf("1.0.0", delegate={"type": "main"})
        answer = await runtime.ask("ADD", both, annotations={}, prev_result=ordinary("1.0.0"))
        assert (answer.exit_status, answer.document["code"]) == (1, 7)
        assert answer.document["msg"].startswith("network configuration: delegate: another plugin ran")
        assert not main.calls()

    in_turn(machine, scenario)


def test_name_of_the_delegates_interface_is_not_ours(machine: Machine, main: ScriptedPlugin) -> None:
    async def scenario(runtime: Runtime) -> None:
        function = {"rdma_interfaces_required": '[{"driver": "vfio-pci", "name": "eth0"}]'}
        answer = await runtime.ask("ADD", conf("1.0.0", delegate={"type": "main"}), annotations=function)
        assert (answer.exit_status, answer.document["code"]) == (1, 7)
        assert "eth0 is what the delegate's interface is called" in answer.document["msg"]

    in_turn(machine, scenario)


@since_interfaces
def test_chained_plugin_passes_on_the_previous_result_with_its_interfaces(
    machine: Machine, ipam: ScriptedPlugin, version: str
) -> None:
    async def scenario(runtime: Runtime) -> None:
        chained = conf(version, ipam={"type": "ipam"})
        before = ordinary(version)
        plain = await runtime.ask("ADD", chained, "plain", pod="q", annotations={}, prev_result=before)
        assert plain.document == before
        wanted = asks({"min_tx_rate": 5}, {})
        answer = await runtime.ask("ADD", chained, annotations=wanted, prev_result=before)
        assert told(answer.document) == {
            "cni0": [],
            "eth0": ["10.244.0.7/24"],
            "rdma0": ["10.1.0.0/24"],
            "rdma1": ["10.1.0.1/24"],
        }
        assert answer.document["interfaces"][:2] == before["interfaces"]
        assert answer.document["ips"][0] == before["ips"][0]
        assert {each.stdin["name"] for each in ipam.calls("ADD")} == {"net-rdma"}
        if version in SINCE_CHECK:
            checked = await runtime.ask("CHECK", chained, prev_result=answer.document)
            assert checked.exit_status == 0, checked.document
        assert (await runtime.ask("DEL", chained, prev_result=answer.document)).exit_status == 0
        assert (await runtime.ask("DEL", chained)).exit_status == 0

    in_turn(machine, scenario)
    assert machine.is_pristine()


@since_interfaces
def test_name_that_the_pod_has_already_is_refused_before_anything_is_claimed(
    machine: Machine, version: str
) -> None:
    async def scenario(runtime: Runtime) -> None:
        named = {"rdma_interfaces_required": '[{}, {"name": "eth0"}]'}
        answer = await runtime.ask("ADD", conf(version), annotations=named, prev_result=ordinary(version))
        assert (answer.exit_status, answer.document["code"]) == (1, 100)
        assert answer.document["msg"].startswith("rdma_interfaces_required[1].name: eth0 is the name of")
        assert machine.kernel.applied == []

    in_turn(machine, scenario)
