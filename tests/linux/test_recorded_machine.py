"""The rules that a recorded machine obeys: links in sysfs, answers by index, drivers that leave."""

from __future__ import annotations

import errno
import os
import re

import pytest

from fakes.recorded_machine import RecordedMachine
from k8s_rdma.core.types import PciAddress
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.queries import RdmaPort
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.wire.machine import decode_machine

PF = PciAddress("0000:01:00.0")
HOME = "devices/pci0000:00/0000:01:00.0"

DOCUMENT = """\
format: 1
about: {machine: a PF with a VF, source: written for this test, kernel: 6.1.0}
links:
- {index: 2, name: eth0, mac: '52:54:00:00:00:01', up: true, device: '0000:01:00.0'}
- {index: 3, name: eth1, mac: '52:54:00:00:00:02'}
- {index: 4, name: eth2, mac: '52:54:00:00:01:00', device: '0000:01:10.0'}
vfs:
  2:
  - {index: 0, mac: '52:54:00:00:01:00', spoof_check: true, max_tx_rate_mbps: 100}
default_route_links: [2, 3]
addressed_links: [3, 4]
rdma_devices:
- {index: 0, name: rxe0, ports: [{number: 1, state: ACTIVE, netdev_index: 4}]}
- {index: 1, name: rxe1, ports: [{number: 1, state: ACTIVE, netdev_index: 3}]}
eswitch_modes: {'0000:01:00.0': legacy}
firmware: {eth0: '1.2'}
refused: {firmware eth2: EOPNOTSUPP}
sysfs:
  class/net:
    eth0: !link /devices/pci0000:00/0000:01:00.0/net/eth0
    eth2: !link /devices/pci0000:00/0000:01:10.0/net/eth2
    loop: !link /class/net/loop
  bus/pci/devices:
    0000:01:00.0: !link /devices/pci0000:00/0000:01:00.0
    0000:01:10.0: !link /devices/pci0000:00/0000:01:10.0
  devices/pci0000:00/0000:01:00.0:
    vendor: 0x8086
    sriov_numvfs: 1
    empty: ''
    driver: !link /bus/pci/drivers/igb
    virtfn0: !link /devices/pci0000:00/0000:01:10.0
    net/eth0: {speed: !refused EINVAL, device: !link /devices/pci0000:00/0000:01:00.0}
    infiniband: {}
    hidden: !refused EACCES
  devices/pci0000:00/0000:01:10.0:
    physfn: !link /devices/pci0000:00/0000:01:00.0
    net/eth2: {speed: 1000}
"""


@pytest.fixture
def machine() -> RecordedMachine:
    return RecordedMachine(decode_machine(DOCUMENT))


def test_sysfs_reads_files_through_links_with_the_newline_that_files_end_with(machine) -> None:
    assert machine.sysfs.read("class/net/eth0/device/vendor") == "0x8086\n"
    assert machine.sysfs.read(f"{HOME}/empty") == ""
    assert machine.sysfs.read("class/net/eth0/../../vendor") == "0x8086\n"


def test_sysfs_lists_directories(machine) -> None:
    assert machine.sysfs.names("class/net") == ["eth0", "eth2", "loop"]
    assert machine.sysfs.names("class/net/eth0/device/infiniband") == []
    assert machine.sysfs.names("") == ["bus", "class", "devices"]


def test_sysfs_has_something_behind_every_link(machine) -> None:
    assert machine.sysfs.names(f"{HOME}/driver") == []
    assert machine.sysfs.resolved(f"{HOME}/driver") == "bus/pci/drivers/igb"


def test_sysfs_of_a_record_resolves_links(machine) -> None:
    assert machine.sysfs.target(f"bus/pci/devices/{PF}/driver") == "igb"
    assert machine.sysfs.resolved("class/net/eth2/../../physfn/net/eth0/device") == HOME


