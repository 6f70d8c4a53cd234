"""Several networks of a pod, a configuration's options for all interfaces, and events of the pod."""

from __future__ import annotations

import pytest

from agent.machine import Machine, asks
from agent.pods import KnowingCluster, conf, ordinary, placed_by_the_extender, requests, told
from agent.runtime import Runtime, every_version, in_turn, since_interfaces
from agent.scripted_plugin import ScriptedPlugin, addresses
from factories import PF0, PF1
from k8s_rdma.agent.cni.networks import NETWORKS_ANNOTATION
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.placement import PlacedInterface
from k8s_rdma.core.step import BindVf
from k8s_rdma.core.types import VfDriver
from k8s_rdma.errors import Reason
from k8s_rdma.wire.cni_result import SINCE_CHECK

MULTUS = {NETWORKS_ANNOTATION: "fabric-a, fabric-b"}


NO_ROOM = (
    "policy same-pf: needs 1 interface of 60000 Mb/s; best PF has 40000 Mb/s and 3 VFs free "
    "(where its other interfaces are)"
)


@pytest.mark.parametrize(
    ("policy", "reserved", "expected"),
    [
        ("any", 60_000, [PF0, PF1]),
        ("same-pf", 40_000, [PF0, PF0]),
        ("same-pf", 60_000, NO_ROOM),
        ("spread-pfs", 5, [PF0, PF1]),
    ],
)
def test_policy_applies_to_all_attachments_of_a_pod_together(
    machine: Machine, policy: str, reserved: int, expected: object
) -> None:
    wanted = requests({"min_tx_rate": reserved}, {"network": "fabric-b", "min_tx_rate": reserved})
    machine.cluster = KnowingCluster({**wanted, **MULTUS, "k8s-rdma.io/policy": policy})

    async def scenario(runtime: Runtime) -> None:
        a, b = (conf("1.0.0") | {"name": f"fabric-{letter}"} for letter in "ab")
        assert (await runtime.ask("ADD", a, ifname="net1")).exit_status == 0
        second = await runtime.ask("ADD", b, ifname="net2")
        if isinstance(expected, str):
            assert expected in second.document["msg"]
        else:
            assert second.exit_status == 0
            held = [each.interfaces[0].vf.pf for each in runtime.node.ledger.receipts.values()]
            assert held == expected
        for net, ifname in ((b, "net2"), (a, "net1")):
            assert (await runtime.ask("DEL", net, ifname=ifname)).exit_status == 0

    in_turn(machine, scenario)
    assert machine.is_pristine()


@pytest.mark.parametrize("request_key", ["rdma_interfaces_required", "k8s-rdma.io/interface"])
def test_annotation_that_there_is_not_is_reported_with_the_nearest_one(
    machine: Machine, request_key: str
) -> None:
    cluster = KnowingCluster({request_key: "[{}]", "k8s-rdma.io/polcy": "same-pf"})
    machine.cluster = cluster

    async def scenario(runtime: Runtime) -> None:
        assert (await runtime.ask("ADD", conf("1.0.0", emptyResult=True))).exit_status == 0

    in_turn(machine, scenario)
    [why] = cluster.ignored
    assert "k8s-rdma.io/polcy: unknown annotation" in why
    assert why.endswith("did you mean k8s-rdma.io/policy?")
    assert ("did you mean k8s-rdma.io/interfaces?" in why) == (request_key == "k8s-rdma.io/interface")


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


def test_new_sandbox_takes_over_from_all_attachments_of_the_old_one(machine: Machine) -> None:
    """Once that is gone; while it is there, the answer asks the runtime to try again."""
    machine.cluster = KnowingCluster(
        requests({"min_tx_rate": 60_000}, {"network": "fabric-b", "min_tx_rate": 70_000}) | MULTUS
    )
    a, b = (conf("1.0.0") | {"name": f"fabric-{letter}"} for letter in "ab")

    async def attached(runtime: Runtime, container: str) -> list[int]:
        answers = [
            await runtime.ask("ADD", network, container, ifname=ifname)
            for network, ifname in ((a, "net1"), (b, "net2"))
        ]
        return [answer.document.get("code", 0) for answer in answers]

    async def scenario(runtime: Runtime) -> None:
        assert await attached(runtime, "old") == [0, 0]
        assert await attached(runtime, "new") == [11, 11]
        machine.hardware.destroy_namespace(machine.sandboxes[machine.sandbox("old")])
        assert await attached(runtime, "new") == [0, 0]
        held = runtime.node.ledger.receipts
        assert {(key.container, key.ifname) for key in held} == {("new", "net1"), ("new", "net2")}
        assert machine.markers() == {"new"}
        for network, ifname in ((a, "net1"), (b, "net2")):
            assert (await runtime.ask("DEL", network, "old", ifname=ifname)).exit_status == 0
        assert runtime.inside("new") == {"net1", "net2"}

    in_turn(machine, scenario)


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


def test_network_without_an_attachment_is_refused_with_an_event_of_the_pod(machine: Machine) -> None:
    machine.cluster = cluster = KnowingCluster(requests({"network": "nowhere"}))

    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", conf("1.0.0"))
        assert (answer.exit_status, answer.document["code"]) == (1, 100)
        assert answer.document["msg"].startswith("rdma_interfaces_required[0].network: nowhere is not net,")

    in_turn(machine, scenario)
    assert [error.reason for error in cluster.errors] == [Reason.MALFORMED_ANNOTATION]


def test_vlan_of_the_configuration_applies_to_interfaces_without_one(machine: Machine) -> None:
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


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize(
    ("key", "options"),
    [("mtu", InterfaceOptions(mtu=1400)), ("network", InterfaceOptions(network="storage"))],
)
def test_option_that_a_pci_function_of_the_configuration_cannot_have_is_refused(
    machine: Machine, main: ScriptedPlugin, key: str, options: InterfaceOptions, *, placed: bool
) -> None:
    machine.cluster = cluster = KnowingCluster({})
    wanted = requests({}, {key: getattr(options, key)})
    if placed:
        wanted |= placed_by_the_extender(PlacedInterface(pf=PF0), PlacedInterface(pf=PF0, options=options))

    async def scenario(runtime: Runtime) -> None:
        networks = {"storage": {"ipam": {"type": "none-is-asked"}}}
        dpdk = {"dpdk_driver": "vfio-pci"}
        alone = conf("1.0.0", dpdk=dpdk, delegate={"type": "main"}, networks=networks)
        answer = await runtime.ask("ADD", alone, annotations=wanted)
        assert (answer.exit_status, answer.document["code"]) == (1, 100)
        assert answer.document["msg"] == (
            f"rdma_interfaces_required[1].{key}: is of a network device, and with dpdk of the network "
            "configuration there is none"
        )

    in_turn(machine, scenario)
    assert [error.reason for error in cluster.errors] == [Reason.MALFORMED_ANNOTATION]
    assert machine.is_pristine()


@every_version
def test_unsupported_version_or_key_has_its_error_code(machine: Machine, version: str) -> None:
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


def test_placement_that_no_longer_fits_is_made_anew_with_an_event_of_the_pod(machine: Machine) -> None:
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


def test_pod_that_cannot_be_served_has_an_event_with_the_reason(machine: Machine) -> None:
    machine.cluster = cluster = KnowingCluster({})

    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", conf("1.0.0"), annotations=asks({"min_tx_rate": 100_001}))
        assert (answer.exit_status, answer.document["code"]) == (1, 103)

    in_turn(machine, scenario)
    assert [error.reason for error in cluster.errors] == [Reason.EXCEEDS_CAPACITY]
