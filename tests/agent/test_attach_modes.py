"""The ways to be attached, in every version: as the only plugin, chained, as one of several networks."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from agent.machine import Machine, asks
from agent.runtime import Runtime, running
from agent.scripted_plugin import ScriptedPlugin, addresses
from factories import PF0, PF1
from k8s_rdma.agent.share import NETWORKS_ANNOTATION
from k8s_rdma.core.ids import NodeName, PodUid
from k8s_rdma.core.options import InterfaceOptions, VfDriver
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.step import BindVf
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.cni_version import SINCE_CHECK, SUPPORTED_VERSIONS, WITHOUT_INTERFACES
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from k8s_rdma.core.ledger import Pod, Receipt

WITH_INTERFACES = [version for version in SUPPORTED_VERSIONS if version not in WITHOUT_INTERFACES]
MULTUS = {NETWORKS_ANNOTATION: "fabric-a, fabric-b"}
every_version = pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
since_interfaces = pytest.mark.parametrize("version", WITH_INTERFACES)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "plugins").mkdir()
    return Machine(tmp_path)


@pytest.fixture
def ipam(machine: Machine) -> ScriptedPlugin:
    """Gives every interface an address of its own, by the last figure of its name."""
    made = ScriptedPlugin(machine.directory / "plugins", "ipam")
    made.speak(("0.2.0", *WITH_INTERFACES[1:]), ADD=addresses("10.1.0.'${CNI_IFNAME##*[a-z-]}'/24"))
    return made


@pytest.fixture
def main(machine: Machine) -> ScriptedPlugin:
    """What gives pods their ordinary interface, and speaks 1.0.0 at most."""
    made = ScriptedPlugin(machine.directory / "plugins", "main")
    made.speak(SUPPORTED_VERSIONS[:-1], ADD=f"echo '{json.dumps(ordinary('1.0.0'))}'")
    return made


def ordinary(version: str, sandbox: str = "/run/netns/x") -> dict[str, Any]:
    """The result of the plugin that gives a pod its `eth0`."""
    family = {"version": "4"} if version in ("0.3.0", "0.3.1", "0.4.0") else {}
    return {
        "cniVersion": version,
        "interfaces": [{"name": "cni0"}, {"name": "eth0", "mac": "0a:00:00:00:00:99", "sandbox": sandbox}],
        "ips": [{**family, "interface": 1, "address": "10.244.0.7/24", "gateway": "10.244.0.1"}],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dns": {},
    }


def conf(version: str, **keys: object) -> dict[str, object]:
    return {"cniVersion": version, "name": "net", "type": "k8s-rdma-cni", **keys}


def told(result: Mapping[str, Any]) -> dict[str, list[str]]:
    """The addresses of each interface, by its name, as a result tells them."""
    names = [each["name"] for each in result["interfaces"]]
    found: dict[str, list[str]] = {name: [] for name in names}
    for ip in result.get("ips", ()):
        found[names[ip["interface"]]].append(ip["address"])
    return found


def in_turn(machine: Machine, scenario: Callable[[Runtime], Awaitable[None]], **how: object) -> None:
    async def whole() -> None:
        with running(machine, **how) as runtime:
            await scenario(runtime)

    asyncio.run(whole())


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
def test_pod_that_asks_for_nothing_gets_an_empty_result_where_that_is_enough(
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
def test_delegate_gives_eth0_to_a_pod_that_asks_for_nothing(
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
        # DEL goes by what was called then, whatever the configuration is now.
        assert (await runtime.ask("DEL", conf(version))).exit_status == 0
        [deleted] = main.calls("DEL")
        assert (deleted.ifname, deleted.stdin["bridge"]) == ("eth0", "b")
        assert not runtime.node.ledger.receipts
        assert (await runtime.ask("DEL", conf(version))).exit_status == 0
        assert len(main.calls("DEL")) == 1

    in_turn(machine, scenario)
    assert not machine.markers()


@since_interfaces
def test_delegate_is_left_out_where_a_vf_is_eth0(
    machine: Machine, main: ScriptedPlugin, version: str
) -> None:
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
def test_what_the_delegate_made_goes_when_a_step_fails(
    machine: Machine, main: ScriptedPlugin, ipam: ScriptedPlugin, step: int
) -> None:
    async def scenario(runtime: Runtime) -> None:
        machine.kernel.fail(at=step)
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


def test_delegate_whose_del_fails_is_asked_again(machine: Machine, main: ScriptedPlugin) -> None:
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
def test_chained_it_hands_on_what_was_before_and_adds_to_it(
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


class KnowingCluster:
    """The API server's part of `agent.cluster`, with these annotations; remembers what it was told."""

    def __init__(self, annotations: dict[str, str]) -> None:
        self._annotations = annotations
        self.asked: list[Pod] = []
        self.given: list[Receipt] = []
        self.moved: list[str] = []
        self.errors: list[K8sRdmaError] = []

    async def annotations(self, pod: Pod) -> Mapping[str, str]:
        self.asked.append(pod)
        return self._annotations

    def claims(self) -> Mapping[PodUid, Placement]:
        return {}

    def attached(self, receipt: Receipt, results: object) -> None:
        self.given.append(receipt)

    def placed_anew(self, pod: Pod, why: str) -> None:
        self.moved.append(why)

    def refused(self, pod: Pod, error: K8sRdmaError) -> None:
        self.errors.append(error)

    async def run(self) -> None: ...


