"""Which PFs `init` takes, and which events it waits for before."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fakes.sriov_machine import Card
from init.conftest import IGB, IGB2, World
from k8s_rdma.core.types import PciAddress
from k8s_rdma.init.pf_setup import PfResult, all_well

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., World]

NEVER = 1e9
IGB3 = Card(name="enp3s0f0", pci=PciAddress("0000:03:00.0"), mac="52:54:00:aa:00:03")


def test_driver_that_comes_late_is_waited_for(world: Make) -> None:
    w = world(replace(IGB, driver_after_s=20.0))
    assert w.init()["enp1s0f0"].result is PfResult.CHANGED
    assert 20 <= w.machine.now_s < 25


def test_pf_whose_driver_never_comes_fails_and_others_do_not(world: Make) -> None:
    w = world(replace(IGB, driver_after_s=NEVER), IGB2)
    outcomes = w.init()
    assert outcomes[IGB.pci].result is PfResult.FAILED
    assert "no driver" in outcomes[IGB.pci].message
    assert outcomes["enp2s0f0"].result is PfResult.CHANGED
    assert 60 <= w.machine.now_s < 65


def test_late_rdma_device_is_awaited_if_one_is_demanded(world: Make) -> None:
    w = world(replace(IGB, has_rdma=True, rdma_after_s=8.0))
    assert w.init(hardware={"requireRdma": True})["enp1s0f0"].result is PfResult.CHANGED
    assert 8 <= w.machine.now_s < 11


def test_pf_without_rdma_device_is_left_out_and_no_failure_unless_it_is_named(world: Make) -> None:
    w = world(IGB, replace(IGB2, has_rdma=True))
    outcomes = w.init(hardware={"requireRdma": True})
    assert outcomes["enp1s0f0"].result is PfResult.SKIPPED
    assert outcomes["enp2s0f0"].result is PfResult.CHANGED
    assert not w.card(IGB).vfs
    named = w.init(hardware={"requireRdma": True, "pfs": [{"names": ["enp1s0f0"]}]})
    assert named["enp1s0f0"].result is PfResult.FAILED


def test_pf_that_no_rule_matches_is_not_touched_and_not_waited_for(world: Make) -> None:
    w = world(replace(IGB, driver_after_s=NEVER), IGB2)
    outcomes = w.init(hardware={"pfs": [{"pcis": [IGB2.pci]}]})
    assert outcomes["enp2s0f0"].result is PfResult.CHANGED
    left = outcomes[IGB.pci]
    assert (left.result, left.message) == (
        PfResult.SKIPPED,
        "no rule of hardware.pfs selects it; it can have 7 VFs",
    )
    assert not w.card(IGB).vfs
    assert w.machine.now_s < 5


@pytest.mark.parametrize(
    ("hardware", "made"),
    [
        ({}, {"enp1s0f0": 7, "enp2s0f0": 7}),
        ({"all": True}, {"enp1s0f0": 7, "enp2s0f0": 7}),
        ({"all": False}, {}),
        ({"pfs": [{"names": ["enp1s0f0"], "numVfs": 2}]}, {"enp1s0f0": 2}),
        ({"all": False, "pfs": [{"names": ["enp1s0f0"], "numVfs": 2}]}, {"enp1s0f0": 2}),
        ({"all": True, "pfs": [{"names": ["enp1s0f0"], "numVfs": 2}]}, {"enp1s0f0": 2, "enp2s0f0": 7}),
    ],
)
def test_pfs_without_a_rule_are_used_if_all_are(
    world: Make, hardware: dict[str, object], made: dict[str, int]
) -> None:
    w = world(IGB, IGB2)
    planned = w.init(hardware=hardware, dry_run=True)
    assert {pf for pf, outcome in planned.items() if outcome.result is PfResult.PLANNED} == made.keys()
    assert not w.card(IGB).vfs
    assert not w.card(IGB2).vfs
    outcomes = w.init(hardware=hardware)
    assert {pf: outcome.current for pf, outcome in outcomes.items() if outcome.current} == made


def test_plan_prints_pending_changes_without_effect(world: Make) -> None:
    w = world(IGB, IGB2, replace(IGB3, driver_after_s=NEVER))
    w.init(hardware={"pfs": [{"names": ["enp1s0f0"], "numVfs": 3}]})
    before = w.machine.now_s
    outcomes = w.init(
        hardware={"pfs": [{"names": ["enp1s0f0"], "numVfs": 5}, {"names": ["enp2s0f0"], "numVfs": 8}]},
        dry_run=True,
    )
    assert outcomes["enp1s0f0"].result is PfResult.PLANNED
    assert outcomes["enp1s0f0"].message == "would make 5 VFs in place of 3"
    assert outcomes["enp2s0f0"].result is PfResult.FAILED
    assert outcomes["enp2s0f0"].message == "8 VFs requested, its sriov_totalvfs is 7"
    assert outcomes[IGB3.pci].result is PfResult.SKIPPED
    assert (len(w.card(IGB).vfs), len(w.card(IGB2).vfs)) == (3, 0)
    assert w.machine.now_s == before, "it waits for no driver"
    again = w.init(hardware={"pfs": [{"names": ["enp1s0f0"], "numVfs": 3}]}, dry_run=True)["enp1s0f0"]
    assert (again.result, again.message) == (PfResult.READY, "has its 3 VFs")


def test_each_pf_has_the_number_of_its_rule(world: Make) -> None:
    w = world(IGB, IGB2)
    outcomes = w.init(hardware={"pfs": [{"names": ["enp2s0f0"], "numVfs": 2}, {"drivers": ["igb"]}]})
    assert {pf: outcome.current for pf, outcome in outcomes.items()} == {"enp1s0f0": 7, "enp2s0f0": 2}
    assert {pf: outcome.requested for pf, outcome in outcomes.items()} == {"enp1s0f0": None, "enp2s0f0": 2}


def test_misspelt_pf_is_reported_beside_the_existing_ones(world: Make) -> None:
    outcomes = world(IGB).init(hardware={"pfs": [{"names": ["eno9"]}]})
    assert {pf: outcome.result for pf, outcome in outcomes.items()} == {
        "enp1s0f0": PfResult.SKIPPED,
        "": PfResult.NOT_THERE,
    }
    assert outcomes[""].message.startswith("hardware.pfs names eno9, and no network device that can have VFs")
    assert all_well(outcomes.values(), keep_used_vfs=False)


def test_port_of_a_bond_gets_no_vfs_unless_it_is_named(world: Make) -> None:
    w = world(IGB, IGB2)
    w.card(IGB).bond = "bond0"
    outcomes = w.init()
    left = outcomes["enp1s0f0"]
    assert (left.result, w.card(IGB).vfs) == (PfResult.SKIPPED, {})
    assert "it is a port of bond0 and has no VFs" in left.message
    assert "name it in hardware.pfs (names or pcis) to have VFs on it" in left.advice
    assert outcomes["enp2s0f0"].result is PfResult.CHANGED
    named = w.init(hardware={"pfs": [{"names": ["enp1s0f0"], "numVfs": 2}]})
    assert (named["enp1s0f0"].result, len(w.card(IGB).vfs)) == (PfResult.CHANGED, 2)


def test_port_of_a_bond_with_vfs_keeps_their_number_unless_it_is_named(world: Make) -> None:
    """Another number takes the removal of all VFs, which ends a VF LAG."""
    w = world(IGB)
    w.init(hardware={"pfs": [{"names": ["enp1s0f0"], "numVfs": 2}]})
    w.card(IGB).bond = "bond0"
    assert w.init()["enp1s0f0"].result is PfResult.READY
    assert len(w.card(IGB).vfs) == 2
    w.init(hardware={"pfs": [{"names": ["enp1s0f0"], "numVfs": 3}]})
    assert len(w.card(IGB).vfs) == 3
