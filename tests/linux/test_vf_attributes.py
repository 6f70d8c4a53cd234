"""Attributes of a netdev that move along, read and restored in a namespace of the test's own."""

from __future__ import annotations

import errno
import struct

import pytest

import bpf_programs
from contract.linux_lab import needs_namespaces
from k8s_rdma.core.netdev_attributes import TCX_INGRESS, differences
from k8s_rdma.linux.netlink.rtnl import Rtnl
from k8s_rdma.linux.netlink.socket import NetlinkSocket, connect
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vf.attributes import NetdevAttributes

pytestmark = needs_namespaces

_RTM_GETDCB = 78


def test_tcx_program_is_read_and_stays(rtnl, netdev, read_attributes):
    home = read_attributes()
    bpf_programs.attach_tcx("vf4")
    assert dict(read_attributes())[TCX_INGRESS] == "1"
    with NetdevAttributes(rtnl) as attributes:
        attributes.restore(netdev, home, "restore")
    assert differences(home, read_attributes()) == ("its tcx ingress is 1, at home none",)


def test_attributes_in_sysfs_are_those_of_queues_and_polling(rtnl, tmp_path):
    """A copy of the files: the mounted ones show another namespace."""
    queues = tmp_path / "class/net/lo/queues"
    for path, value in {
        "rx-0/rps_cpus": "0",
        "rx-0/rps_flow_cnt": "0",
        "tx-0/tx_maxrate": "0",
        "tx-0/xps_cpus": "3",
    }.items():
        (queues / path).parent.mkdir(parents=True, exist_ok=True)
        (queues / path).write_text(f"{value}\n")
    for name in ("threaded", "gro_flush_timeout", "napi_defer_hard_irqs"):
        (queues.parent / name).write_text("0\n")
    with NetdevAttributes(rtnl, Sysfs(tmp_path)) as attributes:
        link = rtnl.link("lo")
        home = dict(attributes.read(link.index, link.name))
        assert {"threaded", "gro_flush_timeout", "napi_defer_hard_irqs"} <= home.keys()
        for path in ("rx-0/rps_cpus", "tx-0/tx_maxrate"):
            (queues / path).write_text("1\n")
            now = dict(attributes.read(link.index, link.name))
            assert now["steering of queues"] != home["steering of queues"]
            home = now
        (queues / "tx-0/xps_cpus").write_text("1\n")  # drivers set it when the netdev goes up
        assert dict(attributes.read(link.index, link.name)) == home


class WithoutDcb:
    """A connection to the kernel on which questions for DCB fail, as with a driver whose firmware is busy."""

    def __init__(self, number):
        self._kernel, self._number, self._refused = connect(), number, None

    def send(self, request):
        _, kind, _, sequence, _ = struct.unpack_from("=IHHII", request)
        self._refused = sequence if kind == _RTM_GETDCB else None
        return len(request) if self._refused else self._kernel.send(request)

    def recvmsg(self, size):
        if self._refused is None:
            return self._kernel.recvmsg(size)
        return struct.pack("=IHHIIi16x", 36, 2, 0, self._refused, 0, -self._number), [], 0, None

    def close(self):
        self._kernel.close()


@pytest.mark.parametrize(("number", "value"), [(errno.EIO, "EIO"), (errno.EOPNOTSUPP, None)])
def test_driver_that_fails_to_tell_one_of_its_settings_is_read_all_the_same(netdev, number, value):
    """Otherwise no VF of such a driver could be given."""
    with Rtnl(socket=NetlinkSocket(WithoutDcb(number))) as failing, NetdevAttributes(failing) as attributes:
        assert dict(attributes.read(netdev.index, netdev.name)).get("DCB") == value
