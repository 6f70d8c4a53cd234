"""The bandwidth of a function's PCIe link."""

from __future__ import annotations

import pytest

from k8s_rdma.linux.pcie import slowest_link
from k8s_rdma.linux.sysfs import PciFunction, Sysfs
from linux.small_machine import PF, ROOT_PORT, SmallMachine


def set_link(machine: SmallMachine, pci: str, speed: str, width: object) -> None:
    directory = machine.device(pci) if pci == PF else f"devices/pci0000:3a/{pci}"
    machine.write(f"{directory}/current_link_speed", speed)
    machine.write(f"{directory}/current_link_width", width)
    if not machine.at(f"bus/pci/devices/{pci}").exists():
        machine.at(f"bus/pci/devices/{pci}").symlink_to(f"../../../{directory}")


def slowest(machine: SmallMachine) -> tuple[int, str] | None:
    link = slowest_link(PciFunction(Sysfs(machine.root), PF))
    return link and (link.mbps, str(link))


@pytest.mark.parametrize(
    ("speed", "width", "mbps"),
    [
        ("2.5 GT/s PCIe", 1, 2000),
        ("5.0 GT/s PCIe", 8, 32_000),
        ("5 GT/s", 8, 32_000),
        ("8.0 GT/s PCIe", 8, 63_008),
        ("8 GT/s", 16, 126_016),
        ("16.0 GT/s PCIe", 16, 252_048),
        ("32.0 GT/s PCIe", 16, 504_112),
        ("64.0 GT/s PCIe", 16, 1_024_000),
        ("128.0 GT/s PCIe", 4, 512_000),
    ],
)
def test_link_carries_the_bandwidth_that_the_kernel_prints(
    machine: SmallMachine, speed: str, width: int, mbps: int
) -> None:
    """`63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link`, as dmesg has it."""
    machine.add_pf()
    set_link(machine, PF, speed, width)
    link = slowest_link(PciFunction(Sysfs(machine.root), PF))
    assert link is not None
    assert link.mbps == mbps


def test_slowest_link_on_the_way_to_the_root_port_counts(machine: SmallMachine) -> None:
    machine.add_pf()
    set_link(machine, PF, "16.0 GT/s PCIe", 16)
    set_link(machine, ROOT_PORT, "8.0 GT/s PCIe", 16)
    assert slowest(machine) == (126_016, "8.0 GT/s x16 at 0000:3a:00.0")


def test_function_itself_is_named_if_the_port_above_it_has_the_same_link(machine: SmallMachine) -> None:
    machine.add_pf()
    for pci in (PF, ROOT_PORT):
        set_link(machine, pci, "8.0 GT/s PCIe", 8)
    assert slowest(machine) == (63_008, f"8.0 GT/s x8 at {PF}")


@pytest.mark.parametrize(
    ("speed", "width"),
    [
        ("Unknown", 16),
        ("8.0 GT/s PCIe", 0),
        ("8.0 GT/s PCIe", 63),
        ("8.0 GT/s PCIe", 255),
        ("", ""),
        ("7 GT/s", 8),
    ],
)
def test_unreported_link_sets_no_limit(machine: SmallMachine, speed: str, width: object) -> None:
    machine.add_pf()
    assert slowest(machine) is None
    set_link(machine, PF, speed, width)
    assert slowest(machine) is None


def test_link_without_an_answer_sets_no_limit(machine: SmallMachine) -> None:
    machine.add_pf()
    machine.refuse(f"{machine.device(PF)}/current_link_speed")
    machine.write(f"{machine.device(PF)}/current_link_width", 8)
    assert slowest(machine) is None
