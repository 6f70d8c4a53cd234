"""STATUS tells whether an ADD could succeed; GC frees what is over, and of others nothing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine, asks
from agent.pods import conf, ordinary
from agent.runtime import Runtime, every_version, in_turn
from agent.scripted_plugin import ScriptedPlugin
from factories import PF0, PF1
from k8s_rdma.core.kernel import Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable


GC_VERSION = "1.1.0"
KEYS = ("cni.dev/valid-attachments", "cni.dev/attachments")


def held(*containers: str, ifname: str = "eth0") -> list[dict[str, str]]:
    return [{"containerID": container, "ifname": ifname} for container in containers]


def silent_hardware(machine: Machine, runtime: Runtime) -> str:
    machine.hardware.silent = "netlink says no"
    runtime.node.refresh()
    return "its hardware cannot be looked at: netlink says no"


def no_vfs(machine: Machine, runtime: Runtime) -> str:
    machine.hardware.remove_vfs(PF0, but=0)
    machine.hardware.remove_vfs(PF1, but=0)
    runtime.node.refresh()
    return "none of PFs f0, f1 has VFs; has k8s-rdma init ended well here?"


def no_pf(machine: Machine, runtime: Runtime) -> str:
    machine.hardware.remove_pf(PF0)
    machine.hardware.remove_pf(PF1)
    runtime.node.refresh()
    return "there is no SR-IOV PF"


def no_markers(machine: Machine, runtime: Runtime) -> str:
    shutil.rmtree(machine.directory / "run" / "attachments")
    return "No such file or directory; the agent makes the directory anew when it is restarted"


@every_version
@pytest.mark.parametrize("breaks", [silent_hardware, no_vfs, no_pf, no_markers])
def test_status_fails_while_no_add_could_succeed(
    machine: Machine, breaks: Callable[[Machine, Runtime], str], version: str
) -> None:
    async def scenario(runtime: Runtime) -> None:
        assert (await runtime.ask("STATUS", conf(version))).exit_status == 0
        expected = breaks(machine, runtime)
        answer = await runtime.ask("STATUS", conf(version))
        assert (answer.exit_status, answer.document["code"]) == (1, 50)
        assert answer.document["cniVersion"] == version
        assert expected in answer.document["msg"]

    in_turn(machine, scenario)


def test_status_fails_while_the_ledger_cannot_be_written(machine: Machine) -> None:
    async def scenario(runtime: Runtime) -> None:
        with machine.full_disk():
            answer = await runtime.ask("STATUS", conf(GC_VERSION))
        assert (answer.exit_status, answer.document["code"]) == (1, 50)
        assert "ledger" in answer.document["msg"]
        assert (await runtime.ask("STATUS", conf(GC_VERSION))).exit_status == 0

    in_turn(machine, scenario)


def test_status_asks_no_hardware(machine: Machine) -> None:
    async def scenario(runtime: Runtime) -> None:
        before = machine.kernel.observations
        for _ in range(3):
            await runtime.ask("STATUS", conf(GC_VERSION))
        assert (machine.kernel.observations, machine.kernel.applied) == (before, [])

    in_turn(machine, scenario)


def test_status_succeeds_if_a_part_of_the_hardware_works(machine: Machine) -> None:
    async def scenario(runtime: Runtime) -> None:
        machine.hardware.set_unreadable(Unreadable("PF f0", "no answer"), hidden=[PF0])
        machine.hardware.set_link(PF1, None)
        runtime.node.refresh()
        assert (await runtime.ask("STATUS", conf(GC_VERSION))).exit_status == 0

    in_turn(machine, scenario)


def test_status_succeeds_without_a_card_if_a_delegate_serves_other_pods(
    machine: Machine, main: ScriptedPlugin
) -> None:
    async def scenario(runtime: Runtime) -> None:
        no_pf(machine, runtime)
        delegating = conf(GC_VERSION, delegate={"type": "main"})
        assert (await runtime.ask("STATUS", delegating)).exit_status == 0
        machine.hardware.set_unreadable(Unreadable("PF f0", "no answer"))
        runtime.node.refresh()
        answer = await runtime.ask("STATUS", delegating)
        assert (answer.exit_status, answer.document["code"]) == (1, 50)
        assert answer.document["details"] == "PF f0: no answer"

    in_turn(machine, scenario)


@pytest.mark.parametrize(
    "keys",
    [
        {"ipam": {"type": "lost"}},
        {"networks": {"a": {"ipam": {"type": "lost"}}}},
        {"delegate": {"type": "lost"}},
    ],
)
def test_status_fails_while_another_plugin_is_missing(machine: Machine, keys: dict[str, object]) -> None:
    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("STATUS", conf(GC_VERSION, **keys))
        assert (answer.exit_status, answer.document["code"]) == (1, 50)
        assert "plugin 'lost' is not in CNI_PATH" in answer.document["msg"]

    in_turn(machine, scenario)


def test_status_of_the_delegate_is_ours_if_it_has_one(machine: Machine) -> None:
    main = ScriptedPlugin(machine.directory / "plugins", "main")

    async def scenario(runtime: Runtime) -> None:
        delegating = conf(GC_VERSION, delegate={"type": "main"})
        main.speak(("1.0.0", "1.1.0"), STATUS="""echo '{"code": 50, "msg": "no backend"}'; exit 1""")
        answer = await runtime.ask("STATUS", delegating)
        assert (answer.exit_status, answer.document["code"]) == (1, 50)
        assert "no backend" in answer.document["msg"]
        main.speak(("1.0.0",), STATUS="exit 1")
        assert (await runtime.ask("STATUS", delegating)).exit_status == 0

    in_turn(machine, scenario)


def test_status_refuses_configurations_that_add_would_refuse(machine: Machine) -> None:
    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("STATUS", conf(GC_VERSION, ipma={}))
        assert (answer.exit_status, answer.document["code"]) == (1, 7)
        assert "ipma: unknown key; did you mean ipam?" in answer.document["msg"]

    in_turn(machine, scenario)


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
    """Which is none of the interfaces' in the pod, and differs between networks of one pod."""

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
def test_gc_of_other_plugins_tells_our_interfaces_and_never_the_main_plugins_network(
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
