"""Where GPUs are, on machines made from documentation: `gpus/`."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fakes.recorded_machine import RecordedMachine, read_machine
from k8s_rdma.core.devices.pod_devices import Neighbour
from k8s_rdma.core.inventory import Gpu
from k8s_rdma.linux.gpus import Gpus
from k8s_rdma.linux.sysfs import Sysfs

FOLDER = Path(__file__).with_name("gpus")
NVIDIA = "nvidia.com/gpu"
AMD = "amd.com/gpu"
INTEL = "gpu.intel.com/i915"


def gpus(name, nvidia="h100"):
    sysfs = RecordedMachine(read_machine(FOLDER / f"{name}.yaml")).sysfs
    return Gpus(sysfs, Sysfs(FOLDER / nvidia))


def below(*bridges, numa_node):
    return Neighbour(pcie_path=tuple(f"0000:{each}" for each in bridges), numa_node=numa_node)


GPU_1B = below("15:01.0", "16:00.0", "17:02.0", numa_node=0)
GPU_43 = below("3b:01.0", "3c:00.0", "3d:02.0", numa_node=0)
GPU_9D = below("97:01.0", "98:00.0", "99:02.0", numa_node=1)
AMD_05 = below("00:01.1", "01:00.0", "02:00.0", numa_node=0)
AMD_85 = below("80:01.1", "81:00.0", "82:00.0", numa_node=1)
FLEX = below("40:01.0", "41:00.0", "42:01.0", numa_node=0)


@pytest.mark.parametrize(
    ("resource", "device_id", "place"),
    [
        (NVIDIA, "GPU-1a2b3c4d-5e6f-7a8b-9c0d-1e2f3a4b5c6d", GPU_1B),
        (NVIDIA, "GPU-2A2B3C4D-5E6F-7A8B-9C0D-2E2F3A4B5C6D", GPU_43),
        ("nvidia.com/gpu.shared", "GPU-3a2b3c4d-5e6f-7a8b-9c0d-3e2f3a4b5c6d::7", GPU_9D),
        ("nvidia.com/mig-1g.10gb", "MIG-GPU-3a2b3c4d-5e6f-7a8b-9c0d-3e2f3a4b5c6d/1/0", GPU_9D),
        (NVIDIA, "0", GPU_1B),
        (NVIDIA, "2", GPU_9D),
        (NVIDIA, "nvidia0", GPU_43),
        (NVIDIA, "nvidia2/gi1", GPU_1B),
        (NVIDIA, "0000:1b:00.0", GPU_1B),
        (NVIDIA, "0000:1B:00.0", GPU_1B),
        (NVIDIA, "card1", GPU_1B),
    ],
)
def test_gpu_of_nvidia_is_found_by(resource, device_id, place):
    assert gpus("h100").places([(resource, device_id)]) == (place,)


@pytest.mark.parametrize(
    ("resource", "device_id", "place"),
    [
        (AMD, "card1", AMD_05),
        (AMD, "0000:85:00.0", AMD_85),
        (INTEL, "card3-0", FLEX),
        (INTEL, "card3-17", FLEX),
        ("gpu.intel.com/xe", "0000:43:00.0-0x56c0", FLEX),
    ],
)
def test_gpu_of_others_is_found_by(resource, device_id, place):
    assert gpus("mi300x").places([(resource, device_id)]) == (place,)


@pytest.mark.parametrize(
    ("resource", "device_id"),
    [
        (NVIDIA, "GPU-9a2b3c4d-5e6f-7a8b-9c0d-1e2f3a4b5c6d"),
        (NVIDIA, "MIG-1a2b3c4d-5e6f-7a8b-9c0d-1e2f3a4b5c6d"),
        (NVIDIA, "4"),
        (NVIDIA, "nvidia7"),
        (NVIDIA, ""),
        ("example.com/fpga", "0"),
        ("example.com/token", "slot-3"),
        ("intel.com/sriov", "0000:18:00.0"),
        (NVIDIA, "0000:ff:00.0"),
        (AMD, "card8"),
    ],
)
def test_device_that_is_no_gpu_or_unknown_is_left_out(resource, device_id):
    assert gpus("h100").places([(resource, device_id)]) == ()


def test_gpu_partition_that_is_a_platform_device_is_left_out():
    assert gpus("mi300x").places([(AMD, "card9")]) == ()


def test_gpus_are_listed_once_in_order():
    asked = [(NVIDIA, "2"), (NVIDIA, "1"), ("example.com/x", "7"), (NVIDIA, "nvidia1"), (NVIDIA, "0")]
    assert gpus("h100").places(asked) == (GPU_9D, GPU_43, GPU_1B)


def test_devices_have_the_gpu_that_they_are_or_share():
    shares = [("nvidia.com/gpu.shared", f"GPU-3a2b3c4d-5e6f-7a8b-9c0d-3e2f3a4b5c6d::{i}") for i in range(2)]
    devices = [(NVIDIA, "0"), *shares, ("example.com/fpga", "0"), (NVIDIA, "9")]
    shared = Gpu(
        resource="nvidia.com/gpu.shared", pci="0000:9d:00.0", pcie_path=GPU_9D.pcie_path, numa_node=1
    )
    assert gpus("h100").by_device(devices) == {
        (NVIDIA, "0"): Gpu(resource=NVIDIA, pci="0000:1b:00.0", pcie_path=GPU_1B.pcie_path, numa_node=0),
        shares[0]: shared,
        shares[1]: shared,
    }


def test_gpu_that_the_driver_excludes_has_no_index(tmp_path):
    for directory in sorted((FOLDER / "h100").iterdir()):
        text = (directory / "information").read_text()
        (tmp_path / directory.name).mkdir()
        excluded = text.replace("No\n", "Yes\n") if directory.name == "0000:1b:00.0" else text
        (tmp_path / directory.name / "information").write_text(excluded)
    assert gpus("h100", tmp_path).places([(NVIDIA, "0")]) == (GPU_43,)


def test_machine_without_the_driver_of_nvidia_has_no_such_gpus(tmp_path):
    assert gpus("h100", tmp_path / "none").places([(NVIDIA, "0"), (NVIDIA, "0000:1b:00.0")]) == (GPU_1B,)


def test_driver_that_is_about_to_go_leaves_its_gpus_out(tmp_path):
    (tmp_path / "0000:1b:00.0").mkdir()
    assert gpus("h100", tmp_path).places([(NVIDIA, "nvidia0")]) == ()


def test_unreadable_sysfs_has_no_gpus():
    class Unreadable(Sysfs):
        def read(self, path):
            raise OSError(errno.EACCES, "made to be so", path)

        def names(self, path):
            raise OSError(errno.EACCES, "made to be so", path)

    unreadable = Gpus(Unreadable(), Sysfs(FOLDER / "h100"))
    assert unreadable.places([(NVIDIA, "0")]) == ()
    assert unreadable.present()


@pytest.mark.parametrize("name", ["h100", "dgx-h100", "mi300x"])
def test_machine_with_gpus_has_some(name):
    assert gpus(name).present()


@pytest.mark.parametrize(
    ("vendor", "kind", "some"),
    [
        ("0x1a03", "0x030000", False),  # ASPEED's management controller
        ("0x8086", "0x020000", False),
        ("0x10de", "0x030200", True),
        ("0x1002", "0x120000", True),
        ("0x8086", "0x038000", True),
    ],
)
def test_machine_has_gpus_by_vendor_and_class_alone(tmp_path, vendor, kind, some):
    function, vanishing = (tmp_path / "bus/pci/devices" / pci for pci in ("0000:03:00.0", "0000:04:00.0"))
    function.mkdir(parents=True)
    vanishing.mkdir()
    (function / "vendor").write_text(f"{vendor}\n")
    (function / "class").write_text(f"{kind}\n")
    assert Gpus(Sysfs(tmp_path), Sysfs(tmp_path)).present() is some
