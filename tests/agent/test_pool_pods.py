"""Pods that hold exclusive devices: these are attached, whatever their annotation says besides rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent.machine import Machine
from agent.pods import KnowingCluster, conf, requests
from agent.runtime import Answer, Runtime, in_turn
from cdi_documents import decode_specification
from factories import PF0, PF1
from fakes.nodes import FakePodResources
from k8s_rdma.agent.cni.networks import NETWORKS_ANNOTATION
from k8s_rdma.config.devices import ExclusiveResource, Selector
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.step import VfRef
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import STATUS, Reason
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.placement_keys import PlacementKeys

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


RDMA = "tencent.com/rdma"
FABRIC = conf("1.0.0", emptyResult=True)
KEY = PlacementKeys.shared(b"k" * 32)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """VFs 1 to 3 of `f0` are in the pool, as RDMA devices `f0r1` to `f0r3`."""
    (tmp_path / "plugins").mkdir()
    made = Machine(tmp_path, rdma=True)
    made.resources = (ExclusiveResource(name=RDMA, select=Selector(pfs=("f0#1-3",))),)
    made.kubelet = FakePodResources()
    return made


@pytest.fixture
def kubelet(machine: Machine) -> FakePodResources:
    assert isinstance(machine.kubelet, FakePodResources)
    return machine.kubelet


class PromisingCluster(KnowingCluster):
    """Another pod was promised 60,000 Mb/s of the PF."""

    def placements(self) -> Mapping[PodUid, Placement]:
        placed = PlacedInterface(pf=PF0, min_tx_rate_mbps=60_000)
        return {PodUid("uid-other"): Placement(node=NodeName("w1"), interfaces=(placed,))}


def rates(machine: Machine) -> dict[str, tuple[int, int]]:
    """By RDMA device, of those that are in pods."""
    return {
        function.rdma_device: (function.min_tx_rate_mbps, function.max_tx_rate_mbps)
        for function in machine.hardware.functions.values()
        if function.rdma_device and function.rdma_place in machine.sandboxes
    }


def failure(answer: Answer) -> tuple[Any, str]:
    assert answer.exit_status == 1
    return answer.document["code"], answer.document["msg"]


def code(reason: Reason) -> int:
    return STATUS[reason].cni


def placed(*rates: int, pool: str = RDMA) -> dict[str, str]:
    """As the extender places a pod whose devices kubelet chooses."""
    interfaces = tuple(
        PlacedInterface(pf=PF0, min_tx_rate_mbps=rate, pool=pool, entry=at) for at, rate in enumerate(rates)
    )
    placement = Placement(node=NodeName("w1"), interfaces=interfaces)
    return {PLACEMENT_ANNOTATION: encode(placement, PodUid("uid-p"), KEY)}


def test_exclusive_devices_slot_has_its_nodes_and_no_variable_that_hides_the_other_devices(
    machine: Machine, kubelet: FakePodResources
) -> None:
    """The device plugin has declared both together; each specification would say that there is one."""
    kubelet.allocate("default", "p", RDMA, "f0r3", "f0r1")

    async def scenario(runtime: Runtime) -> None:
        assert (await runtime.ask("ADD", FABRIC, annotations={})).exit_status == 0
        slots = [
            device
            for path in (machine.directory / "host").rglob("k8s-rdma.io-slot_*.json")
            for device in decode_specification(path.read_bytes())[1]
        ]
        assert {each.name for each in slots} == {"tencent.com_rdma.f0r1", "tencent.com_rdma.f0r3"}
        assert [each.container_edits.env for each in slots] == [(), ()]
        assert all(each.container_edits.device_nodes for each in slots)

    in_turn(machine, scenario)


def test_pod_without_annotation_gets_just_the_devices_that_it_holds(
    machine: Machine, kubelet: FakePodResources
) -> None:
    kubelet.allocate("default", "p", RDMA, "f0r3", "f0r1")

    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", FABRIC, annotations={})
        assert answer.exit_status == 0, answer
        assert [each["name"] for each in answer.document["interfaces"]] == ["eth0", "eth1"]
        assert rates(machine) == {"f0r1": (0, 0), "f0r3": (0, 0)}
        (receipt,) = runtime.node.ledger.receipts.values()
        assert [(each.rdma_device, each.pool) for each in receipt.interfaces] == [
            ("f0r1", RDMA),
            ("f0r3", RDMA),
        ]
        assert (await runtime.ask("DEL", FABRIC)).exit_status == 0

    in_turn(machine, scenario)
    assert machine.is_pristine()


def test_annotation_sets_rates_in_the_order_of_the_devices(
    machine: Machine, kubelet: FakePodResources
) -> None:
    kubelet.allocate("default", "p", RDMA, "f0r3", "f0r1")
    asked = requests({"min_tx_rate": 5, "max_tx_rate": 9}, {"min_tx_rate": 7, "name": "fast0"})

    async def scenario(runtime: Runtime) -> None:
        assert (await runtime.ask("ADD", FABRIC, annotations=asked)).exit_status == 0
        assert rates(machine) == {"f0r1": (5, 9), "f0r3": (7, 0)}
        assert runtime.inside() == {"eth0", "fast0"}
        assert (await runtime.ask("DEL", FABRIC)).exit_status == 0

    in_turn(machine, scenario)
    assert machine.is_pristine()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (requests({}), "has 1 interfaces, and the pod holds 2 devices (f0r1 of tencent.com/rdma, f0r3"),
        (requests({}, {}, {}), "has 3 interfaces"),
        (requests({}, {"vlan": 7}), "rdma_interfaces_required[1].vlan: the pod holds f0r1"),
        (requests({"mtu": 1400}, {}), "rdma_interfaces_required[0].mtu: "),
        (requests({"mac": "02:00:00:00:00:07"}, {}), "rdma_interfaces_required[0].mac: "),
        (requests({}, {}) | {"k8s-rdma.io/policy": "spread-pfs"}, "policy spread-pfs: "),
    ],
)
def test_annotation_that_says_more_than_rates_of_these_devices_is_refused(
    machine: Machine, kubelet: FakePodResources, asked: dict[str, str], said: str
) -> None:
    kubelet.allocate("default", "p", RDMA, "f0r3", "f0r1")

    async def scenario(runtime: Runtime) -> None:
        found, msg = failure(await runtime.ask("ADD", FABRIC, annotations=asked))
        assert (found, said in msg) == (code(Reason.DEVICES_DIFFER), True), msg
        assert not runtime.node.ledger.receipts

    in_turn(machine, scenario)
    assert machine.is_pristine()


def test_device_that_is_not_here_or_of_others_is_unknown(machine: Machine, kubelet: FakePodResources) -> None:
    kubelet.allocate("default", "p", RDMA, "f0r0")
    kubelet.allocate("default", "q", RDMA, "rxe0")

    async def scenario(runtime: Runtime) -> None:
        for pod, said in (("p", "is for those who ask by annotation"), ("q", "is no VF of this node")):
            found, msg = failure(await runtime.ask("ADD", FABRIC, f"c-{pod}", pod=pod, annotations={}))
            assert (found, said in msg) == (code(Reason.UNKNOWN_DEVICE), True), msg

    in_turn(machine, scenario)
    assert machine.is_pristine()


def test_pods_that_request_by_annotation_get_no_vf_of_the_pool(machine: Machine) -> None:
    async def scenario(runtime: Runtime) -> None:
        asked = requests(*({} for _ in range(5)))
        assert (await runtime.ask("ADD", FABRIC, "c1", annotations=asked)).exit_status == 0
        (receipt,) = runtime.node.ledger.receipts.values()
        free = {VfRef(PF0, 0), *(VfRef(PF1, index) for index in range(4))}
        assert {each.vf for each in receipt.interfaces} == free
        found, msg = failure(await runtime.ask("ADD", FABRIC, "c2", pod="q", annotations=requests({})))
        assert (found, "0 of 5 VFs free" in msg) == (code(Reason.INSUFFICIENT), True), msg
        assert (await runtime.ask("DEL", FABRIC, "c1")).exit_status == 0

    in_turn(machine, scenario)
    assert machine.is_pristine()


def test_bandwidth_of_devices_is_not_sold_again(machine: Machine, kubelet: FakePodResources) -> None:
    kubelet.allocate("default", "p", RDMA, "f0r1")
    kubelet.allocate("default", "q", RDMA, "f0r2")

    async def scenario(runtime: Runtime) -> None:
        asked = requests({"min_tx_rate": 60_000})
        assert (await runtime.ask("ADD", FABRIC, "c1", annotations=asked)).exit_status == 0
        found, msg = failure(await runtime.ask("ADD", FABRIC, "c2", pod="q", annotations=asked))
        assert found == code(Reason.INSUFFICIENT)
        assert "VFs of PF f0 and need 60000 Mb/s there; 40000 of 100000 are unreserved" in msg
        ordinary = await runtime.ask("ADD", FABRIC, "c3", pod="r", annotations=asked)
        assert ordinary.exit_status == 0
        (held,) = [each for each in runtime.node.ledger.receipts.values() if each.pod.name == "r"]
        assert [each.vf.pf for each in held.interfaces] == [PF1]

    in_turn(machine, scenario)


def test_no_pod_starts_while_kubelet_does_not_tell(machine: Machine, kubelet: FakePodResources) -> None:
    kubelet.silent = True

    async def scenario(runtime: Runtime) -> None:
        found, msg = failure(await runtime.ask("ADD", FABRIC, annotations={}))
        assert (found, "kubelet does not say" in msg) == (11, True)

    in_turn(machine, scenario)


def test_pod_without_a_vf_of_a_pool_is_an_ordinary_one(machine: Machine, kubelet: FakePodResources) -> None:
    kubelet.allocate("default", "p", "example.com/gpu", "gpu0")

    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", FABRIC, annotations={})
        assert (answer.exit_status, answer.document.get("interfaces")) == (0, None)

    in_turn(machine, scenario)


def test_new_sandbox_of_a_pod_gets_the_same_devices(machine: Machine, kubelet: FakePodResources) -> None:
    kubelet.allocate("default", "p", RDMA, "f0r2", "f0r1")
    asked = requests({"min_tx_rate": 50_000}, {"min_tx_rate": 50_000})

    async def scenario(runtime: Runtime) -> None:
        assert (await runtime.ask("ADD", FABRIC, "c1", annotations=asked)).exit_status == 0
        found, _ = failure(await runtime.ask("ADD", FABRIC, "c2", annotations=asked))
        assert found == code(Reason.HELD_BY_OLDER_SANDBOX)
        machine.hardware.destroy_namespace(machine.sandboxes[machine.sandbox("c1")])
        assert (await runtime.ask("ADD", FABRIC, "c2", annotations=asked)).exit_status == 0
        assert rates(machine) == {"f0r1": (50_000, 0), "f0r2": (50_000, 0)}
        assert (await runtime.ask("DEL", FABRIC, "c1")).exit_status == 0
        assert rates(machine) == {"f0r1": (50_000, 0), "f0r2": (50_000, 0)}
        assert (await runtime.ask("DEL", FABRIC, "c2")).exit_status == 0

    in_turn(machine, scenario)
    assert machine.is_pristine()


def test_device_given_on_is_waited_for_until_its_last_holder_has_ended(
    machine: Machine, kubelet: FakePodResources
) -> None:
    kubelet.allocate("default", "p", RDMA, "f0r2")

    async def scenario(runtime: Runtime) -> None:
        assert (await runtime.ask("ADD", FABRIC, "c1", annotations={})).exit_status == 0
        kubelet.forget("default", "p")
        kubelet.allocate("default", "q", RDMA, "f0r2")
        found, msg = failure(await runtime.ask("ADD", FABRIC, "c2", pod="q", annotations={}))
        assert (found, "still held by pod default/p" in msg) == (11, True)
        assert (await runtime.ask("DEL", FABRIC, "c1")).exit_status == 0
        assert (await runtime.ask("ADD", FABRIC, "c2", pod="q", annotations={})).exit_status == 0
        assert (await runtime.ask("DEL", FABRIC, "c2", pod="q")).exit_status == 0

    in_turn(machine, scenario)
    assert machine.is_pristine()


def test_restarted_agent_knows_whose_devices_are_whose(machine: Machine, kubelet: FakePodResources) -> None:
    kubelet.allocate("default", "p", RDMA, "f0r2")

    async def first(runtime: Runtime) -> None:
        assert (await runtime.ask("ADD", FABRIC, "c1", annotations={})).exit_status == 0

    async def second(runtime: Runtime) -> None:
        kubelet.forget("default", "p")
        kubelet.allocate("default", "q", RDMA, "f0r2")
        found, msg = failure(await runtime.ask("ADD", FABRIC, "c2", pod="q", annotations={}))
        assert (found, "still held by pod default/p" in msg) == (11, True)
        assert (await runtime.ask("DEL", FABRIC, "c1")).exit_status == 0

    in_turn(machine, first)
    in_turn(machine, second)
    assert machine.is_pristine()


def test_each_network_attaches_the_device_that_multus_names(
    machine: Machine, kubelet: FakePodResources
) -> None:
    """By RDMA device or by PCI address, in either place."""
    kubelet.allocate("default", "p", RDMA, "f0r1", "f0r2")
    pci = machine.hardware.functions[VfRef(PF0, 1)].pci
    asked = requests({"min_tx_rate": 5}, {"min_tx_rate": 7}) | {NETWORKS_ANNOTATION: "fabric-a, fabric-b"}
    machine.cluster = KnowingCluster(asked)
    a = conf("1.0.0", deviceID="f0r2", pciBusID="f0r2") | {"name": "fabric-a"}
    b = conf("1.0.0", runtimeConfig={"deviceID": pci}) | {"name": "fabric-b"}

    async def scenario(runtime: Runtime) -> None:
        assert (await runtime.ask("ADD", a, ifname="net1")).exit_status == 0
        assert rates(machine) == {"f0r2": (7, 0)}
        found, _ = failure(await runtime.ask("ADD", a | {"name": "fabric-c"}, ifname="net3"))
        assert found == code(Reason.ALREADY_ATTACHED)
        assert (await runtime.ask("ADD", b, ifname="net2")).exit_status == 0
        assert rates(machine) == {"f0r1": (5, 0), "f0r2": (7, 0)}
        assert runtime.inside() == {"net1", "net2"}
        for network, ifname in ((b, "net2"), (a, "net1")):
            assert (await runtime.ask("DEL", network, ifname=ifname)).exit_status == 0

    in_turn(machine, scenario)
    assert machine.is_pristine()


@pytest.mark.parametrize("held", [[], ["f0r1"]])
def test_device_that_multus_names_and_the_pod_does_not_hold_is_refused(
    machine: Machine, kubelet: FakePodResources, held: list[str]
) -> None:
    kubelet.allocate("default", "p", RDMA, *held)

    async def scenario(runtime: Runtime) -> None:
        asked = requests({}) if not held else {}
        network = FABRIC | {"deviceID": "f0r2"}
        found, msg = failure(await runtime.ask("ADD", network, annotations=asked))
        assert (found, "deviceID: f0r2: the pod holds" in msg) == (code(Reason.UNKNOWN_DEVICE), True), msg

    in_turn(machine, scenario)
    assert machine.is_pristine()


def test_device_of_another_network_is_not_attached(machine: Machine, kubelet: FakePodResources) -> None:
    kubelet.allocate("default", "p", RDMA, "f0r1", "f0r2")
    asked = requests({"network": "fabric-a"}, {}) | {NETWORKS_ANNOTATION: "fabric-a"}

    async def scenario(runtime: Runtime) -> None:
        network = FABRIC | {"deviceID": "f0r1"}
        found, msg = failure(await runtime.ask("ADD", network, annotations=asked))
        assert (found, "rdma_interfaces_required[0].network: fabric-a" in msg) == (
            code(Reason.DEVICES_DIFFER),
            True,
        ), msg

    in_turn(machine, scenario)


def test_signed_placement_says_the_rates_whatever_the_annotation_says_now(
    machine: Machine, kubelet: FakePodResources
) -> None:
    kubelet.allocate("default", "p", RDMA, "f0r1", "f0r2")
    asked = requests({"min_tx_rate": 99}, {"min_tx_rate": 99}) | placed(5, 7)

    async def scenario(runtime: Runtime) -> None:
        assert (await runtime.ask("ADD", FABRIC, annotations=asked)).exit_status == 0
        assert rates(machine) == {"f0r1": (5, 0), "f0r2": (7, 0)}

    in_turn(machine, scenario, key=KEY)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ([], "placed with 2 of tencent.com/rdma, and kubelet gave it none"),
        (["f0r1"], "and kubelet gave it 1 of tencent.com/rdma"),
    ],
)
def test_placement_for_other_devices_than_the_pod_holds_is_refused(
    machine: Machine, kubelet: FakePodResources, held: list[str], said: str
) -> None:
    if held:
        kubelet.allocate("default", "p", RDMA, *held)

    async def scenario(runtime: Runtime) -> None:
        found, msg = failure(await runtime.ask("ADD", FABRIC, annotations=placed(5, 7)))
        assert (found, said in msg) == (code(Reason.DEVICES_DIFFER), True), msg

    in_turn(machine, scenario, key=KEY)


def test_pod_whose_network_gives_vfs_to_programs_cannot_have_its_rdma_devices(
    machine: Machine, kubelet: FakePodResources
) -> None:
    kubelet.allocate("default", "p", RDMA, "f0r1")

    async def scenario(runtime: Runtime) -> None:
        network = FABRIC | {"dpdk": {"dpdk_driver": "vfio-pci"}}
        found, msg = failure(await runtime.ask("ADD", network, annotations={}))
        assert (found, "dpdk: the pod holds RDMA devices" in msg) == (code(Reason.INVALID_NETCONF), True), msg

    in_turn(machine, scenario)


def test_unpromised_rates_leave_room_promised_to_others(machine: Machine, kubelet: FakePodResources) -> None:
    """Unless they were promised as well: then the extender has counted both."""
    kubelet.allocate("default", "p", RDMA, "f0r1")
    machine.cluster = PromisingCluster({})

    async def scenario(runtime: Runtime) -> None:
        asked = requests({"min_tx_rate": 50_000})
        found, msg = failure(await runtime.ask("ADD", FABRIC, annotations=asked))
        assert (found, "40000 of 100000 are unreserved" in msg) == (code(Reason.INSUFFICIENT), True), msg
        promised = await runtime.ask("ADD", FABRIC, annotations=placed(50_000))
        assert promised.exit_status == 0, promised
        assert rates(machine) == {"f0r1": (50_000, 0)}

    in_turn(machine, scenario, key=KEY, allow_unplaced=True)


def test_device_is_known_at_once_when_it_came_home_unobserved(
    machine: Machine, kubelet: FakePodResources
) -> None:
    """Its VF was last seen when a pod had it, and its RDMA device was elsewhere."""
    kubelet.allocate("default", "p", RDMA, "f0r2")

    async def scenario(runtime: Runtime) -> None:
        assert (await runtime.ask("ADD", FABRIC, "c1", annotations={})).exit_status == 0
        runtime.node.refresh()
        assert (await runtime.ask("DEL", FABRIC, "c1")).exit_status == 0
        (first, _) = runtime.node.hardware.pfs
        assert [vf.rdma_device for vf in first.vfs] == ["f0r0", "f0r1", "f0r2", "f0r3"]

    in_turn(machine, scenario)
