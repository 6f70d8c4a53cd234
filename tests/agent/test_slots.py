"""Slots of a pod: the specifications of its containers' devices, from ADD to DEL and beyond."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

from agent.machine import Machine, asks, call
from cdi_documents import decode_specification
from factories import PF0
from fakes.nodes import FakeNodes, FakePodResources
from k8s_rdma.config.devices import ExactResource, MountResource
from k8s_rdma.core.namespace_policy import NamespacePolicies, NamespacePolicy
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.placement_keys import PlacementKeys

if TYPE_CHECKING:
    from pathlib import Path

SLOT = "k8s-rdma.io/slot"
RDMA_CM = "/dev/infiniband/rdma_cm"
ON_F0: dict[str, Any] = {"min_tx_rate": 10, "max_tx_rate": 20}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path, rdma=True)
    made.kubelet, made.resources = FakePodResources(), (ExactResource(name=SLOT), MountResource())
    return made


def told(machine: Machine) -> dict[str, Any]:
    """Return the edits of a container by each slot."""
    found = {}
    for path in (machine.directory / "host").rglob("k8s-rdma.io-slot_*.json"):
        kind, [device] = decode_specification(path.read_bytes())
        assert kind == "k8s-rdma.io/slot"
        assert path.name == f"k8s-rdma.io-slot_{device.name}.json"
        found[device.name] = device.container_edits
    return found


def paths(machine: Machine, slot: str) -> set[str]:
    return {node.path for node in told(machine)[f"k8s-rdma.io_slot.{slot}"].device_nodes}


def nodes(machine: Machine, *interfaces: Any) -> set[str]:
    """Those of these interfaces as the machine has them now, and the connection manager's."""
    now = FakeNodes(machine.hardware)
    return {each.path for it in interfaces for each in now.of_vf(it.pci, it.rdma_device)} | {RDMA_CM}


async def add(verbs: Any, machine: Machine, pod: str = "p", network: str = "net", **more: Any) -> Any:
    interfaces = more.pop("interfaces", [{}])
    env = call("ADD", more.get("container", f"c-{pod}"), f"uid-{pod}", more.get("ifname", "eth0"), pod)
    machine.sandbox(env.container_id)
    netns = machine.sandboxes[machine.sandbox(env.container_id)]
    annotations = asks(*interfaces) | more.get("annotations", {})
    return await verbs.add(env, netns, machine.stdin(annotations, name=network))


async def delete(verbs: Any, pod: str = "p", network: str = "net", ifname: str = "eth0") -> None:
    await verbs.delete(call("DEL", f"c-{pod}", ifname=ifname), network)


def test_slot_has_the_devices_of_the_pods_vfs_as_they_are_after_the_move(machine: Machine) -> None:
    async def scenario() -> None:
        machine.kubelet.allocate("default", "p", SLOT, "slot-3")
        before = {each.path for each in FakeNodes(machine.hardware).of_devices(["f0r0"])}
        with machine.running() as (_, verbs):
            given = await add(verbs, machine)
            assert paths(machine, "slot-3") == nodes(machine, *given.receipt.interfaces)
            assert not paths(machine, "slot-3") & before
            await delete(verbs)
            assert told(machine) == {}
            assert machine.is_pristine()

    asyncio.run(scenario())


def test_slot_names_its_devices_in_variables_also_without_rdma(machine: Machine) -> None:
    async def scenario() -> None:
        machine.rdma = False
        machine.boot()
        machine.kubelet.allocate("default", "p", SLOT, "slot-0")
        with machine.running() as (_, verbs):
            given = await add(verbs, machine)
            [edits] = told(machine).values()
            assert edits.device_nodes == ()
            assert edits.env == (f"PCIDEVICE_K8S_RDMA_IO_SLOT={given.receipt.interfaces[0].pci}",)

    asyncio.run(scenario())


@pytest.mark.parametrize(("annotation", "hinted"), [("required", True), (" required\n", True), ("", False)])
def test_pod_may_ask_for_variables_of_nccl(machine: Machine, annotation: str, hinted: bool) -> None:
    async def scenario() -> None:
        machine.kubelet.allocate("default", "p", SLOT, "slot-0")
        with machine.running() as (_, verbs):
            given = await add(verbs, machine, annotations={"k8s-rdma.io/nccl": annotation})
            [edits] = told(machine).values()
            names = [variable.partition("=")[0] for variable in edits.env]
            assert ("NCCL_IB_HCA" in names) == ("UCX_NET_DEVICES" in names) == hinted
            if hinted:
                assert f"NCCL_IB_HCA=={given.receipt.interfaces[0].rdma_device}" in edits.env

    asyncio.run(scenario())


HOOK = "/opt/cni/bin/k8s-rdma-cni"
GI = 1 << 30


