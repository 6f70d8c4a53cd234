"""Interfaces near GPUs at CNI ADD: kubelet has chosen the GPUs, and the agent picks the PFs near these."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec import Raw

from agent.machine import Machine
from agent.pods import conf, requests
from agent.runtime import ANNOTATIONS, Answer, Runtime, in_turn
from cdi_documents import decode_specification
from factories import PF0, PF1
from fakes.kernel import FakeKernel
from fakes.machine import FakeMachine, FakePf
from fakes.nodes import FakePodResources
from k8s_rdma.agent.cni.grant import Policy
from k8s_rdma.agent.cni.kubelet_devices import PodDeviceLookup
from k8s_rdma.agent.rebuild_ledger import Rebuild
from k8s_rdma.config.devices import ExactResource
from k8s_rdma.core.inventory import Gpu
from k8s_rdma.core.placement import Placement, place
from k8s_rdma.core.request import Request
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.errors import STATUS, Reason
from k8s_rdma.wire.annotation import TOPOLOGY_ANNOTATION, read_pod, with_gpus
from k8s_rdma.wire.cached_attachment import CachedAttachment
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode_promise, encode
from k8s_rdma.wire.placement_keys import PlacementKeys

if TYPE_CHECKING:
    from collections.abc import Mapping, Set
    from pathlib import Path

    from k8s_rdma.agent.cni.kubelet_devices import HeldDevices
    from k8s_rdma.agent.rebuild_ledger import RebuiltAttachment
    from k8s_rdma.core.step import NetnsRef

FABRIC = conf("1.0.0", emptyResult=True)
KEY = PlacementKeys.shared(b"k" * 32)
SLOT = "k8s-rdma.io/slot"
GPUS = "K8S_RDMA_GPUS="
NVIDIA = "nvidia.com/gpu"
SWITCHES = {"GPU-a": PciAddress("0000:01:00.0"), "GPU-b": PciAddress("0000:02:00.0")}
LINK_MBPS = 100_000


def gpu(device_id: str) -> Gpu:
    return Gpu(
        resource=NVIDIA,
        pci=PciAddress("0000:10:00.0" if device_id == "GPU-a" else "0000:20:00.0"),
        pcie_path=(SWITCHES[device_id],),
        numa_node=0,
    )


async def locate(devices: Set[tuple[str, str]]) -> Mapping[tuple[str, str], Gpu]:
    found = {device: device[1].partition("::")[0] for device in devices}
    return {device: gpu(name) for device, name in found.items() if name in SWITCHES}


@pytest.fixture
def kubelet() -> FakePodResources:
    return FakePodResources()


@pytest.fixture
def machine(tmp_path: Path, kubelet: FakePodResources) -> Machine:
    """GPU-a is below one switch with `f0`, GPU-b with `f1`."""
    (tmp_path / "plugins").mkdir()
    made = Machine(tmp_path)
    made.hardware = FakeMachine(
        FakePf(name="f0", pci=PF0, vfs=4, numa_node=0, pcie_path=(SWITCHES["GPU-a"],)),
        FakePf(name="f1", pci=PF1, vfs=4, numa_node=0, pcie_path=(SWITCHES["GPU-b"],)),
    )
    made.kernel = FakeKernel(made.hardware)
    made.pristine = made.kernel.observe()
    made.kubelet, made.locate = kubelet, locate
    return made


def annotated(
    machine: Machine, gpus: int, topology: str = "same-pcie-switch", **interface: object
) -> dict[str, str]:
    """A pod as the extender places it, that requests so many GPUs."""
    annotations = requests(interface or {"near": "gpu"}) | {TOPOLOGY_ANNOTATION: topology}
    wanted = read_pod(annotations, strict=True).request
    request = Request(wanted.interfaces, devices=((NVIDIA, gpus),), topology=wanted.topology)
    inventory = machine.kernel.observe().inventory(NodeName("w1"))
    inventory = type(inventory)(node=inventory.node, pfs=inventory.pfs, gpus=tuple(map(gpu, SWITCHES)))
    placement = place(with_gpus(request, "x"), inventory, {})
    assert isinstance(placement, Placement)
    text = encode(placement, PodUid("uid-p"), KEY)
    assert decode_promise(text, keys=KEY).placement == placement
    return annotations | {PLACEMENT_ANNOTATION: text}


def pfs(runtime: Runtime) -> list[PciAddress]:
    (receipt,) = runtime.node.ledger.receipts.values()
    return [interface.vf.pf for interface in receipt.interfaces]


def failure(answer: Answer) -> tuple[object, str]:
    assert answer.exit_status == 1
    return answer.document["code"], answer.document["msg"]


@pytest.mark.parametrize(("device_id", "pf"), [("GPU-a", PF0), ("GPU-b", PF1)])
def test_interface_is_on_the_pf_near_the_gpu_that_kubelet_chose(
    machine: Machine, kubelet: FakePodResources, device_id: str, pf: PciAddress
) -> None:
    annotations = annotated(machine, 1, near="gpu", min_tx_rate=LINK_MBPS)
    kubelet.allocate("default", "p", NVIDIA, device_id)

    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", FABRIC, annotations=annotations)
        assert answer.exit_status == 0, answer
        assert pfs(runtime) == [pf]
        assert (await runtime.ask("DEL", FABRIC)).exit_status == 0

    in_turn(machine, scenario, key=KEY)
    assert machine.is_pristine()


def test_an_interface_per_gpu_is_in_the_order_of_gpus(machine: Machine, kubelet: FakePodResources) -> None:
    annotations = annotated(machine, 2, per="gpu", min_tx_rate=LINK_MBPS)
    kubelet.allocate("default", "p", NVIDIA, "GPU-b", "GPU-a")

    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", FABRIC, annotations=annotations)
        assert answer.exit_status == 0, answer
        assert pfs(runtime) == [PF0, PF1]

    in_turn(machine, scenario, key=KEY)


def gpu_variables(machine: Machine) -> list[str]:
    """`K8S_RDMA_GPUS` of a pod's only slot."""
    (path,) = (machine.directory / "host").rglob("k8s-rdma.io-slot_*.json")
    _, [device] = decode_specification(path.read_bytes())
    return [text.removeprefix(GPUS) for text in device.container_edits.env if text.startswith(GPUS)]


