"""A VF's driver taken and given, on a pretended card."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from fakes.sriov_machine import Card, MachineSysfs, SriovMachine
from k8s_rdma.core.types import PciAddress
from k8s_rdma.linux.vf.binding import PciDriver

if TYPE_CHECKING:
    from pathlib import Path

CARD = Card(name="enp1s0f0", pci=PciAddress("0000:01:00.0"), mac="52:54:00:aa:00:01")
VF = CARD.vf_pci(0)


@pytest.fixture
def machine(tmp_path: Path) -> SriovMachine:
    made = SriovMachine(tmp_path / "sys", [CARD])
    made.loaded.add("vfio-pci")
    made.write(f"bus/pci/devices/{CARD.pci}/sriov_numvfs", "2")
    return made


@pytest.fixture
def driver(machine: SriovMachine) -> PciDriver:
    return PciDriver(MachineSysfs(machine), VF)


def test_vf_is_handed_over_and_back(machine: SriovMachine, driver: PciDriver) -> None:
    assert (driver.name(), driver.override()) == ("igbvf", "")
    driver.hand_to("vfio-pci")
    assert (driver.name(), driver.override()) == ("vfio-pci", "vfio-pci")
    assert machine.cards[CARD.pci].vfs[0].netdev == ""
    driver.hand_to("igbvf")
    driver.let("")
    assert (driver.name(), driver.override()) == ("igbvf", "")
    assert machine.cards[CARD.pci].vfs[0].netdev


@pytest.mark.parametrize("left", ["override", "nothing", "vfio-pci"])
def test_vf_is_given_back_from_wherever_a_crash_left_it(driver: PciDriver, left: str) -> None:
    driver.let("vfio-pci")
    if left != "override":
        driver.unbind()
    if left == "vfio-pci":
        driver.bind("vfio-pci")
    driver.hand_to("igbvf")
    driver.let("")
    assert (driver.name(), driver.override()) == ("igbvf", "")


def test_vf_is_given_back_although_vfs_get_no_driver_by_themselves(
    machine: SriovMachine, driver: PciDriver
) -> None:
    driver.hand_to("vfio-pci")
    machine.write(f"bus/pci/devices/{CARD.pci}/sriov_drivers_autoprobe", "0")
    driver.hand_to("igbvf")
    assert driver.name() == "igbvf"


def test_settings_that_hold_already_are_not_written(machine: SriovMachine, driver: PciDriver) -> None:
    driver.hand_to("vfio-pci")
    written = len(machine.written)
    driver.hand_to("vfio-pci")
    assert len(machine.written) == written


@pytest.mark.parametrize(("to", "number"), [("uio_pci_generic", errno.ENOENT), ("vfio-pci", errno.ENODEV)])
def test_driver_that_is_not_there_or_not_let_is_an_error(driver: PciDriver, to: str, number: int) -> None:
    driver.unbind()
    with pytest.raises(OSError, match=r".") as caught:
        driver.bind(to)
    assert caught.value.errno == number
    assert driver.name() is None


def test_driver_that_ignores_a_binding_without_an_error_is_an_error(
    machine: SriovMachine, driver: PciDriver
) -> None:
    driver.unbind()

    class Deaf(MachineSysfs):
        def write(self, path: str, text: str) -> None:
            """Take it without an effect."""

    with pytest.raises(OSError, match="did not take it"):
        PciDriver(Deaf(machine), VF).bind("igbvf")


def test_vf_is_bound_to_the_same_driver_again_although_autoprobe_is_off(
    machine: SriovMachine, driver: PciDriver
) -> None:
    machine.write(f"bus/pci/devices/{CARD.pci}/sriov_drivers_autoprobe", "0")
    before = machine.cards[CARD.pci].vfs[0].netdev_index
    driver.bind_anew()
    assert (driver.name(), driver.override()) == ("igbvf", "")
    assert machine.cards[CARD.pci].vfs[0].netdev_index != before


@pytest.mark.parametrize("crashed", [True, False])
def test_binding_anew_that_was_interrupted_is_completed_and_no_other_state_is_changed(
    machine: SriovMachine, driver: PciDriver, crashed: bool
) -> None:
    driver.let("igbvf" if crashed else "vfio-pci")
    driver.unbind()
    for _ in range(2):
        driver.end_bind_anew()
    expected = ("igbvf", "") if crashed else (None, "vfio-pci")
    assert (driver.name(), driver.override()) == expected


def test_bound_anew_is_another_netdev(machine: SriovMachine, driver: PciDriver) -> None:
    before = machine.cards[CARD.pci].vfs[0].netdev_index
    driver.bind_anew()
    assert driver.name() == "igbvf"
    assert machine.cards[CARD.pci].vfs[0].netdev_index != before