@pytest.mark.parametrize(
    ("annotation", "policy", "arguments"),
    [
        (None, None, [str(8 * GI)]),
        ("", None, [str(8 * GI)]),
        ("unlimited", None, ["unlimited", "required"]),
        (" 16Gi\n", None, [str(16 * GI), "required"]),
        ("0", None, None),
        (None, 2 * GI, [str(2 * GI)]),
        ("1Gi", 2 * GI, [str(GI), "required"]),
        (None, 0, None),
    ],
)
def test_slot_lets_its_container_lock_memory_by_pod_policy_and_configuration(
    machine: Machine, annotation: str | None, policy: int | None, arguments: list[str] | None
) -> None:
    async def scenario() -> None:
        machine.memlock, machine.memlock_hook = 8 * GI, HOOK
        machine.policies = NamespacePolicies(
            (NamespacePolicy(name="a", namespaces=("*",), max_memlock=policy),)
        )
        machine.kubelet.allocate("default", "p", SLOT, "slot-0")
        annotations = {} if annotation is None else {"k8s-rdma.io/memlock": annotation}
        with machine.running() as (_, verbs):
            await add(verbs, machine, annotations=annotations)
            [edits] = told(machine).values()
            assert edits.device_nodes
            hooks = [(hook.hook_name, hook.path, list(hook.args)) for hook in edits.hooks]
            expected = ("createRuntime", HOOK, ["k8s-rdma-cni", "memlock", *(arguments or [])])
            assert hooks == ([expected] if arguments else [])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("annotation", "reason", "said"),
    [
        ("much", Reason.MALFORMED_ANNOTATION, "k8s-rdma.io/memlock: much is neither bytes, such as 16Gi"),
        ("-1", Reason.MALFORMED_ANNOTATION, "is neither bytes"),
        ("1m", Reason.MALFORMED_ANNOTATION, "is neither bytes"),
        ("9Ei", Reason.MALFORMED_ANNOTATION, "is neither bytes"),
        ("2Gi", Reason.NOT_ALLOWED, "may not have memlock 2147483648: policy a allows at most 1073741824"),
    ],
)
@pytest.mark.parametrize("signed", [False, True])
def test_locked_memory_that_cannot_be_had_is_refused(
    machine: Machine, annotation: str, reason: Reason, said: str, signed: bool
) -> None:
    async def scenario() -> None:
        machine.memlock_hook = HOOK
        machine.policies = NamespacePolicies((NamespacePolicy(name="a", namespaces=("*",), max_memlock=GI),))
        machine.kubelet.allocate("default", "p", SLOT, "slot-0")
        annotations = {"k8s-rdma.io/memlock": annotation}
        keys = PlacementKeys.shared(b"k" * 32) if signed else None
        if signed:
            placement = Placement(
                node=NodeName("w1"),
                interfaces=(PlacedInterface(pf=PF0),),
            )
            annotations[PLACEMENT_ANNOTATION] = encode(placement, PodUid("uid-p"), keys)
        with machine.running(keys) as (_, verbs):
            with pytest.raises(K8sRdmaError, match=re.escape(said)) as refused:
                await add(verbs, machine, annotations=annotations)
            assert refused.value.reason is reason
            assert told(machine) == {}

    asyncio.run(scenario())


def test_pod_that_requires_locked_memory_does_not_start_if_no_executable_can_raise_it(
    machine: Machine,
) -> None:
    async def scenario() -> None:
        machine.memlock = 8 * GI
        for pod in ("p", "q"):
            machine.kubelet.allocate("default", pod, SLOT, f"slot-{pod}")
        with machine.running() as (_, verbs):
            await add(verbs, machine, "p")
            [edits] = told(machine).values()
            assert edits.hooks == ()
            with pytest.raises(
                K8sRdmaError, match=r"k8s-rdma.io/memlock: there is no k8s-rdma-cni in cniPath"
            ):
                await add(verbs, machine, "q", annotations={"k8s-rdma.io/memlock": "1Gi"})

    asyncio.run(scenario())


def test_every_container_of_a_pod_has_a_slot_with_all_of_its_devices(machine: Machine) -> None:
    async def scenario() -> None:
        machine.kubelet.allocate("default", "p", SLOT, "slot-0", container="a")
        machine.kubelet.allocate("default", "p", SLOT, "slot-7", container="b")
        with machine.running() as (_, verbs):
            given = await add(verbs, machine)
            wanted = nodes(machine, *given.receipt.interfaces)
            assert paths(machine, "slot-0") == paths(machine, "slot-7") == wanted

    asyncio.run(scenario())


def test_function_for_a_program_is_in_the_slot_by_its_group(machine: Machine) -> None:
    async def scenario() -> None:
        machine.kubelet.allocate("default", "p", SLOT, "slot-0")
        with machine.running() as (_, verbs):
            given = await add(verbs, machine, interfaces=[{"driver": "vfio-pci"}])
            group = FakeNodes(machine.hardware).vfio_group(given.receipt.interfaces[0].pci)
            assert paths(machine, "slot-0") == {"/dev/vfio/vfio", group, RDMA_CM}

    asyncio.run(scenario())


