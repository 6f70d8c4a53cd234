"""STATUS reports whether an ADD could succeed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from agent.pods import conf
from agent.runtime import Runtime, every_version, in_turn
from agent.scripted_plugin import ScriptedPlugin
from factories import PF0, PF1
from k8s_rdma.core.kernel import Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.machine import Machine

GC_VERSION = "1.1.0"


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