@pytest.mark.parametrize("key", [KEY, None])
def test_containers_get_variables_that_match_interfaces_and_gpus(
    machine: Machine, kubelet: FakePodResources, key: PlacementKeys | None
) -> None:
    """After a restart of the agent as well, which knows it from its ledger."""
    annotations = annotated(machine, 2, per="gpu", min_tx_rate=LINK_MBPS)
    if key is None:
        del annotations[PLACEMENT_ANNOTATION]
    kubelet.allocate("default", "p", NVIDIA, "GPU-b", "GPU-a")
    kubelet.allocate("default", "p", SLOT, "slot-0")
    machine.resources = (ExactResource(name=SLOT),)

    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", FABRIC, annotations=annotations)
        assert answer.exit_status == 0, answer
        (receipt,) = runtime.node.ledger.receipts.values()
        first, second = (interface.pci for interface in receipt.interfaces)
        assert pfs(runtime) == [PF0, PF1]
        assert gpu_variables(machine) == [f"GPU-a=eth0/{first},GPU-b=eth1/{second}"]

    in_turn(machine, scenario, key=key)
    (before,) = gpu_variables(machine)

    async def restarted(runtime: Runtime) -> None:
        shutil.rmtree(machine.directory / "host")
        machine.specifications.devices.restore(runtime.node.ledger)
        assert gpu_variables(machine) == [before]

    in_turn(machine, restarted, key=key)