def test_later_attachment_of_the_sandbox_adds_its_devices_and_its_end_takes_them_away(
    machine: Machine,
) -> None:
    async def scenario() -> None:
        machine.kubelet.allocate("default", "p", SLOT, "slot-0")
        both = {
            "interfaces": [{"network": "a"}, {"network": "b"}],
            "annotations": {"k8s.v1.cni.cncf.io/networks": "a, b"},
        }
        with machine.running() as (_, verbs):
            first = await add(verbs, machine, network="a", ifname="net1", **both)
            assert paths(machine, "slot-0") == nodes(machine, *first.receipt.interfaces)
            second = await add(verbs, machine, network="b", ifname="net2", **both)
            everything = (*first.receipt.interfaces, *second.receipt.interfaces)
            assert paths(machine, "slot-0") == nodes(machine, *everything)
            await delete(verbs, network="a", ifname="net1")
            assert paths(machine, "slot-0") == nodes(machine, *second.receipt.interfaces)
            await delete(verbs, network="b", ifname="net2")
            assert told(machine) == {}

    asyncio.run(scenario())


def test_slot_that_went_on_to_another_pod_stays_that_ones_at_the_old_ones_end(machine: Machine) -> None:
    async def scenario() -> None:
        machine.kubelet.allocate("default", "old", SLOT, "slot-0")
        machine.kubelet.allocate("default", "new", SLOT, "slot-0")
        with machine.running() as (_, verbs):
            await add(verbs, machine, "old")
            given = await add(verbs, machine, "new")
            wanted = nodes(machine, *given.receipt.interfaces)
            assert paths(machine, "slot-0") == wanted
        with machine.running() as (node, verbs):  # and by an agent that has only the ledger to go by
            await delete(verbs, "old")
            assert paths(machine, "slot-0") == wanted
            assert [len(each.slots) for each in node.ledger.receipts.values()] == [1]
            await delete(verbs, "new")
            assert told(machine) == {}

    asyncio.run(scenario())


def test_no_device_of_the_former_holder_is_listed_while_the_next_one_is_attached(machine: Machine) -> None:
    async def scenario() -> None:
        machine.kubelet.allocate("default", "old", SLOT, "slot-0")
        machine.kubelet.allocate("default", "new", SLOT, "slot-0")
        seen = []

        async def look() -> None:
            seen.append(told(machine))

        with machine.running() as (_, verbs):
            await add(verbs, machine, "old")
            machine.on_prepared = look  # type: ignore[method-assign]
            await add(verbs, machine, "new")
        assert seen == [{}]

    asyncio.run(scenario())


def test_check_reports_a_slot_that_no_longer_has_the_devices(machine: Machine) -> None:
    async def scenario() -> None:
        machine.kubelet.allocate("default", "p", SLOT, "slot-0")
        with machine.running() as (_, verbs):
            await add(verbs, machine)
            conf = machine.stdin(asks({}))
            await verbs.check(call("CHECK", "c-p"), conf)
            [path] = (machine.directory / "host").rglob("k8s-rdma.io-slot_*.json")
            path.unlink()
            with pytest.raises(K8sRdmaError, match=r"slot-0\.json does not tell the devices") as refused:
                await verbs.check(call("CHECK", "c-p"), conf)
            assert refused.value.reason is Reason.ALTERED

    asyncio.run(scenario())


def test_restoring_writes_removed_files_renews_changed_ones_and_removes_stale_ones(
    machine: Machine,
) -> None:
    async def scenario() -> None:
        for pod, slot in (("p", "slot-0"), ("q", "slot-1")):
            machine.kubelet.allocate("default", pod, SLOT, slot)
        with machine.running() as (node, verbs):
            p, q = await add(verbs, machine, "p"), await add(verbs, machine, "q")
            directory = machine.directory / "host" / "var" / "run" / "cdi"
            (directory / "k8s-rdma.io-slot_k8s-rdma.io_slot.slot-0.json").unlink()
            stray = directory / "k8s-rdma.io-slot_k8s-rdma.io_slot.slot-9.json"
            stray.write_text("{}")
            foreign = directory / "vendor.com-slot.json"
            foreign.write_text("{}")
            reset = machine.hardware.functions[q.receipt.interfaces[0].vf]
            machine.hardware.move_rdma(reset, reset.rdma_place)  # as after a reset of the device
            machine.specifications.devices.restore(node.ledger)
            assert paths(machine, "slot-0") == nodes(machine, *p.receipt.interfaces)
            assert paths(machine, "slot-1") == nodes(machine, *q.receipt.interfaces)
            assert foreign.exists()
            assert not stray.exists()

    asyncio.run(scenario())
