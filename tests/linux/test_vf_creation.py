"""VFs of a pretended PF: made and removed, with their functions, and whether drivers are bound to them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from fakes.sriov_machine import Card, MachineSysfs, SriovMachine
from k8s_rdma.core.types import PciAddress
from k8s_rdma.linux.vf.creation import SriovPf

if TYPE_CHECKING:
    from pathlib import Path

CARD = Card(name="enp1s0f0", pci=PciAddress("0000:01:00.0"), mac="52:54:00:aa:00:01", total_vfs=12)


@pytest.fixture
def card(tmp_path: Path) -> SriovMachine:
    return SriovMachine(tmp_path / "sys", [CARD])


@pytest.fixture
def pf(card: SriovMachine) -> SriovPf:
    return SriovPf(MachineSysfs(card), CARD.pci)


def test_vfs_are_made_and_removed_by_their_number(pf: SriovPf) -> None:
    assert (pf.total(), pf.count(), pf.vfs()) == (12, 0, ())
    pf.create_vfs(11)
    assert pf.count() == 11
    assert [(vf.index, vf.pci) for vf in pf.vfs()] == [(index, CARD.vf_pci(index)) for index in range(11)]
    pf.create_vfs(0)
    assert (pf.count(), pf.vfs()) == (0, ())


@pytest.mark.parametrize(("count", "number"), [(13, errno.ERANGE), (2, errno.EBUSY)])
def test_number_that_the_kernel_refuses_is_an_error_with_its_errno(
    pf: SriovPf, count: int, number: int
) -> None:
    pf.create_vfs(1)
    with pytest.raises(OSError, match="sriov_numvfs") as caught:
        pf.create_vfs(count)
    assert caught.value.errno == number
    assert pf.count() == 1


def test_vf_has_its_driver_and_netdevs_of_now(card: SriovMachine, pf: SriovPf) -> None:
    pf.create_vfs(1)
    (before,) = pf.vfs()
    assert (before.driver, before.netdevs, before.driver_override) == ("igbvf", ("eth0",), "")
    card.move_away(CARD.pci, 0)
    assert pf.again(before).netdevs == ()
    card.write(f"bus/pci/devices/{before.pci}/driver/unbind", before.pci)
    card.write(f"bus/pci/devices/{before.pci}/driver_override", "vfio-pci")
    now = pf.again(before)
    assert (now.driver, now.netdevs, now.driver_override) == (None, None, "vfio-pci")


def test_vf_is_bound_to_no_driver_while_probing_is_off(pf: SriovPf) -> None:
    assert pf.probes_vfs()
    pf.let_probe_vfs(False)
    pf.create_vfs(1)
    (vf,) = pf.vfs()
    assert (pf.probes_vfs(), vf.driver) == (False, None)
    assert pf.modalias(vf) == "pci:igbvf"
    pf.let_probe_vfs(True)
    assert pf.probes_vfs()