def test_share_of_a_gpu_is_listed_by_the_first_id_of_the_pod(
    machine: Machine, kubelet: FakePodResources
) -> None:
    kubelet.allocate("default", "p", NVIDIA, "GPU-b::3", "GPU-b::1")
    kubelet.allocate("default", "p", SLOT, "slot-0")
    machine.resources = (ExactResource(name=SLOT),)
    annotations = requests({"near": "gpu"}, {"near": "gpu"}, {}) | {TOPOLOGY_ANNOTATION: "same-pcie-switch"}

    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", FABRIC, annotations=annotations)
        assert answer.exit_status == 0, answer
        (receipt,) = runtime.node.ledger.receipts.values()
        assert [interface.gpu for interface in receipt.interfaces] == ["GPU-b::1", "GPU-b::1", ""]
        first, second, _ = (interface.pci for interface in receipt.interfaces)
        assert gpu_variables(machine) == [f"GPU-b::1=eth0/{first},GPU-b::1=eth1/{second}"]

    in_turn(machine, scenario)


def test_gpus_of_unknown_places_are_listed_without_an_interface(
    machine: Machine, kubelet: FakePodResources
) -> None:
    kubelet.allocate("default", "p", NVIDIA, "MIG-elsewhere")
    kubelet.allocate("default", "p", SLOT, "slot-0")
    machine.resources = (ExactResource(name=SLOT),)

    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", FABRIC, annotations=requests({"near": "gpu"}))
        assert answer.exit_status == 0, answer
        assert gpu_variables(machine) == []

    in_turn(machine, scenario)


def test_pod_without_a_placement_has_an_interface_per_gpu_as_well(
    machine: Machine, kubelet: FakePodResources
) -> None:
    kubelet.allocate("default", "p", NVIDIA, "GPU-a", "GPU-b")
    annotations = requests({"per": "gpu"}) | {TOPOLOGY_ANNOTATION: "same-pcie-switch"}

    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", FABRIC, annotations=annotations)
        assert answer.exit_status == 0, answer
        assert pfs(runtime) == [PF0, PF1]

    in_turn(machine, scenario)


def test_number_of_gpus_that_was_not_placed_is_refused(machine: Machine, kubelet: FakePodResources) -> None:
    annotations = annotated(machine, 2, per="gpu")
    kubelet.allocate("default", "p", NVIDIA, "GPU-a")

    async def scenario(runtime: Runtime) -> None:
        code, message = failure(await runtime.ask("ADD", FABRIC, annotations=annotations))
        assert code == STATUS[Reason.DEVICES_DIFFER].cni
        assert "was placed with 2 interfaces" in str(message)

    in_turn(machine, scenario)


def test_gpus_with_an_unknown_one_among_them_are_near_no_pf(
    machine: Machine, kubelet: FakePodResources
) -> None:
    annotations = annotated(machine, 2, per="gpu")
    kubelet.allocate("default", "p", NVIDIA, "GPU-a", "MIG-elsewhere")

    async def scenario(runtime: Runtime) -> None:
        _, message = failure(await runtime.ask("ADD", FABRIC, annotations=annotations))
        assert "is not known" in str(message)

    in_turn(machine, scenario, key=KEY)


@pytest.mark.parametrize(
    ("topology", "starts"), [("same-pcie-switch", False), ("same-numa", False), ("prefer", True)]
)
def test_gpus_of_unknown_places_are_near_no_pf(
    machine: Machine, kubelet: FakePodResources, topology: str, *, starts: bool
) -> None:
    annotations = annotated(machine, 1, topology)
    kubelet.allocate("default", "p", NVIDIA, "MIG-elsewhere")

    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", FABRIC, annotations=annotations)
        assert (answer.exit_status == 0) is starts, answer
        if not starts:
            code, message = failure(answer)
            assert code == STATUS[Reason.NO_SUCH_PF].cni
            assert "is not known" in str(message)

    in_turn(machine, scenario, key=KEY)


