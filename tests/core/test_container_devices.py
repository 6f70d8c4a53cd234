"""Variables, annotations and hints of a container's devices."""

from __future__ import annotations

import re
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.devices.container_devices import (
    MAX_GPU_ID_BYTES,
    NamedDevice,
    device_annotations,
    device_variables,
)

TWO = (NamedDevice(rdma="mlx5_10", pci="0000:03:00.4"), NamedDevice(rdma="mlx5_1", pci="0000:03:00.2"))


def test_variables_name_devices_in_their_order():
    assert dict(device_variables("tencent.com/rdma", TWO)) == {
        "PCIDEVICE_TENCENT_COM_RDMA": "0000:03:00.4,0000:03:00.2",
        "K8S_RDMA_DEVICES_TENCENT_COM_RDMA": "mlx5_10,mlx5_1",
    }


def test_variables_of_two_resources_have_different_names():
    one, other = device_variables("k8s-rdma.io/slot", TWO), device_variables("tencent.com/rdma-shared", TWO)
    assert "PCIDEVICE_K8S_RDMA_IO_SLOT" in one
    assert "PCIDEVICE_TENCENT_COM_RDMA_SHARED" in other
    assert one.keys().isdisjoint(other)


def test_hints_match_names_whole_so_that_mlx5_1_is_not_mlx5_10():
    hints = device_variables("tencent.com/rdma", TWO, hints=True)
    assert hints["NCCL_IB_HCA"] == "=mlx5_10,mlx5_1"
    assert hints["UCX_NET_DEVICES"] == "mlx5_10:1,mlx5_1:1"


def test_function_that_a_program_drives_has_no_name_and_no_hint():
    found = device_variables("k8s-rdma.io/slot", [NamedDevice(rdma="", pci="0000:03:00.2")], hints=True)
    assert dict(found) == {"PCIDEVICE_K8S_RDMA_IO_SLOT": "0000:03:00.2"}


def test_soft_device_has_no_address():
    found = device_variables("k8s-rdma.io/slot", [NamedDevice(rdma="rxe0")])
    assert dict(found) == {"K8S_RDMA_DEVICES_K8S_RDMA_IO_SLOT": "rxe0"}


def test_devices_that_belong_to_gpus_are_paired_with_these():
    devices = (
        NamedDevice(rdma="mlx5_10", pci="0000:03:00.4", gpu="GPU-5f1c::3", interface="rdma0"),
        NamedDevice(rdma="", pci="0000:03:00.2", gpu="card1-0", interface="vfio1"),
        NamedDevice(rdma="mlx5_3", pci="0000:03:00.3", interface="rdma2"),
    )
    found = device_variables("k8s-rdma.io/slot", devices)
    assert found["K8S_RDMA_GPUS"] == "GPU-5f1c::3=rdma0/mlx5_10,card1-0=vfio1/0000:03:00.2"


@given(st.text(), st.text(min_size=1, max_size=15))
def test_no_id_of_a_gpu_and_no_interface_name_ends_an_entry(gpu: str, interface: str) -> None:
    devices = [
        NamedDevice(rdma="mlx5_0", gpu=gpu, interface=interface),
        NamedDevice(rdma="mlx5_1", gpu="GPU-b", interface="rdma1"),
    ]
    value = device_variables("k8s-rdma.io/slot", devices)["K8S_RDMA_GPUS"]
    assert re.fullmatch(r"[\w.~:/=,%-]+", value, re.ASCII)
    *named, other = [entry.split("=") for entry in value.split(",")]
    assert other == ["GPU-b", "rdma1/mlx5_1"]
    assert [unquote(text) for entry in named for text in entry] == (
        [gpu, f"{interface}/mlx5_0"] if 0 < len(gpu.encode()) <= MAX_GPU_ID_BYTES else []
    )


def test_id_of_a_gpu_that_is_too_long_for_an_environment_is_left_out():
    long = NamedDevice(rdma="mlx5_0", gpu="g" * (MAX_GPU_ID_BYTES + 1), interface="rdma0")
    assert "K8S_RDMA_GPUS" not in device_variables("k8s-rdma.io/slot", [long])


def test_no_devices_need_no_variables():
    assert dict(device_variables("k8s-rdma.io/slot", [], hints=True)) == {}


def test_annotations_of_two_resources_have_different_names():
    assert dict(device_annotations("tencent.com/rdma", ["mlx5_1", "mlx5_2"])) == {
        "devices.k8s-rdma.io/tencent.com_rdma": "mlx5_1,mlx5_2"
    }
    assert device_annotations("rdma/a", ["x"]).keys() != device_annotations("rdma/b", ["x"]).keys()
