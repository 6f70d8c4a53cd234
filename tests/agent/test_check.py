"""CHECK reports by code and object every way in which an attachment can differ from its ADD."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.machine import Machine, asks
from agent.pods import conf, requests
from agent.runtime import Answer, Runtime, in_turn
from factories import PF0, PF1
from k8s_rdma.core.kernel import Unreadable
from k8s_rdma.core.step import CapInterface, ClearInterface, SetRates, UnbindVf, VfRate
from k8s_rdma.wire.cni_result import SINCE_CHECK

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.scripted_plugin import ScriptedPlugin
    from k8s_rdma.core.ledger import Receipt

CHAINED = {"cniVersion": "1.0.0", "interfaces": [], "ips": []}


def receipt_of(runtime: Runtime) -> Receipt:
    [receipt] = runtime.node.ledger.receipts.values()
    return receipt


def renamed(machine: Machine, receipt: Receipt) -> str:
    machine.hardware.alter_interface("rdma0", receipt.netns, name="x0", mac=mac_of(receipt), mtu=1500)
    return "interface rdma0 is not in the pod"


def other_mac(machine: Machine, receipt: Receipt) -> str:
    machine.hardware.alter_interface("rdma0", receipt.netns, name="rdma0", mac="0a:0a:0a:0a:0a:0a", mtu=1500)
    return f"interface rdma0 has MAC 0a:0a:0a:0a:0a:0a, was given {mac_of(receipt)}"


def other_mtu(machine: Machine, receipt: Receipt) -> str:
    machine.hardware.alter_interface("rdma0", receipt.netns, name="rdma0", mac=mac_of(receipt), mtu=900)
    return "interface rdma0 has MTU 900, was given 1500"


def shared_address(machine: Machine, receipt: Receipt) -> str:
    machine.hardware.device(receipt.netns, "rdma0").duplicates = frozenset({"10.1.0.0/24"})
    return "interface rdma0 has 10.1.0.0/24, and so has another station there"


def other_address(machine: Machine, receipt: Receipt) -> str:
    machine.hardware.use_interface("rdma0", receipt.netns, "10.1.0.77/24")
    return "interface rdma0 has lost 10.1.0.0/24"


def program(machine: Machine, receipt: Receipt) -> str:
    machine.hardware.tune_interface("rdma0", receipt.netns, XDP="98 (generic)")
    return "interface rdma0 has XDP program 98 (generic), was given without one"


def down(machine: Machine, receipt: Receipt) -> str:
    machine.kernel.apply(ClearInterface(netns=receipt.netns, ifname="rdma0"))
    return "interface rdma0 is down"


def other_rates(machine: Machine, receipt: Receipt) -> str:
    vf = receipt.interfaces[0].vf
    machine.kernel.apply(
        SetRates(pf=vf.pf, rates=(VfRate(vf.index, 1, 2),), previous=(VfRate(vf.index, 5, 9),))
    )
    return f"VF {vf.index} of PF {vf.pf} (rdma0) has min 1, max 2 Mb/s, was given min 5, max 9 Mb/s"


def uncapped(machine: Machine, receipt: Receipt) -> str:
    machine.kernel.apply(CapInterface(netns=receipt.netns, ifname="rdma1", max_tx_rate_mbps=0))
    return "interface rdma1 is not limited by software, was given 7 Mb/s"


def other_cap(machine: Machine, receipt: Receipt) -> str:
    machine.kernel.apply(CapInterface(netns=receipt.netns, ifname="rdma1", max_tx_rate_mbps=70))
    return "interface rdma1 is limited to 70 Mb/s by software, was given 7 Mb/s"


def no_vf(machine: Machine, receipt: Receipt) -> str:
    vf = receipt.interfaces[0].vf
    machine.hardware.remove_pf(vf.pf)
    return "interface rdma0 is not in the pod"


def mac_of(receipt: Receipt) -> str:
    return receipt.interfaces[0].mac


@pytest.mark.parametrize("version", SINCE_CHECK)
@pytest.mark.parametrize(
    "alter",
    [
        *(
            renamed,
            other_mac,
            other_mtu,
            program,
            other_address,
            shared_address,
            down,
            other_rates,
            uncapped,
            other_cap,
        ),
        no_vf,
    ],
)
def test_check_names_the_altered_setting(
    machine: Machine, ipam: ScriptedPlugin, alter: Callable[[Machine, Receipt], str], version: str
) -> None:
    async def scenario(runtime: Runtime) -> None:
        chained = conf(version, ipam={"type": "ipam"})
        annotations = requests(
            {"min_tx_rate": 5, "max_tx_rate": 9, "mtu": 1500}, {"max_tx_rate": 7, "enforce": "software"}
        )
        before = CHAINED | {"cniVersion": version}
        given = await runtime.ask("ADD", chained, annotations=annotations, prev_result=before)
        whole = await runtime.ask("CHECK", chained, prev_result=given.document)
        assert whole.exit_status == 0, whole.document
        expected = alter(machine, receipt_of(runtime))
        answer = await runtime.ask("CHECK", chained, prev_result=given.document)
        assert (answer.exit_status, answer.document["code"]) == (1, 108)
        assert answer.document["cniVersion"] == version
        assert expected in f"{answer.document['msg']}; {answer.document.get('details')}"
        applied = len(machine.kernel.applied)
        await runtime.ask("CHECK", chained, prev_result=given.document)
        assert len(machine.kernel.applied) == applied

    in_turn(machine, scenario)


def ask_check(machine: Machine, between: Callable[[], None]) -> Answer:
    """Return the answer of a pod's CHECK after a change since its ADD."""
    answers: list[Answer] = []

    async def scenario(runtime: Runtime) -> None:
        given = await runtime.ask("ADD", conf("1.0.0"), annotations=asks({}, {}), prev_result=CHAINED)
        between()
        answers.append(await runtime.ask("CHECK", conf("1.0.0"), prev_result=given.document))

    in_turn(machine, scenario)
    return answers[0]