def test_pod_is_tried_again_while_kubelet_does_not_say_its_gpus(
    machine: Machine, kubelet: FakePodResources
) -> None:
    annotations = annotated(machine, 1)
    kubelet.silent = True

    async def scenario(runtime: Runtime) -> None:
        code, _ = failure(await runtime.ask("ADD", FABRIC, annotations=annotations))
        assert code == STATUS[Reason.KUBELET_FAILURE].cni
        kubelet.silent = False
        kubelet.allocate("default", "p", NVIDIA, "GPU-b")
        assert (await runtime.ask("ADD", FABRIC, annotations=annotations)).exit_status == 0
        assert pfs(runtime) == [PF1]

    in_turn(machine, scenario, key=KEY)


class MachineNamespaces:
    """For `linux.netns.Namespaces`: the pretended machine's, by path."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def find(self, path: str) -> NetnsRef | None:
        return next((netns for netns in self._machine.sandboxes.values() if netns.path == path), None)


def rebuilt(machine: Machine, cached: CachedAttachment, **devices: HeldDevices) -> RebuiltAttachment:
    """devices: by pods' names, kubelet's answer."""
    rebuild = Rebuild(
        node=NodeName("w1"),
        kernel=machine.kernel,
        namespaces=cast("Any", MachineNamespaces(machine)),
        policy=Policy(allow_unplaced=True),
        boot_id="boot-1",
        cni_path="/opt/cni/bin",
        devices={("default", name): of_pod for name, of_pod in devices.items()},
    )
    [outcome] = rebuild.attachments([cached])
    return outcome


@pytest.mark.parametrize("placed", [True, False])
def test_rebuilt_ledger_has_an_interface_per_gpu_as_the_pods_add_had(
    machine: Machine, kubelet: FakePodResources, *, placed: bool
) -> None:
    annotations = annotated(machine, 2, per="gpu", min_tx_rate=1000, max_tx_rate=2000)
    if not placed:
        del annotations[PLACEMENT_ANNOTATION]
    kubelet.allocate("default", "p", NVIDIA, "GPU-a", "GPU-b")

    async def scenario(runtime: Runtime) -> None:
        answer = await runtime.ask("ADD", FABRIC, annotations=annotations)
        (receipt,) = runtime.node.ledger.receipts.values()
        [netns] = machine.sandboxes.values()
        cached = CachedAttachment(
            kind="cniCacheV1",
            container_id="c1",
            config=json.dumps(FABRIC | {"capabilities": {ANNOTATIONS: True}}).encode(),
            if_name="eth0",
            network_name="net",
            netns=netns.path,
            cni_args=(("K8S_POD_NAMESPACE", "default"), ("K8S_POD_NAME", "p"), ("K8S_POD_UID", "uid-p")),
            capability_args={ANNOTATIONS: Raw(json.dumps(annotations).encode())},
            result=Raw(json.dumps(answer.document).encode()),
        )
        devices = {} if placed else await PodDeviceLookup(kubelet).all_devices()
        outcome = rebuilt(machine, cached, **{name: held for (_, name), held in devices.items()})
        assert outcome.complete, outcome.message
        assert outcome.receipt is not None
        assert [
            (made.ifname, made.vf, made.entry, made.min_tx_rate_mbps, made.max_tx_rate_mbps)
            for made in outcome.receipt.interfaces
        ] == [
            (made.ifname, made.vf, made.entry, made.min_tx_rate_mbps, made.max_tx_rate_mbps)
            for made in receipt.interfaces
        ]
        if not placed:
            unknown = rebuilt(machine, cached)
            assert not unknown.complete
            assert "pod default/p: neither a placement nor kubelet says how many" in unknown.message
            assert unknown.receipt is not None
            assert len(unknown.receipt.interfaces) == 2

    in_turn(machine, scenario)
