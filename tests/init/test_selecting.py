"""Which PFs `init` takes, and what it waits for before."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from init.conftest import IGB, IGB2, World
from k8s_rdma.init.pf_setup import Result, all_well

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., World]

NEVER = 1e9


def test_driver_that_comes_late_is_waited_for(world: Make) -> None:
    w = world(replace(IGB, driver_after_s=20.0))
    assert w.init()["enp1s0f0"].result is Result.CHANGED
    assert 20 <= w.machine.now_s < 25


def test_pf_whose_driver_never_comes_fails_and_others_do_not(world: Make) -> None:
    w = world(replace(IGB, driver_after_s=NEVER), IGB2)
    outcomes = w.init()
    assert outcomes[IGB.pci].result is Result.FAILED
    assert "no driver" in outcomes[IGB.pci].message
    assert outcomes["enp2s0f0"].result is Result.CHANGED
    assert 60 <= w.machine.now_s < 65


def test_rdma_device_that_comes_late_is_waited_for_where_one_is_demanded(world: Make) -> None:
    w = world(replace(IGB, has_rdma=True, rdma_after_s=8.0))
    assert w.init(hardware={"requireRdma": True})["enp1s0f0"].result is Result.CHANGED
    assert 8 <= w.machine.now_s < 11


def test_pf_without_rdma_device_is_left_out_and_no_failure_unless_it_is_named(world: Make) -> None:
    w = world(IGB, replace(IGB2, has_rdma=True))
    outcomes = w.init(hardware={"requireRdma": True})
    assert outcomes["enp1s0f0"].result is Result.SKIPPED
    assert outcomes["enp2s0f0"].result is Result.CHANGED
    assert not w.card(IGB).vfs
    named = w.init(hardware={"requireRdma": True, "pfs": [{"names": ["enp1s0f0"]}]})
    assert named["enp1s0f0"].result is Result.FAILED


def test_pf_that_no_rule_matches_is_not_touched_and_not_waited_for(world: Make) -> None:
    w = world(replace(IGB, driver_after_s=NEVER), IGB2)
    outcomes = w.init(hardware={"pfs": [{"pcis": [IGB2.pci]}]})
    assert outcomes["enp2s0f0"].result is Result.CHANGED
    left = outcomes[IGB.pci]
    assert (left.result, left.message) == (Result.SKIPPED, "no rule of hardware.pfs selects it")
    assert not w.card(IGB).vfs
    assert w.machine.now_s < 5


def test_each_pf_has_the_number_of_its_rule(world: Make) -> None:
    w = world(IGB, IGB2)
    outcomes = w.init(hardware={"pfs": [{"names": ["enp2s0f0"], "numVfs": 2}, {"drivers": ["igb"]}]})
    assert {pf: outcome.current for pf, outcome in outcomes.items()} == {"enp1s0f0": 7, "enp2s0f0": 2}
    assert {pf: outcome.requested for pf, outcome in outcomes.items()} == {"enp1s0f0": None, "enp2s0f0": 2}


def test_misspelt_pf_is_told_beside_those_that_there_are(world: Make) -> None:
    outcomes = world(IGB).init(hardware={"pfs": [{"names": ["eno9"]}]})
    assert {pf: outcome.result for pf, outcome in outcomes.items()} == {
        "enp1s0f0": Result.SKIPPED,
        "": Result.NOT_THERE,
    }
    assert outcomes[""].message.startswith("hardware.pfs names eno9, and no network device that can have VFs")
    assert all_well(outcomes.values(), keep_used_vfs=False)