def test_mtu_of_a_pod_without_a_requested_mtu_is_that_of_the_plugins_behind_ours(machine: Machine) -> None:
    """`tuning` sets it, and CRI-O calls CHECK after every ADD: no such pod would start."""

    async def scenario(runtime: Runtime) -> None:
        given = await runtime.ask("ADD", conf("1.0.0"), annotations=asks({}), prev_result=CHAINED)
        other_mtu(machine, receipt_of(runtime))
        answer = await runtime.ask("CHECK", conf("1.0.0"), prev_result=given.document)
        assert answer.exit_status == 0, answer.document

    in_turn(machine, scenario)


def test_check_looks_again_when_one_look_does_not_find_the_pf(machine: Machine) -> None:
    def hide_once() -> None:
        machine.hardware.set_unreadable(
            Unreadable("PFs", "links are missing"), hidden=[PF0, PF1], observations=1
        )

    with capture_logs() as logs:
        assert ask_check(machine, hide_once).exit_status == 0
    assert "check_incomplete" not in {line["event"] for line in logs}


def test_check_looks_again_when_one_look_misses_the_pf_and_does_not_say_so(machine: Machine) -> None:
    def hide_once() -> None:
        machine.hardware.set_unreadable(hidden=[PF0, PF1], observations=1)

    assert ask_check(machine, hide_once).exit_status == 0


def test_check_succeeds_and_logs_when_the_pf_stays_unreadable(machine: Machine) -> None:
    def hide() -> None:
        machine.hardware.set_unreadable(Unreadable("PF f0", "no answer"), hidden=[PF0, PF1])

    with capture_logs() as logs:
        assert ask_check(machine, hide).exit_status == 0
    [line] = [each for each in logs if each["event"] == "check_incomplete"]
    assert line["unreadable"] == ["PF f0: no answer"]


def test_check_succeeds_when_the_hardware_does_not_answer(machine: Machine) -> None:
    def silence() -> None:
        machine.hardware.silent = "no answer"

    assert ask_check(machine, silence).exit_status == 0


def test_check_names_a_vf_that_is_gone_when_everything_could_be_looked_at(machine: Machine) -> None:
    answer = ask_check(machine, lambda: machine.hardware.set_unreadable(hidden=[PF0, PF1]))
    assert answer.document["code"] == 108
    assert answer.document["msg"].endswith("is not there")


def test_function_that_the_kernel_took_back_is_named(machine: Machine) -> None:
    async def scenario(runtime: Runtime) -> None:
        chained = conf("1.0.0")
        annotations = requests({"driver": "vfio-pci"})
        given = await runtime.ask("ADD", chained, annotations=annotations, prev_result=CHAINED)
        assert given.exit_status == 0, given.document
        [bound] = [step.inverse for step in machine.kernel.applied if isinstance(step.inverse, UnbindVf)]
        machine.kernel.apply(bound)
        answer = await runtime.ask("CHECK", chained, prev_result=given.document)
        assert (answer.exit_status, answer.document["code"]) == (1, 108)
        assert "was given to vfio-pci" in answer.document["msg"]

    in_turn(machine, scenario)


def test_check_reports_the_error_of_another_plugin_unchanged(machine: Machine, ipam: ScriptedPlugin) -> None:
    async def scenario(runtime: Runtime) -> None:
        chained = conf("1.0.0", ipam={"type": "ipam"})
        given = await runtime.ask("ADD", chained, annotations=asks({}), prev_result=CHAINED)
        ipam.speak(("1.0.0",), CHECK="""echo '{"code": 7, "msg": "lease lost"}'; exit 1""")
        answer = await runtime.ask("CHECK", chained, prev_result=given.document)
        assert (answer.exit_status, answer.document["code"]) == (1, 111)
        assert "lease lost" in answer.document["msg"]

    in_turn(machine, scenario)


@pytest.mark.parametrize("version", SINCE_CHECK)
def test_container_without_an_attachment_passes_only_if_it_requests_no_interface(
    machine: Machine, version: str
) -> None:
    async def scenario(runtime: Runtime) -> None:
        prev_result = CHAINED | {"cniVersion": version}
        for wanted in (None, {}, {"rdma_interfaces_required": "[]"}):
            answer = await runtime.ask("CHECK", conf(version), annotations=wanted, prev_result=prev_result)
            assert answer.exit_status == 0
        answer = await runtime.ask("CHECK", conf(version), annotations=asks({}), prev_result=prev_result)
        assert (answer.exit_status, answer.document["code"]) == (1, 3)

    in_turn(machine, scenario)


def test_container_whose_sandbox_is_gone_is_unknown(machine: Machine) -> None:
    async def scenario(runtime: Runtime) -> None:
        await runtime.ask("ADD", conf("1.0.0"), annotations=asks({}), prev_result=CHAINED)
        machine.hardware.destroy_namespace(receipt_of(runtime).netns)
        answer = await runtime.ask("CHECK", conf("1.0.0"), prev_result=CHAINED)
        assert (answer.exit_status, answer.document["code"]) == (1, 3)

    in_turn(machine, scenario)
