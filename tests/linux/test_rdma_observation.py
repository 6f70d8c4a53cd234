"""Observed RDMA devices, as containers are to use them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.recorded_machine import RecordedMachine, read_machine
from k8s_rdma.core.devices.rdma_devices import NetnsMode, NodeKind, RdmaDevice
from k8s_rdma.core.types import LinkType
from k8s_rdma.linux.netlink.queries import RdmaPort
from k8s_rdma.linux.rdma.character_devices import DeviceNodes, character_devices
from k8s_rdma.linux.rdma.observation import RdmaObserver, port_state_files
from linux.small_machine import INFINIBAND, PF, ROOT_PORT, link, vf_pci
from rdma_machine import MAJOR, RdmaMachine

MACHINES = Path(__file__).parent.parent / "machines"


@pytest.fixture
def machine(tmp_path: Path) -> RdmaMachine:
    return RdmaMachine(tmp_path)


def device(machine: RdmaMachine, name: str) -> RdmaDevice:
    return machine.observer().scan().present[name].device


def test_vf_has_its_function_its_pf_and_its_nodes(machine: RdmaMachine) -> None:
    seen = device(machine, "mlx5_2")
    assert (seen.pci, seen.pf, seen.pf_name, seen.vf, seen.netdev) == (vf_pci(1), PF, "eth0", 1, "eth12")
    assert (seen.vendor, seen.pf_vendor, seen.driver) == ("15b3:1018", "15b3:1017", "mlx5_core")
    assert seen.pcie_path == (ROOT_PORT,)
    assert [(node.path, node.major, node.minor) for node in seen.nodes] == [
        ("/dev/infiniband/uverbs2", MAJOR, 194)
    ]
    assert seen.faults == ()


def test_pf_is_its_own(machine: RdmaMachine) -> None:
    seen = device(machine, "mlx5_0")
    assert (seen.pci, seen.pf, seen.vf, seen.numa_node) == (PF, PF, None, 1)


def test_machine_has_a_mode_and_a_connection_manager(machine: RdmaMachine) -> None:
    look = machine.observer().scan()
    assert (look.netns_mode, look.rdma_cm, look.directory) == (NetnsMode.EXCLUSIVE, True, True)
    machine.remove_node("rdma_cm")
    assert not machine.observer().scan().rdma_cm
    machine.make_node("rdma_cm", 10, 59)
    assert not machine.observer().scan().rdma_cm


def test_management_nodes_come_after_those_for_verbs(machine: RdmaMachine) -> None:
    machine.add_mad("issm", "mlx5_1", 0)
    machine.add_mad("umad", "mlx5_1", 0)
    kinds = [node.kind for node in device(machine, "mlx5_1").nodes]
    assert kinds == [NodeKind.UVERBS, NodeKind.UMAD, NodeKind.ISSM]


def test_node_that_is_missing_is_a_fault(machine: RdmaMachine) -> None:
    machine.remove_node("uverbs1")
    seen = device(machine, "mlx5_1")
    assert (seen.nodes, seen.faults) == ((), ("/dev/infiniband/uverbs1 is missing",))


def test_node_of_another_device_is_a_fault_and_is_not_given(machine: RdmaMachine) -> None:
    machine.remove_node("uverbs1")
    machine.make_node("uverbs1", MAJOR, 192)
    seen = device(machine, "mlx5_1")
    assert (seen.nodes, seen.faults) == ((), ("/dev/infiniband/uverbs1 is device 231:192, not 231:193",))


def test_file_in_place_of_a_node_is_a_fault(machine: RdmaMachine) -> None:
    machine.remove_node("uverbs1")
    (machine.dev / "infiniband/uverbs1").write_text("")
    assert device(machine, "mlx5_1").faults == ("/dev/infiniband/uverbs1 is no character device",)


def test_device_without_uverbs_is_at_fault(machine: RdmaMachine) -> None:
    machine.remove_verbs(1)
    [fault] = device(machine, "mlx5_1").faults
    assert "ib_uverbs" in fault


def test_port_that_is_not_active_is_a_fault(machine: RdmaMachine) -> None:
    machine.set_port("mlx5_1", "DOWN")
    assert machine.observer().scan().present["mlx5_1"].port_faults == ("port 1 is DOWN, not ACTIVE",)


def test_one_port_of_use_is_enough(machine: RdmaMachine) -> None:
    machine.set_ports("mlx5_0", RdmaPort(number=1, state="DOWN"), RdmaPort(number=2, state="ACTIVE"))
    assert machine.observer().scan().present["mlx5_0"].port_faults == ()


def test_link_without_a_carrier_is_a_fault_of_its_device_and_of_all_vfs_uplinks(machine: RdmaMachine) -> None:
    machine.set_link("eth0", carrier=False)
    here = machine.observer().scan().present
    assert here["mlx5_0"].port_faults == ("netdev eth0 has no carrier",)
    assert (here["mlx5_1"].port_faults, here["mlx5_1"].uplink_faults) == ((), ("netdev eth0 has no carrier",))


def test_vf_that_is_set_down_is_distinguished(machine: RdmaMachine) -> None:
    machine.set_link("eth11", is_up=False, carrier=False)
    machine.set_port("mlx5_1", "DOWN")
    here = machine.observer().scan().present
    assert here["mlx5_1"].vf_set_down
    assert here["mlx5_1"].port_faults == ("port 1 is DOWN, not ACTIVE", "netdev eth11 is set down")
    assert not here["mlx5_2"].vf_set_down


def test_pf_that_is_set_down_is_at_fault(machine: RdmaMachine) -> None:
    machine.set_link("eth0", is_up=False)
    here = machine.observer().scan().present["mlx5_0"]
    assert (here.vf_set_down, here.port_faults) == (False, ("netdev eth0 is set down",))


def test_device_without_a_driver_is_at_fault(machine: RdmaMachine) -> None:
    machine.bind(vf_pci(0), None)
    assert f"no driver is bound to {vf_pci(0)}" in device(machine, "mlx5_1").faults


def test_device_in_another_namespace_is_found_by_its_new_nodes(machine: RdmaMachine) -> None:
    machine.take_away("mlx5_1", vf_pci(0), 1, new_number=7)
    look = machine.observer().scan()
    assert "mlx5_1" not in look.present
    away = look.away["mlx5_1"]
    assert (away.elsewhere, away.is_listed, away.device.pci, away.device.vf) == (True, True, vf_pci(0), 0)
    assert [node.path for node in away.device.nodes] == ["/dev/infiniband/uverbs7"]
    assert not away.device.at_home


def test_device_that_is_expected_is_found_by_its_function(machine: RdmaMachine) -> None:
    machine.take_away("mlx5_1", vf_pci(0), 1)
    away = machine.observer().scan({"mlx5_1": vf_pci(0)}).away["mlx5_1"]
    assert (away.elsewhere, away.is_listed, away.device.pf_name) == (False, True, "eth0")
    machine.bind(vf_pci(0), None)
    away = machine.observer().scan({"mlx5_1": vf_pci(0)}).away["mlx5_1"]
    assert away.device.faults == (f"no driver is bound to {vf_pci(0)}",)


def test_function_that_a_program_has_is_somewhere(machine: RdmaMachine) -> None:
    machine.take_away("mlx5_1", vf_pci(0), 1)
    machine.bind(vf_pci(0), "vfio-pci")
    assert machine.observer().scan({"mlx5_1": vf_pci(0)}).away["mlx5_1"].elsewhere


def test_unreadable_device_is_reported_and_hides_no_other(machine: RdmaMachine) -> None:
    numa = machine.at(f"{machine.device(vf_pci(0))}/numa_node")
    numa.write_text("none\n")
    look = machine.observer().scan()
    assert list(look.unreadable) == ["mlx5_1"]
    assert sorted(look.present) == ["mlx5_0", "mlx5_2"]
    assert "mlx5_1" not in look.away


def test_links_of_no_interest_make_no_new_look(machine: RdmaMachine) -> None:
    observer = machine.observer()
    seen = observer.scan()
    machine.answers.by_name["veth0"] = link(90, "veth0")
    assert observer.scan(changed={90}) is seen
    machine.set_link("eth0", carrier=False)
    assert observer.scan(changed={10}) is not seen


def test_infiniband_ports_are_to_be_watched_and_their_netdevs_do_not_count(machine: RdmaMachine) -> None:
    machine.write(f"{machine.device(PF)}/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand")
    machine.set_link("eth0", type=INFINIBAND, is_up=False)
    look = machine.observer().scan()
    assert look.present["mlx5_0"].device.link_type is LinkType.INFINIBAND
    assert look.present["mlx5_0"].port_faults == ()
    assert "class/infiniband/mlx5_0/ports/1/state" in port_state_files(look)


def test_ethernet_ports_need_not_be_watched(machine: RdmaMachine) -> None:
    assert port_state_files(machine.observer().scan()) == frozenset()


def test_nodes_need_not_be_opened(machine: RdmaMachine) -> None:
    """The kernel of a machine without such devices refuses that with ENXIO."""
    for node in (machine.dev / "infiniband").iterdir():
        node.chmod(0)
    assert device(machine, "mlx5_1").faults == ()


def recorded(name: str) -> RdmaObserver:
    machine = RecordedMachine(read_machine(MACHINES / f"{name}.yaml"))
    return RdmaObserver(machine.sysfs, machine.queries, DeviceNodes(Path("/nonexistent")))


def test_soft_device_is_of_its_netdevs_function() -> None:
    seen = recorded("igb-rxe").scan().present["rxe2"].device
    assert (seen.pci, seen.pf, seen.pf_name, seen.vf) == ("0000:01:10.0", "0000:01:00.0", "eth0", 0)
    assert (seen.netdev, seen.driver, seen.pf_driver) == ("eth2", "igbvf", "igb")
    assert [fault for fault in seen.faults if "missing" in fault] == ["/dev/infiniband/uverbs2 is missing"]


def test_recorded_infiniband_vfs_are_active_as_their_subnet_manager_made_them() -> None:
    here = recorded("connectx6-infiniband").scan().present
    assert {name: seen.port_faults for name, seen in here.items()} == {
        "mlx5_0": (),
        "mlx5_1": (),
        "mlx5_2": (),
        "mlx5_3": ("port 1 is INIT, not ACTIVE",),
        "mlx5_4": ("port 1 is DOWN, not ACTIVE",),
    }


def test_recorded_infiniband_devices_have_nodes_for_management() -> None:
    machine = RecordedMachine(read_machine(MACHINES / "connectx6-infiniband.yaml"))
    found = character_devices(machine.sysfs)
    assert sorted(found) == [f"mlx5_{number}" for number in range(5)]
    assert [(node.path, node.major, node.minor) for node in found["mlx5_3"]] == [
        ("/dev/infiniband/uverbs3", 231, 195),
        ("/dev/infiniband/umad3", 231, 3),
        ("/dev/infiniband/issm3", 231, 67),
    ]


def test_recorded_vfs_that_were_not_set_up_are_distinguished() -> None:
    here = recorded("connectx5").scan().present
    assert {name for name, seen in here.items() if seen.vf_set_down} == {
        *("mlx5_4", "mlx5_5", "mlx5_6", "mlx5_8", "mlx5_9")
    }
    assert all(seen.port_faults for seen in here.values() if seen.vf_set_down)
