"""RoCE over bonds of the host: which ports are ours, and which RDMA device they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from k8s_rdma.core.pf_selection import PfRule, Selection
from k8s_rdma.linux.discovery.functions import Missing
from linux.small_machine import PF, PF1, SmallMachine, link, vf_pci

if TYPE_CHECKING:
    from pathlib import Path

NAMED = Selection(rules=(PfRule(names=frozenset({"p0", "p1"})),))


@pytest.fixture
def machine(tmp_path: Path) -> SmallMachine:
    return SmallMachine(tmp_path)


def add_bond(
    machine: SmallMachine, *, vfs: int, rdma_netdev: int, driver: str = "mlx5_core", kind: str = "bond"
) -> None:
    """Two ports of a card in one bond, and one RDMA device for both, on the first function.

    As in https://github.com/vllm-project/aibrix/issues/1144: `mlx5_bond_0` with one port. Its netdev is
    the first PF's (RoCE LAG, no VFs) or the bond's (VF LAG).
    """
    machine.add_pf(PF, "p0", 10, vfs=vfs, rdma=None, master=90, driver=driver)
    machine.add_pf(PF1, "p1", 30, vfs=vfs, rdma=None, master=90, driver=driver)
    machine.answers.by_name["bond0"] = link(90, "bond0", kind=kind)
    machine.add_rdma(PF, "mlx5_bond_0", rdma_netdev)
    for number in range(vfs):
        machine.add_rdma(vf_pci(number, PF), f"mlx5_{2 + number}", 11 + number)
        machine.add_rdma(vf_pci(number, PF1), f"mlx5_{2 + vfs + number}", 31 + number)


@pytest.mark.parametrize("rdma_netdev", [10, 90])
def test_both_ports_of_a_vf_lag_have_its_rdma_device(machine: SmallMachine, rdma_netdev: int) -> None:
    add_bond(machine, vfs=2, rdma_netdev=rdma_netdev)
    hardware = machine.observer().observe()
    assert [(pf.name, pf.rdma_device) for pf in hardware.pfs] == [
        ("p0", "mlx5_bond_0"),
        ("p1", "mlx5_bond_0"),
    ]
    assert [vf.rdma_device for vf in hardware.pfs[1].vfs] == ["mlx5_4", "mlx5_5"]
    assert (hardware.unreadable, hardware.problems) == ((), ())


@pytest.mark.parametrize("kind", ["bond", "team"])
def test_ports_of_a_bond_without_vfs_are_left_out(machine: SmallMachine, kind: str) -> None:
    """VFs in legacy mode end mlx5's LAG (`mlx5_lag_check_prereq`), and the host's RoCE with it."""
    add_bond(machine, vfs=0, rdma_netdev=10, kind=kind)
    discovery = machine.observer().discover()
    assert discovery.selected == ()
    assert [(pf.pf.name, pf.missing) for pf in discovery.skipped] == [
        ("p0", Missing.BOND),
        ("p1", Missing.BOND),
    ]
    for pf in discovery.skipped:
        assert "is a port of bond0 and has no VFs" in pf.why
        assert "VFs would end the LAG of mlx5_bond_0" in pf.why
        assert "name it in hardware.pfs" in pf.advice


def test_ports_of_a_bond_that_are_named_are_taken_both(machine: SmallMachine) -> None:
    add_bond(machine, vfs=0, rdma_netdev=10)
    discovery = machine.observer(NAMED).discover()
    assert [(each.pf.name, each.pf.rdma_device) for each in discovery.selected] == [
        ("p0", "mlx5_bond_0"),
        ("p1", "mlx5_bond_0"),
    ]
    assert discovery.skipped == ()


def test_bond_of_other_cards_is_left_out_too_without_a_word_of_lag(machine: SmallMachine) -> None:
    add_bond(machine, vfs=0, rdma_netdev=10, driver="bnxt_en")
    [first, _] = machine.observer().discover().skipped
    assert "port of bond0" in first.why
    assert "LAG" not in first.why


def test_port_of_a_bridge_is_no_port_of_a_bond(machine: SmallMachine) -> None:
    machine.add_pf(PF, "p0", 10, rdma="mlx5_0", master=90)
    machine.answers.by_name["br0"] = link(90, "br0", kind="bridge")
    assert [each.pf.name for each in machine.observer().discover().selected] == ["p0"]


def test_named_port_without_an_rdma_device_is_not_advised_to_be_named(machine: SmallMachine) -> None:
    """No LAG joins two cards (https://github.com/MrBr-github/lshca/issues/77); one has no RDMA driver."""
    other = type(PF)("0000:af:00.0")
    machine.add_pf(PF, "p0", 10, rdma="mlx5_0", master=90)
    machine.add_pf(other, "p1", 30, rdma=None, master=90)
    machine.answers.by_name["bond0"] = link(90, "bond0", kind="bond")
    [left] = machine.observer(NAMED).discover().skipped
    assert left.missing is Missing.RDMA
    assert (
        left.advice == "modprobe mlx5_ib; for a card without RDMA, hardware.requireRdma: false, or exclude it"
    )


def test_port_of_an_ice_bond_is_advised_to_leave_it(machine: SmallMachine) -> None:
    """ice turns RDMA off on ports that join a bond (`ice_lag_monitor_rdma`): no module brings it back."""
    machine.add_pf(PF, "p0", 10, rdma=None, master=90, driver="ice")
    machine.answers.by_name["bond0"] = link(90, "bond0", kind="bond")
    [left] = machine.observer(NAMED).discover().skipped
    assert left.missing is Missing.RDMA
    assert left.advice == "take it out of bond0: ice has no RDMA on ports of a bond"
