"""Which VFs can be handed to programs, and by which device node, on machines of files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fakes.recorded_machine import RecordedMachine
from k8s_rdma.core.pf_selection import Selection
from k8s_rdma.core.types import Setting
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.gather import gather
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.rdma.character_devices import PodNodes
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vfio import objection_to_vfio, others_in_group, vfio_group
from linux.small_machine import SmallMachine, vf_pci

if TYPE_CHECKING:
    from pathlib import Path

NOIOMMU = "module/vfio/parameters/enable_unsafe_noiommu_mode"
VF = vf_pci(0)


@pytest.fixture
def machine(tmp_path: Path) -> SmallMachine:
    made = SmallMachine(tmp_path)
    made.add_pf(vfs=2)
    return made


def load_vfio(machine: SmallMachine) -> None:
    machine.at("bus/pci/drivers/vfio-pci").mkdir()


def group(machine: SmallMachine, number: int, *members: str, name: str | None = None) -> None:
    """An IOMMU group of these functions."""
    home = f"kernel/iommu_groups/{number}"
    machine.at(f"{home}/devices").mkdir(parents=True)
    for pci in members:
        machine.at(f"{home}/devices/{pci}").symlink_to(f"../../../../{machine.device(pci)}")
        machine.at(f"{machine.device(pci)}/iommu_group").symlink_to(f"../../../../{home}")
    if name:
        machine.write(f"{home}/name", name)


def takes_vfio(machine: SmallMachine) -> bool:
    [pf] = machine.observer().observe().pfs
    return Setting.VFIO_PCI in pf.supported_settings


def objection(machine: SmallMachine) -> str:
    return objection_to_vfio(Sysfs(machine.root), VF)


def test_group_that_cannot_be_read_is_a_failure_that_its_caller_knows(machine: SmallMachine) -> None:
    """As without a free descriptor; whoever restores the files of all pods goes on with the next one."""
    group(machine, 7, VF)
    load_vfio(machine)
    machine.at(f"{machine.device(VF)}/driver").unlink()
    machine.at(f"{machine.device(VF)}/driver").symlink_to("/bus/pci/drivers/vfio-pci")
    machine.at("kernel/iommu_groups/7/name").symlink_to("name")
    with pytest.raises(KernelError, match=f"VF {VF}: .*symbolic links"):
        PodNodes(Sysfs(machine.root)).vfio_group(VF)


def test_vf_in_an_iommu_group_of_its_own_can_be_handed_over_once_the_driver_is_there(
    machine: SmallMachine,
) -> None:
    group(machine, 7, VF)
    assert "modprobe vfio-pci" in objection(machine)
    assert not takes_vfio(machine)
    load_vfio(machine)
    assert objection(machine) == ""
    assert takes_vfio(machine)


def test_vf_without_an_iommu_group_needs_the_unsafe_mode(machine: SmallMachine) -> None:
    load_vfio(machine)
    assert "is in no IOMMU group: turn the IOMMU on" in objection(machine)
    machine.write(NOIOMMU, "N")
    assert not takes_vfio(machine)
    machine.write(NOIOMMU, "Y")
    assert "allow that by hardware.unsafeNoiommu" in objection(machine)
    assert not takes_vfio(machine)
    [pf] = machine.observer(Selection(unsafe_noiommu=True)).observe().pfs
    assert Setting.VFIO_PCI in pf.supported_settings


def test_vf_in_a_group_that_vfio_made_up_is_as_one_without_a_group(machine: SmallMachine) -> None:
    load_vfio(machine)
    group(machine, 0, VF, name="vfio-noiommu")
    machine.write(NOIOMMU, "Y")
    assert "allow that by hardware.unsafeNoiommu" in objection(machine)
    assert objection_to_vfio(Sysfs(machine.root), VF, unsafe_noiommu=True) == ""


@pytest.mark.parametrize("driver", ["mlx5_core", "vfio-pci", None])
def test_group_is_shared_with_no_other_function_whatever_drives_it(
    machine: SmallMachine, driver: str | None
) -> None:
    """Whoever has the group's device node could open that one, too, or could when vfio-pci gets it."""
    load_vfio(machine)
    group(machine, 7, VF, vf_pci(1))
    machine.bind(vf_pci(1), driver)
    shown = f"shares IOMMU group 7 with {vf_pci(1)}, which {driver or 'no driver'} drives"
    assert shown in objection(machine)
    assert not takes_vfio(machine)


def share_with_bridge(machine: SmallMachine, driver: str | None, pci_class: str) -> None:
    load_vfio(machine)
    group(machine, 7, VF, vf_pci(1))
    machine.bind(vf_pci(1), driver)
    machine.write(f"{machine.device(vf_pci(1))}/class", pci_class)


@pytest.mark.parametrize(
    ("driver", "pci_class"), [(None, "0x060400"), ("pcieport", "0x060400"), (None, "0x060000")]
)
def test_group_is_shared_with_bridges(machine: SmallMachine, driver: str | None, pci_class: str) -> None:
    share_with_bridge(machine, driver, pci_class)
    assert objection(machine) == ""
    assert others_in_group(Sysfs(machine.root), VF) == (), "nor does doctor warn of them"


@pytest.mark.parametrize(("driver", "pci_class"), [("ntb_hw_intel", "0x068000"), (None, "0x068000")])
def test_group_is_not_shared_with_a_bridge_that_does_dma(
    machine: SmallMachine, driver: str | None, pci_class: str
) -> None:
    """A non-transparent bridge and an NVSwitch are called bridges as well."""
    share_with_bridge(machine, driver, pci_class)
    assert f"shares IOMMU group 7 with {vf_pci(1)}" in objection(machine)


def test_group_is_not_shared_with_a_bridge_whose_driver_makes_it_unusable(machine: SmallMachine) -> None:
    """The kernel gives no group to a program while a driver of the host's has one of its functions."""
    share_with_bridge(machine, "amd_hsmp", "0x060000")
    assert f"with {vf_pci(1)}, which amd_hsmp drives" in objection(machine)


@pytest.mark.parametrize(("name", "node"), [(None, "/dev/vfio/7"), ("vfio-noiommu", "/dev/vfio/noiommu-7")])
def test_device_node_is_that_of_the_group(machine: SmallMachine, name: str | None, node: str) -> None:
    group(machine, 7, VF, name=name)
    with pytest.raises(KernelError, match="bound to mlx5_core"):
        vfio_group(VF, Sysfs(machine.root))
    machine.bind(VF, "vfio-pci")
    assert vfio_group(VF, Sysfs(machine.root)) == node


def test_record_of_a_machine_has_groups_and_driver(machine: SmallMachine) -> None:
    load_vfio(machine)
    group(machine, 7, VF)
    record = RecordedMachine(gather(Sysfs(machine.root), machine.answers))
    [pf] = Observer(record.sysfs, record.queries, Selection()).observe().pfs
    assert Setting.VFIO_PCI in pf.supported_settings
