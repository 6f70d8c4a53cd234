"""RDMA devices and the netdevs and functions that they belong to."""

from __future__ import annotations

from k8s_rdma.linux.discovery.rdma_names import RdmaDevices
from k8s_rdma.linux.netlink.queries import RdmaNetlinkDevice, RdmaPort
from k8s_rdma.linux.sysfs import PciFunction, Sysfs
from linux.small_machine import INFINIBAND, PF, SmallMachine


def rdma_of(machine: SmallMachine, name: str | None) -> str | None:
    sysfs = Sysfs(machine.root)
    link = machine.answers.by_name[name] if name else None
    return RdmaDevices(sysfs, machine.answers.rdma).name_of(PciFunction(sysfs, PF), link)


def soft(machine: SmallMachine, name: str, netdev: str) -> None:
    machine.write(f"devices/virtual/infiniband/{name}/parent", netdev)
    machine.at(f"class/infiniband/{name}").symlink_to(f"../../devices/virtual/infiniband/{name}")


def test_port_on_the_netdev_decides(machine: SmallMachine) -> None:
    machine.add_pf(rdma="mlx5_7")
    assert rdma_of(machine, "eth0") == "mlx5_7"


def test_function_decides_if_ports_have_no_netdev(machine: SmallMachine) -> None:
    machine.add_pf(rdma=None, type=INFINIBAND)
    machine.add_rdma(PF, "mlx5_3")
    assert rdma_of(machine, "eth0") == "mlx5_3"


def test_function_decides_if_the_port_belongs_to_a_bond(machine: SmallMachine) -> None:
    machine.add_pf(rdma=None)
    machine.add_rdma(PF, "mlx5_bond_0", netdev_index=99)
    assert rdma_of(machine, "eth0") == "mlx5_bond_0"


def test_function_decides_while_its_netdev_is_away(machine: SmallMachine) -> None:
    machine.add_pf(rdma="mlx5_7")
    assert rdma_of(machine, None) == "mlx5_7"


def test_own_device_wins_over_a_soft_one_on_the_same_netdev(machine: SmallMachine) -> None:
    machine.add_pf(rdma="mlx5_7")
    port = RdmaPort(number=1, state="ACTIVE", netdev_index=10)
    machine.answers.rdma.append(RdmaNetlinkDevice(index=9, name="a_rxe", ports=(port,)))
    assert rdma_of(machine, "eth0") == "mlx5_7"


def test_soft_device_is_found_by_its_parent_without_netlink(machine: SmallMachine) -> None:
    machine.add_pf(rdma=None)
    soft(machine, "rxe0", "eth5")
    soft(machine, "rxe1", "eth0")
    assert rdma_of(machine, "eth0") == "rxe1"
    soft(machine, "rxe2", "eth0")
    assert rdma_of(machine, "eth0") == "rxe1"  # the first by name, always


def test_machine_without_rdma_devices_has_none(machine: SmallMachine) -> None:
    machine.add_pf(rdma=None)
    assert rdma_of(machine, "eth0") is None


def test_firmware_is_read_from_netlink_or_else_from_sysfs(machine: SmallMachine) -> None:
    machine.add_pf(rdma="mlx5_7")
    machine.write("class/infiniband/mlx5_7/fw_ver", "16.35.1012")
    sysfs = Sysfs(machine.root)
    assert RdmaDevices(sysfs, machine.answers.rdma).firmware("mlx5_7") == "16.35.1012"
    told = [RdmaNetlinkDevice(index=0, name="mlx5_7", firmware="16.35.2000")]
    assert RdmaDevices(sysfs, told).firmware("mlx5_7") == "16.35.2000"
    assert RdmaDevices(sysfs, ()).firmware("no_such") == ""