@pytest.mark.parametrize(
    ("method", "path", "number"),
    [
        ("read", "class/net/eth0/speed", errno.EINVAL),
        ("read", "class/net/eth9/speed", errno.ENOENT),
        ("read", "class/net/eth0", errno.EISDIR),
        ("read", f"{HOME}/vendor/x", errno.ENOTDIR),
        ("read", f"{HOME}/hidden/x", errno.EACCES),
        ("read", "class/net/loop", errno.ELOOP),
        ("names", f"{HOME}/vendor", errno.ENOTDIR),
        ("names", f"{HOME}/hidden", errno.EACCES),
        ("names", "class/nothing", errno.ENOENT),
        ("target", f"{HOME}/vendor", errno.EINVAL),
        ("target", f"{HOME}/virtfn1", errno.ENOENT),
        ("resolved", f"{HOME}/virtfn1", errno.ENOENT),
    ],
)
def test_sysfs_fails_with_the_errno_of_the_kernel(machine, method: str, path: str, number: int) -> None:
    with pytest.raises(OSError, match=re.escape(os.strerror(number))) as failure:
        getattr(machine.sysfs, method)(path)
    assert failure.value.errno == number


def test_sysfs_cannot_be_written_to(machine) -> None:
    with pytest.raises(OSError, match="Read-only"):
        machine.sysfs.write(f"{HOME}/sriov_numvfs", "2")


def test_queries_answer_from_the_file(machine) -> None:
    queries = machine.queries
    assert [(link.index, link.name, link.is_up, link.alias) for link in queries.links()] == [
        (2, "eth0", True, ""),
        (3, "eth1", False, ""),
        (4, "eth2", False, ""),
    ]
    assert queries.default_route_links() == {2, 3}
    assert queries.addressed_links() == {3, 4}
    assert queries.rdma_devices()[1].ports == (RdmaPort(number=1, state="ACTIVE", netdev_index=3),)
    assert queries.eswitch_modes() == {PF: "legacy"}
    assert (queries.firmware("eth0"), queries.firmware("eth1")) == ("1.2", "")


def test_queries_tell_vfs_by_the_index_of_their_pf_alone(machine) -> None:
    [vf] = machine.queries.vf_infos(2)
    assert (vf.index, vf.mac, vf.max_tx_rate_mbps, vf.trust) == (0, "52:54:00:00:01:00", 100, None)
    assert machine.queries.vf_infos(4) == []
    with pytest.raises(NetlinkError) as failure:
        machine.queries.vf_infos(9)
    assert failure.value.errno == errno.ENODEV


def test_queries_fail_as_the_recorded_kernel_did(machine) -> None:
    with pytest.raises(NetlinkError) as failure:
        machine.queries.firmware("eth2")
    assert failure.value.errno == errno.EOPNOTSUPP


def test_driver_that_leaves_takes_netdevs_vfs_and_devices_above_them(machine) -> None:
    machine.unbind_driver_after(PF, reads=0)
    queries = machine.queries
    assert [link.name for link in queries.links()] == ["eth1"]
    assert [device.name for device in queries.rdma_devices()] == ["rxe1"]
    assert queries.default_route_links() == {3}
    assert queries.addressed_links() == {3}
    assert queries.eswitch_modes() == {}
    assert machine.sysfs.names(HOME) == ["empty", "hidden", "sriov_numvfs", "vendor"]
    assert machine.sysfs.read(f"{HOME}/sriov_numvfs") == "0\n"
    assert machine.sysfs.names("class/net") == ["loop"]
    assert machine.sysfs.names("bus/pci/devices") == [PF]
    with pytest.raises(KernelError):
        queries.vf_infos(2)


def test_driver_leaves_after_so_many_looks(machine) -> None:
    machine.sysfs.read(f"{HOME}/vendor")
    machine.unbind_driver_after(PF, reads=2)
    assert len(machine.queries.links()) == 3
    assert machine.sysfs.read("class/net/eth2/speed") == "1000\n"
    assert len(machine.queries.links()) == 1
    assert machine.reads == 4
