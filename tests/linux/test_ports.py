"""The speed of a PF's link, and why it is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from linux.small_machine import INFINIBAND, PF, SmallMachine

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import PfState


def observed(machine: SmallMachine) -> PfState:
    (pf,) = machine.observer().observe().pfs
    return pf


@pytest.mark.parametrize(("text", "expected"), [("100000", 100_000), ("1000", 1000)])
def test_ethernet_speed_is_the_drivers(machine: SmallMachine, text: str, expected: int) -> None:
    machine.add_pf(vfs=1)
    machine.write("class/net/eth0/speed", text)
    pf = observed(machine)
    assert (pf.link_mbps, pf.problems) == (expected, ())


@pytest.mark.parametrize("text", ["-1", "0", None])
def test_ethernet_speed_that_the_driver_does_not_tell_is_unknown(
    machine: SmallMachine, text: str | None
) -> None:
    machine.add_pf(vfs=1)
    if text is None:
        machine.refuse("class/net/eth0/speed")
    else:
        machine.write("class/net/eth0/speed", text)
    pf = observed(machine)
    assert pf.link_mbps is None
    assert "eth0: its driver does not report" in pf.problems[0]


@pytest.mark.parametrize(
    ("changes", "why"), [({"carrier": False}, "has no carrier"), ({"is_up": False}, "is set down")]
)
def test_ethernet_speed_is_unknown_while_the_link_is_down_whatever_the_driver_reports(
    machine: SmallMachine, changes: dict[str, bool], why: str
) -> None:
    machine.add_pf(vfs=1, **changes)
    pf = observed(machine)
    assert pf.link_mbps is None
    assert why in pf.problems[0]
    assert "reservation" in pf.problems[0]


@pytest.mark.parametrize(
    ("rate", "expected"),
    [("100 Gb/sec (4X EDR)", 100_000), ("2.5 Gb/sec (1X SDR)", 2500), ("400 Gb/sec (4X NDR)", 400_000)],
)
def test_infiniband_speed_is_the_ports_rate(machine: SmallMachine, rate: str, expected: int) -> None:
    machine.add_pf(name="ib0", type=INFINIBAND, vfs=1, carrier=False)
    machine.write("class/infiniband/mlx5_0/ports/1/rate", rate)
    pf = observed(machine)
    assert (pf.link_mbps, pf.link_type.value, pf.problems) == (expected, "infiniband", ())


@pytest.mark.parametrize("rate", ["0 Gb/sec ( )", " Gb/sec", ""])
def test_infiniband_speed_that_the_port_does_not_tell_is_unknown(machine: SmallMachine, rate: str) -> None:
    machine.add_pf(name="ib0", type=INFINIBAND, vfs=1)
    machine.write("class/infiniband/mlx5_0/ports/1/rate", rate)
    pf = observed(machine)
    assert pf.link_mbps is None
    assert "ib0: its port does not report its rate" in pf.problems[0]


def test_infiniband_speed_is_known_while_the_port_defers_a_lost_link(machine: SmallMachine) -> None:
    """As its RDMA device counts as healthy in this state."""
    machine.add_pf(name="ib0", type=INFINIBAND, vfs=1)
    machine.write("class/infiniband/mlx5_0/ports/1/state", "5: ACTIVE_DEFER")
    assert (observed(machine).link_mbps, observed(machine).problems) == (100_000, ())


@pytest.mark.parametrize(("state", "word"), [("1: DOWN", "DOWN"), ("2: INIT", "INIT"), (None, "unknown")])
def test_infiniband_speed_is_unknown_unless_the_port_is_active(
    machine: SmallMachine, state: str | None, word: str
) -> None:
    machine.add_pf(name="ib0", type=INFINIBAND, vfs=1)
    if state is None:
        machine.refuse("class/infiniband/mlx5_0/ports/1/state")
    else:
        machine.write("class/infiniband/mlx5_0/ports/1/state", state)
    pf = observed(machine)
    assert pf.link_mbps is None
    assert f"its port is {word}, not ACTIVE" in pf.problems[0]


def test_infiniband_netdev_of_the_second_port_has_that_ports_speed(machine: SmallMachine) -> None:
    machine.add_pf(name="ib1", type=INFINIBAND, vfs=1)
    machine.write("class/net/ib1/dev_port", 1)
    machine.write("class/infiniband/mlx5_0/ports/2/state", "4: ACTIVE")
    machine.write("class/infiniband/mlx5_0/ports/2/rate", "56 Gb/sec (4X FDR)")
    assert observed(machine).link_mbps == 56_000


def test_pf_behind_a_pcie_link_slower_than_its_port_has_only_the_speed_of_that_link(
    machine: SmallMachine,
) -> None:
    """A card of 200 Gb/s in a slot of 8 GT/s x8."""
    machine.add_pf(vfs=1)
    machine.write("class/net/eth0/speed", 200_000)
    machine.write(f"{machine.device(PF)}/current_link_speed", "8.0 GT/s PCIe")
    machine.write(f"{machine.device(PF)}/current_link_width", 8)
    pf = observed(machine)
    assert pf.link_mbps == 63_008
    [problem] = pf.problems
    assert "PF eth0: its PCIe link carries 63008 of its port's 200000 Mb/s (8.0 GT/s x8 at" in problem


def test_pcie_link_that_carries_the_port_is_no_problem(machine: SmallMachine) -> None:
    machine.add_pf(vfs=1)
    machine.write(f"{machine.device(PF)}/current_link_speed", "8.0 GT/s PCIe")
    machine.write(f"{machine.device(PF)}/current_link_width", 16)
    assert (observed(machine).link_mbps, observed(machine).problems) == (100_000, ())


def test_unknown_speed_stays_unknown_behind_a_slow_pcie_link(machine: SmallMachine) -> None:
    machine.add_pf(vfs=1, carrier=False)
    machine.write(f"{machine.device(PF)}/current_link_speed", "2.5 GT/s PCIe")
    machine.write(f"{machine.device(PF)}/current_link_width", 1)
    assert observed(machine).link_mbps is None
