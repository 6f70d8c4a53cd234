"""Devices that kubelet allocated, and the names of slots."""

from __future__ import annotations

from k8s_rdma.core.devices.pod_devices import (
    MEMLOCK_UNLIMITED,
    ContainerDevices,
    PodDevices,
    SlotInUse,
    format_memlock,
    slot_device,
)

RDMA, GPU = "a.example/rdma", "nvidia.com/gpu"


def test_devices_of_a_resource_are_in_the_order_of_their_numbers_in_whichever_order_kubelet_has_them() -> (
    None
):
    containers = (("mlx5_10", "mlx5_2"), ("0000:03:00.4", "mlx5_2"))
    devices = tuple(ContainerDevices(container="c", resource=RDMA, ids=ids) for ids in containers)
    gpu = ContainerDevices(container="c", resource=GPU, ids=("mlx5_1",))
    for listed in ((*devices, gpu), (gpu, *devices[::-1])):
        pod = PodDevices(namespace="default", name="p", devices=listed)
        assert pod.device_ids(RDMA) == ("0000:03:00.4", "mlx5_2", "mlx5_10")


def test_devices_with_equal_numbers_have_one_order() -> None:
    for ids in (("vf01", "vf1"), ("vf1", "vf01")):
        devices = (ContainerDevices(container="c", resource=RDMA, ids=ids),)
        assert PodDevices(namespace="default", name="p", devices=devices).device_ids(RDMA) == ("vf01", "vf1")


def test_slot_stands_for_one_device_of_its_pool_or_for_all_of_the_pod() -> None:
    own = SlotInUse(resource=RDMA, id="mlx5_2", pool=RDMA)
    assert (own.device, own.one_device) == (slot_device(RDMA, "mlx5_2"), "mlx5_2")
    assert SlotInUse(resource=f"{RDMA}-shared", id="slot-0", pool=RDMA).one_device == ""


def test_locked_memory_without_a_limit_is_written_as_a_word() -> None:
    assert [format_memlock(amount) for amount in (MEMLOCK_UNLIMITED, 65_536)] == ["unlimited", "65536"]
