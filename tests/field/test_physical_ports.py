"""PFs that are one physical port, and PCIe links that are slower than the port, as people reported them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from k8s_rdma.core.pf_selection import PfRule, Selection
from k8s_rdma.core.types import PciAddress
from k8s_rdma.doctor.node.hardware import HardwareFacts, check_hardware
from k8s_rdma.linux.pcie import slowest_link
from linux.small_machine import INFINIBAND, PF, PF1, SmallMachine

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.core.kernel import PfState

GB10 = {
    PciAddress("0000:01:00.0"): ("enp1s0f0np0", "rocep1s0f0", "p0"),
    PciAddress("0000:01:00.1"): ("enp1s0f1np1", "rocep1s0f1", "p1"),
    PciAddress("0002:01:00.0"): ("enP2p1s0f0np0", "roceP2p1s0f0", "p0"),
    PciAddress("0002:01:00.1"): ("enP2p1s0f1np1", "roceP2p1s0f1", "p1"),
}


@pytest.fixture
def machine(tmp_path: Path) -> SmallMachine:
    return SmallMachine(tmp_path)


def observed(machine: SmallMachine, selection: Selection | None = None) -> list[PfState]:
    hardware = machine.observer(selection).observe()
    assert hardware.unreadable == ()
    return list(hardware.pfs)


def reservable(pfs: list[PfState]) -> dict[str, int | None]:
    return {pf.name: pf.link_mbps for pf in pfs}


def add_gb10(machine: SmallMachine, *, switch_id: bool) -> None:
    """Two QSFP ports of 200 Gb/s, each with a PF on two PCIe links of 32 GT/s x4, and one system image GUID.

    https://github.com/geerlingguy/sbc-reviews/issues/92 has the GUIDs and rates, and
    https://github.com/NVIDIA/daqiri/pull/108 the `phys_port_name` of each PF.
    """
    for index, (pci, (name, rdma, port)) in enumerate(GB10.items()):
        machine.add_pf(pci, name, 10 * (index + 1), vfs=2, rdma=rdma)
        netdev, function = f"class/net/{name}", machine.device(pci)
        machine.write(f"{netdev}/speed", 200_000)
        machine.write(f"{netdev}/phys_port_name", port)
        if switch_id:
            machine.write(f"{netdev}/phys_switch_id", "3042f90003ea4cfc")
        machine.write(f"{function}/current_link_speed", "32.0 GT/s PCIe")
        machine.write(f"{function}/current_link_width", 4)
        machine.write(f"class/infiniband/{rdma}/sys_image_guid", "fc4c:ea03:00f9:4230")


@pytest.mark.parametrize("switch_id", [True, False])
def test_two_pfs_of_each_gb10_port_share_its_speed(machine: SmallMachine, switch_id: bool) -> None:
    add_gb10(machine, switch_id=switch_id)
    pfs = observed(machine)
    assert reservable(pfs) == dict.fromkeys((name for name, *_ in GB10.values()), 100_000)
    [problem] = pfs[0].problems
    assert "PF enp1s0f0np0: it is one port with enP2p1s0f0np0 (" in problem
    assert ("phys_switch_id" if switch_id else "sys_image_guid fc4c:ea03:00f9:4230") in problem
    assert "100000 of its 200000 Mb/s" in problem


def test_one_selected_pf_of_a_gb10_port_has_the_speed_of_its_pcie_link(machine: SmallMachine) -> None:
    add_gb10(machine, switch_id=True)
    [pf] = observed(machine, Selection(rules=(PfRule(names=frozenset({"enp1s0f0np0"})),)))
    assert pf.link_mbps == 4 * 31_507
    [problem] = pf.problems
    assert "carries 126028 of its port's 200000 Mb/s (32.0 GT/s x4 at 0000:01:00.0)" in problem


def test_gb10_controller_that_an_old_bios_runs_with_two_lanes_has_that_speed(machine: SmallMachine) -> None:
    """https://github.com/tonyd2wild/DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark/pull/35."""
    add_gb10(machine, switch_id=True)
    machine.write(f"{machine.device('0002:01:00.0')}/current_link_width", 2)
    assert reservable(observed(machine))["enP2p1s0f0np0"] == 63_014


def test_infiniband_socket_direct_is_one_port(machine: SmallMachine) -> None:
    """A PF at each socket, neither with names of ports; the two GUIDs differ, that of the card is one."""
    for pci, name, rdma, index in (
        (PF, "ib0", "mlx5_0", 10),
        (PciAddress("0000:af:00.0"), "ib1", "mlx5_1", 30),
    ):
        machine.add_pf(pci, name, index, vfs=1, rdma=rdma, type=INFINIBAND)
        machine.write(f"class/infiniband/{rdma}/sys_image_guid", "b859:9f03:00d1:1e60")
    assert reservable(observed(machine)) == {"ib0": 50_000, "ib1": 50_000}


