"""The devices that kubelet gave to pods: asked for if they matter, and mapped to configured resources."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agent.machine import Machine, call
from agent.test_slots import SLOT, add, machine
from factories import PF0, interface
from k8s_rdma.agent.cni.kubelet_devices import held_devices
from k8s_rdma.config.devices import ExclusiveResource, MountResource
from k8s_rdma.core.devices.pod_devices import ContainerDevices, PodDevices, SlotInUse
from k8s_rdma.errors import K8sRdmaError, Reason

__all__ = ["machine"]


def test_add_is_tried_again_and_gives_no_interface_if_kubelet_does_not_answer(
    machine: Machine,
) -> None:
    async def scenario() -> None:
        machine.kubelet.silent = True
        with machine.running() as (node, verbs):
            with pytest.raises(K8sRdmaError, match="does not say what pods hold") as refused:
                await add(verbs, machine)
            assert refused.value.reason is Reason.KUBELET_FAILURE
            assert not node.ledger.receipts
            assert machine.is_pristine()
            assert machine.kubelet.questions == 1

    asyncio.run(scenario())


def test_kubelet_is_not_called_for_a_pod_that_cannot_hold_devices(machine: Machine) -> None:
    async def scenario() -> None:
        machine.kubelet.silent = True
        with machine.running() as (_, verbs):
            conf = machine.stdin({}, delegate={"type": "missing"})
            netns = machine.hardware.create_namespace()
            with pytest.raises(K8sRdmaError, match="missing"):
                await verbs.add(call("ADD"), netns, conf)
        machine.resources = (MountResource(),)
        with machine.running() as (_, verbs):
            assert (await add(verbs, machine)).receipt.slots == ()
        assert machine.kubelet.questions == 0

    asyncio.run(scenario())


def test_id_that_is_no_name_of_a_cdi_device_refuses_the_add(machine: Machine) -> None:
    async def scenario() -> None:
        machine.kubelet.allocate("default", "p", SLOT, "../../etc/passwd")
        with machine.running() as (node, verbs):
            with pytest.raises(K8sRdmaError, match="CDI"):
                await add(verbs, machine)
            assert not node.ledger.receipts

    asyncio.run(scenario())


def test_exclusive_slot_is_its_one_device_and_a_share_is_all_that_the_pod_holds() -> None:
    resource = ExclusiveResource(name="x.io/rdma", share=2, hints=True)
    devices = (
        ContainerDevices(container="a", resource="x.io/rdma", ids=("mlx5_3", "mlx5_2")),
        ContainerDevices(container="b", resource="x.io/rdma-shared", ids=("slot-1",)),
        ContainerDevices(container="b", resource="others.io/gpu", ids=("0",)),
    )
    held = held_devices(PodDevices(namespace="default", name="p", devices=devices), [resource])
    assert held.exclusive == {"x.io/rdma": ("mlx5_2", "mlx5_3")}
    one, other, share = held.slots
    assert [one.device, other.device] == ["x.io_rdma.mlx5_2", "x.io_rdma.mlx5_3"]
    assert share.device == "x.io_rdma-shared.slot-1"
    ours = replace(interface(PF0, 1), pool="x.io/rdma", rdma_device="mlx5_2")
    next_to_it = replace(ours, rdma_device="mlx5_3")
    by_annotation = replace(ours, pool="", rdma_device="mlx5_9")
    every = (ours, next_to_it, by_annotation)
    assert [each for each in every if each.uses_slot(one)] == [ours]
    assert [each for each in every if each.uses_slot(share)] == [ours, next_to_it]


def test_exclusive_slot_of_a_vf_without_rdma_device_goes_by_its_pci_address() -> None:
    ours = replace(interface(PF0, 1), pool="x.io/rdma", rdma_device="")
    next_to_it = replace(interface(PF0, 2), pool="x.io/rdma", rdma_device="", pci="0000:3b:00.4")
    slot = SlotInUse(resource="x.io/rdma", id=ours.pci, pool="x.io/rdma")
    assert [each for each in (ours, next_to_it) if each.uses_slot(slot)] == [ours]


@pytest.mark.parametrize(("cdi", "slots"), [(None, 1), (True, 1), (False, 0)])
def test_exclusive_device_has_a_slot_unless_its_nodes_come_otherwise(cdi: bool | None, slots: int) -> None:
    devices = (ContainerDevices(container="a", resource="x.io/rdma", ids=("mlx5_2",)),)
    held = PodDevices(namespace="default", name="p", devices=devices)
    assert len(held_devices(held, [ExclusiveResource(name="x.io/rdma", cdi=cdi)]).slots) == slots
