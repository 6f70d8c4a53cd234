"""What containers are told of their devices."""

from __future__ import annotations

from k8s_rdma.core.devices.rdma_devices import NamedDevice, device_annotations, device_variables

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


def test_no_devices_need_no_variables():
    assert dict(device_variables("k8s-rdma.io/slot", [], hints=True)) == {}


def test_annotations_of_two_resources_have_different_names():
    assert dict(device_annotations("tencent.com/rdma", ["mlx5_1", "mlx5_2"])) == {
        "devices.k8s-rdma.io/tencent.com_rdma": "mlx5_1,mlx5_2"
    }
    assert device_annotations("rdma/a", ["x"]).keys() != device_annotations("rdma/b", ["x"]).keys()