@pytest.mark.parametrize("type_", [1, INFINIBAND])
def test_two_ports_of_one_card_are_two(machine: SmallMachine, type_: int) -> None:
    for pci, name, rdma, index in ((PF, "a", "mlx5_0", 10), (PF1, "b", "mlx5_1", 30)):
        machine.add_pf(pci, name, index, vfs=1, rdma=rdma, type=type_)
        machine.write(f"class/infiniband/{rdma}/sys_image_guid", "b859:9f03:00d1:1e60")
        machine.write(f"class/net/{name}/phys_switch_id", "b8599f0300d11e60")
        machine.write(f"class/net/{name}/phys_port_name", f"p{pci[-1]}")
    pfs = observed(machine)
    assert reservable(pfs) == {"a": 100_000, "b": 100_000}
    assert all(pf.problems == () for pf in pfs)


def test_partitions_of_a_port_share_it_though_each_has_a_port_name_of_its_own(machine: SmallMachine) -> None:
    """NPAR of i40e: `phys_port_id` is the port's MAC, `phys_port_name` and devlink's port number the PF's."""
    partitions = [PciAddress(f"0000:3b:00.{function}") for function in range(4)]
    for function, pci in enumerate(partitions):
        name = f"eno{function}"
        machine.add_pf(pci, name, 10 * (function + 1), driver="i40e", vfs=0, rdma=None)
        machine.write(f"class/net/{name}/speed", 10_000)
        machine.write(
            f"class/net/{name}/phys_port_id", "3cfdfe9e7c70" if function % 2 == 0 else "3cfdfe9e7c72"
        )
        machine.write(f"class/net/{name}/phys_switch_id", "3cfdfeffff9e7c70")
        machine.write(f"class/net/{name}/phys_port_name", f"p{function}")
    pfs = observed(machine, Selection(require_rdma=False))
    assert reservable(pfs) == dict.fromkeys(("eno0", "eno1", "eno2", "eno3"), 5000)
    assert "one port with eno2 (phys_port_id 3cfdfe9e7c70)" in " ".join(pfs[0].problems)


def test_meaningless_identity_joins_no_ports(machine: SmallMachine) -> None:
    """GUIDs of zeros, as cards without a burned GUID have them, and files without text."""
    for pci, name, rdma, index in ((PF, "a", "mlx5_0", 10), (PciAddress("0000:af:00.0"), "b", "mlx5_1", 30)):
        machine.add_pf(pci, name, index, vfs=1, rdma=rdma)
        machine.write(f"class/infiniband/{rdma}/sys_image_guid", "0000:0000:0000:0000")
        machine.write(f"class/net/{name}/phys_port_id", "")
        machine.refuse(f"class/net/{name}/phys_switch_id")
        machine.write(f"class/net/{name}/phys_port_name", "p0")
    assert reservable(observed(machine)) == {"a": 100_000, "b": 100_000}


def test_rates_of_a_pf_that_shares_its_port_go_up_to_the_whole_speed(machine: SmallMachine) -> None:
    """A cap above the share of a PF is one that its driver must still program."""
    for pci, name, rdma, index in ((PF, "a", "bnxt_re0", 10), (PF1, "b", "bnxt_re1", 30)):
        machine.add_pf(pci, name, index, driver="bnxt_en", vfs=1, rdma=rdma)
        machine.write(f"class/net/{name}/phys_switch_id", "b026283f00000000")
        machine.write(f"class/net/{name}/phys_port_name", "p0")
    for pf in observed(machine):
        assert pf.link_mbps == 50_000
        assert pf.rates.max is not None
        assert pf.rates.max.largest == 100_000


def test_slow_pcie_link_is_found_by_doctor_before_there_are_vfs(machine: SmallMachine) -> None:
    machine.add_pf(PF, "p0", 10, vfs=0)
    machine.write("class/net/p0/speed", 200_000)
    machine.write(f"{machine.device(PF)}/current_link_speed", "8.0 GT/s PCIe")
    machine.write(f"{machine.device(PF)}/current_link_width", 8)
    observer = machine.observer()
    facts = HardwareFacts(hardware=observer.observe(), selected=observer.discover().selected)
    no_vfs, slow = check_hardware(facts)
    assert (no_vfs.id, slow.id) == ("hardware-no-vfs", "hardware-problem")
    assert "its PCIe link carries 63008 of its port's 200000 Mb/s" in slow.found


def test_two_ports_of_one_card_are_found_to_share_its_pcie_link(machine: SmallMachine) -> None:
    """A card of two ports in a slot of 8 GT/s x16: 126 Gb/s for 200 (https://github.com/openucx/ucx/issues/8851)."""
    for pci, name, rdma, index in ((PF, "p0", "mlx5_0", 10), (PF1, "p1", "mlx5_1", 30)):
        machine.add_pf(pci, name, index, vfs=1, rdma=rdma)
        machine.write(f"{machine.device(pci)}/current_link_speed", "8.0 GT/s PCIe")
        machine.write(f"{machine.device(pci)}/current_link_width", 16)
    observer = machine.observer()
    selected = observer.discover().selected
    links = {each.pf.pci: slowest_link(each.pf.function) for each in selected}
    facts = HardwareFacts(
        hardware=observer.observe(),
        selected=selected,
        pcie={pci: link for pci, link in links.items() if link},
    )
    *_, shared = check_hardware(facts)
    assert (shared.id, shared.about) == ("hardware-pcie-shared", "p0, p1")
    assert "have 200000 Mb/s together; their PCIe link carries 126016 (8.0 GT/s x16" in shared.found
