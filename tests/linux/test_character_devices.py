"""The device nodes of pods' devices, by a copy of sysfs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.rdma.character_devices import PodNodes
from k8s_rdma.linux.sysfs import Sysfs
from linux.small_machine import vf_pci
from rdma_machine import MAJOR, UVERBS_MINOR, RdmaMachine

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path) -> RdmaMachine:
    return RdmaMachine(tmp_path)


def nodes(machine: RdmaMachine) -> PodNodes:
    return PodNodes(Sysfs(machine.root))


def test_vf_is_found_by_its_function_wherever_its_device_is_and_whatever_that_is_called(
    machine: RdmaMachine,
) -> None:
    for kind, minor in (("infiniband_verbs/uverbs9", UVERBS_MINOR + 9), ("infiniband_mad/umad3", 3)):
        machine.write(f"bus/pci/devices/{vf_pci(0)}/{kind}/ibdev", "mlx5_renamed")
        machine.write(f"bus/pci/devices/{vf_pci(0)}/{kind}/dev", f"{MAJOR}:{minor}")
    verbs, mad = nodes(machine).of_vf(vf_pci(0), "mlx5_1")
    assert (verbs.path, verbs.major, verbs.minor) == ("/dev/infiniband/uverbs9", MAJOR, UVERBS_MINOR + 9)
    assert mad.path == "/dev/infiniband/umad3"
    assert nodes(machine).rdma_device(vf_pci(0)) == "mlx5_renamed"
    assert nodes(machine).rdma_device(vf_pci(1)) == ""


def test_soft_device_is_found_by_its_name_after_it_moved(machine: RdmaMachine) -> None:
    machine.take_away("mlx5_2", vf_pci(1), 2, new_number=7)
    [found] = nodes(machine).of_vf(vf_pci(1), "mlx5_2")
    assert found.path == "/dev/infiniband/uverbs7"


def test_name_that_another_function_has_by_now_is_not_the_vfs(machine: RdmaMachine) -> None:
    """Its driver was bound anew, and its RDMA device did not come back."""
    assert nodes(machine).of_vf(vf_pci(1), "mlx5_1") == ()


def test_vf_without_an_rdma_device_has_no_nodes(machine: RdmaMachine) -> None:
    assert nodes(machine).of_vf("ffff:00:00.1", "") == ()
    assert nodes(machine).of_vf("ffff:00:00.1", "gone0") == ()


def test_devices_are_listed_in_the_requested_order(machine: RdmaMachine) -> None:
    found = nodes(machine).of_devices(["mlx5_2", "gone0", "mlx5_0"])
    assert [each.path for each in found] == ["/dev/infiniband/uverbs2", "/dev/infiniband/uverbs0"]


def test_connection_manager_is_there_or_not(machine: RdmaMachine) -> None:
    assert nodes(machine).rdma_cm() == (10, 58)
    machine.at("class/misc/rdma_cm/dev").unlink()
    assert nodes(machine).rdma_cm() is None


def test_failed_lookup_is_an_error_and_not_an_empty_list(tmp_path: Path) -> None:
    class Refusing(Sysfs):
        def names(self, path: str) -> list[str]:
            raise PermissionError(13, os.strerror(13), path)

    with pytest.raises(KernelError, match="its character devices cannot be read"):
        PodNodes(Refusing(tmp_path)).of_vf("0000:03:00.1", "mlx5_1")