def placed_by_the_extender(*interfaces: PlacedInterface) -> dict[str, str]:
    placement = Placement(node=NodeName("w1"), interfaces=interfaces)
    return {PLACEMENT_ANNOTATION: encode(placement, PodUid("uid-p"), None)}


def requests(*interfaces: dict[str, object]) -> dict[str, str]:
    return {"rdma_interfaces_required": json.dumps(interfaces)}


@every_version
def test_attachments_of_a_pod_give_their_shares_and_end_one_by_one(machine: Machine, version: str) -> None:
    wanted = requests(
        {"network": "fabric-b", "min_tx_rate": 7}, {"min_tx_rate": 5}, {"network": "fabric-a"}, {}
    )
    machine.cluster = cluster = KnowingCluster(wanted | MULTUS)

    async def scenario(runtime: Runtime) -> None:
        a, b = (conf(version) | {"name": f"fabric-{letter}"} for letter in "ab")
        first = await runtime.ask("ADD", a, ifname="net1")
        second = await runtime.ask("ADD", b, ifname="net2")
        third = await runtime.ask("ADD", a, ifname="net3")
        assert (first.exit_status, second.exit_status, third.exit_status) == (0, 0, 0)
        assert runtime.inside() == {"net1", "net1-1", "net1-2", "net2"}
        assert third.document == {"cniVersion": version}
        entries = {
            key.ifname: [interface.entry for interface in receipt.interfaces]
            for key, receipt in runtime.node.ledger.receipts.items()
        }
        assert entries == {"net1": [1, 2, 3], "net2": [0]}
        assert (await runtime.ask("DEL", a, ifname="net1")).exit_status == 0
        assert runtime.inside() == {"net2"}
        assert machine.markers() == {"c1"}
        assert (await runtime.ask("DEL", a, ifname="net3")).exit_status == 0
        assert (await runtime.ask("DEL", b, ifname="net2")).exit_status == 0
        assert len(cluster.asked) == 3

    in_turn(machine, scenario)
    assert machine.is_pristine()
    assert not machine.markers()
    assert [receipt.attachment.ifname for receipt in cluster.given] == ["net1", "net2"]


def test_placement_of_a_pod_is_carried_out_by_all_of_its_attachments(machine: Machine) -> None:
    promised = (
        PlacedInterface(pf=PF1, min_tx_rate_mbps=10),
        PlacedInterface(pf=PF0, min_tx_rate_mbps=10, options=InterfaceOptions(network="fabric-b")),
    )
    wanted = requests({"min_tx_rate": 10}, {"min_tx_rate": 10, "network": "fabric-b"})
    machine.cluster = cluster = KnowingCluster(wanted | MULTUS | placed_by_the_extender(*promised))

    async def scenario(runtime: Runtime) -> None:
        a, b = (conf("1.0.0") | {"name": f"fabric-{letter}"} for letter in "ab")
        await runtime.ask("ADD", a, ifname="net1")
        await runtime.ask("ADD", b, ifname="net2")
        placed = {
            key.ifname: [interface.vf.pf for interface in receipt.interfaces]
            for key, receipt in runtime.node.ledger.receipts.items()
        }
        assert placed == {"net1": [PF1], "net2": [PF0]}
        assert not cluster.moved

    in_turn(machine, scenario)


@pytest.mark.parametrize("with_version", [False, True])
def test_configuration_of_the_replaced_plugin_works_as_it_stands(
    machine: Machine, ipam: ScriptedPlugin, *, with_version: bool
) -> None:
    """Without `capabilities` and, as it was written, without `cniVersion`."""
    machine.cluster = KnowingCluster(asks({"min_tx_rate": 15_000}, {}))
    legacy: dict[str, object] = {
        "name": "mynet",
        "type": "rit-k8s-rdma-cni-linux-amd64",
        "cniDir": "/var/lib/cni",
        "if0name": "eth0",
        "l2enable": False,
        "vlan": 0,
        "dpdk": {"pci_addr": "", "kernel_driver": "", "dpdk_driver": "", "dpdk_tool": ""},
        "ipam": {"type": "ipam", "subnet": "10.55.206.0/24"},
    }
    if with_version:
        legacy["cniVersion"] = "0.2.0"

    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", legacy)
        assert answer.exit_status == 0, answer.document
        assert answer.document["cniVersion"] == ("0.2.0" if with_version else "0.1.0")
        assert answer.document["ip4"]["ip"] == "10.1.0.0/24"
        assert runtime.inside() == {"eth0", "eth1"}
        assert {each.stdin["name"] for each in ipam.calls("ADD")} == {"mynet"}
        assert (await runtime.ask("DEL", legacy)).exit_status == 0

    in_turn(machine, scenario)
    assert machine.is_pristine()


def test_networks_of_the_configuration_have_addresses_of_their_own(
    machine: Machine, ipam: ScriptedPlugin
) -> None:
    storage = ScriptedPlugin(machine.directory / "plugins", "storage")
    storage.speak(("1.0.0",), ADD=addresses("10.9.0.1/24"))

    async def scenario(runtime: Runtime) -> None:
        networks = {"storage": {"ipam": {"type": "storage"}}, "raw": {"l2enable": True}}
        chained = conf("1.0.0", ipam={"type": "ipam"}, networks=networks)
        wanted = requests({}, {"network": "storage"}, {"network": "raw"}, {"network": "net"})
        answer = await runtime.ask("ADD", chained, annotations=wanted, prev_result=ordinary("1.0.0"))
        assert told(answer.document) | {"cni0": [], "eth0": []} == {
            "cni0": [],
            "eth0": [],
            "rdma0": ["10.1.0.0/24"],
            "rdma1": ["10.9.0.1/24"],
            "rdma2": [],
            "rdma3": ["10.1.0.3/24"],
        }
        assert [each.stdin["name"] for each in storage.calls("ADD")] == ["net-rdma-storage"]
        assert (await runtime.ask("DEL", conf("1.0.0"))).exit_status == 0
        assert [each.ifname for each in storage.calls("DEL")] == ["rdma1"]
        assert sorted(each.ifname for each in ipam.calls("DEL")) == ["rdma0", "rdma3"]

    in_turn(machine, scenario)
    assert machine.is_pristine()


def test_network_that_nothing_attaches_to_is_refused_and_the_pod_told(machine: Machine) -> None:
    machine.cluster = cluster = KnowingCluster(requests({"network": "nowhere"}))

    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", conf("1.0.0"))
        assert (answer.exit_status, answer.document["code"]) == (1, 100)
        assert answer.document["msg"].startswith("rdma_interfaces_required[0].network: nowhere is not net,")

    in_turn(machine, scenario)
    assert [error.reason for error in cluster.errors] == [Reason.MALFORMED_ANNOTATION]


def test_vlan_of_the_configuration_is_that_of_interfaces_that_name_none(machine: Machine) -> None:
    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", conf("1.0.0", vlan=7), annotations=requests({}, {"vlan": 9}))
        assert answer.exit_status == 0, answer.document
        vlans = [vf.vlan for pf in machine.kernel.observe().pfs for vf in pf.vfs if vf.vlan]
        assert sorted(vlans) == [7, 9]
        assert (await runtime.ask("DEL", conf("1.0.0"))).exit_status == 0

    in_turn(machine, scenario)
    assert machine.is_pristine()


@since_interfaces
def test_dpdk_of_the_configuration_gives_pci_functions(
    machine: Machine, main: ScriptedPlugin, version: str
) -> None:
    async def scenario(runtime: Runtime) -> None:
        dpdk = {"kernel_driver": "x", "dpdk_driver": "vfio-pci", "dpdk_tool": "/x"}
        alone = conf(version, dpdk=dpdk, delegate={"type": "main"}, ipam={"type": "none-is-asked"})
        answer = await runtime.ask("ADD", alone, annotations=requests({}))
        assert answer.exit_status == 0, answer.document
        assert told(answer.document) == {"cni0": [], "eth0": ["10.244.0.7/24"], "vfio-pci0": []}
        function = answer.document["interfaces"][2]
        assert "sandbox" not in function
        assert ("pciID" in function) is (version == "1.1.0")
        [bound] = [step for step in machine.kernel.applied if isinstance(step, BindVf)]
        assert bound.driver is VfDriver.VFIO_PCI
        specifications = list((machine.directory / "host" / "var" / "run" / "cdi").iterdir())
        assert len(specifications) == 1
        if version in SINCE_CHECK:
            checked = await runtime.ask("CHECK", alone, prev_result=answer.document)
            assert checked.exit_status == 0, checked.document
        assert (await runtime.ask("DEL", alone)).exit_status == 0
        assert not specifications[0].exists()

    in_turn(machine, scenario)
    assert machine.is_pristine()


@every_version
def test_unsupported_version_or_key_is_told_by_code(machine: Machine, version: str) -> None:
    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", conf("9.9.9"), annotations=asks({}))
        assert (answer.exit_status, answer.document["code"]) == (1, 1)
        assert "1.1.0" in answer.document["details"]
        answer = await runtime.ask("ADD", conf(version, delegates={}), annotations=asks({}))
        assert (answer.exit_status, answer.document["code"]) == (1, 7)
        assert "delegates: unknown key; did you mean delegate?" in answer.document["msg"]
        assert answer.document["cniVersion"] == version
        assert (await runtime.ask("DEL", conf(version, delegates={}))).exit_status == 0

    in_turn(machine, scenario)


def test_placement_that_does_not_fit_any_more_is_made_anew_and_the_pod_told(machine: Machine) -> None:
    machine.cluster = cluster = KnowingCluster({})

    async def scenario(runtime: Runtime) -> None:
        machine.hardware.set_link(PF0, 5)
        runtime.node.refresh()
        annotations = requests({"min_tx_rate": 10}) | placed_by_the_extender(
            PlacedInterface(pf=PF0, min_tx_rate_mbps=10)
        )
        answer = await runtime.ask("ADD", conf("1.0.0"), annotations=annotations)
        assert answer.exit_status == 0, answer.document

    in_turn(machine, scenario)
    assert cluster.moved == [f"PF {PF0} was promised and had no room; given {PF1}"]


def test_pod_that_cannot_be_served_is_told_why(machine: Machine) -> None:
    machine.cluster = cluster = KnowingCluster({})

    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", conf("1.0.0"), annotations=asks({"min_tx_rate": 100_001}))
        assert (answer.exit_status, answer.document["code"]) == (1, 103)

    in_turn(machine, scenario)
    assert [error.reason for error in cluster.errors] == [Reason.EXCEEDS_CAPACITY]
