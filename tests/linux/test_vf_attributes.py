"""Attributes of a netdev that move along, read and restored in a namespace of the test's own."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
from socket import SO_RCVBUF, SOL_SOCKET

import msgspec
import pytest

import bpf_programs
import driver_settings
from contract.linux_lab import needs_namespaces
from k8s_rdma.core.netdev_attributes import TCX_INGRESS, XDP, Attributes, differences, programs
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.ethtool_settings import EthtoolSettings
from k8s_rdma.linux.netlink.rtnl import Rtnl, in_namespace, named, of_kind
from k8s_rdma.linux.netlink.socket import GENERIC, NetlinkSocket, attribute, connect
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vf.attributes import NetdevAttributes
from network_namespaces import create_namespace

pytestmark = needs_namespaces

_IFALIAS, _RTM_GETDCB = 20, 78


@pytest.fixture
def netdev(rtnl):
    rtnl.create("create", named("vf4"), of_kind("veth"))
    return rtnl.link("vf4")


@pytest.fixture
def read(rtnl, netdev):
    with NetdevAttributes(rtnl) as attributes:
        yield lambda: attributes.read(netdev.index, netdev.name)


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("txqueuelen 77", "txqueuelen"),
        ("group 7", "group"),
        ("alias mine", "alias"),
        ("gso_max_size 4000", "gso_max_size"),
        ("gso_max_segs 9", "gso_max_segs"),
        ("gro_max_size 5000", "gro_max_size"),
        ("broadcast ff:ff:ff:ff:ff:fe", "broadcast address"),
        ("multicast off", "flags"),
        ("arp off", "flags"),
        ("promisc on", "flags"),
        ("allmulticast on", "flags"),
        ("mode dormant", "link mode"),
    ],
)
def test_attribute_of_the_link_is_read_and_restored(rtnl, netdev, read, setting, name):
    home = read()
    subprocess.run(["ip", "link", "set", "vf4", *setting.split()], check=True)
    assert name in {found for found, value in read() if dict(home)[found] != value}
    with NetdevAttributes(rtnl) as attributes:
        attributes.restore(netdev, home, "restore")
    assert bool(differences(home, read())) == (name == "link mode")


def test_features_are_read_and_restored_and_sizes_that_the_driver_chose_stay(rtnl, netdev, read):
    home = read()
    driver_settings.turn_features_off("vf4")
    assert driver_settings.change_sizes("vf4")
    names = {name for name, value in read() if dict(home)[name] != value}
    assert names == {"features", "channels"}
    with NetdevAttributes(rtnl) as attributes:
        attributes.restore(netdev, home, "restore")
    [remaining] = differences(home, read())
    assert remaining.startswith("its channels is ")


@pytest.mark.parametrize("flags", [0, bpf_programs.GENERIC], ids=["driver", "generic"])
@pytest.mark.parametrize("by_link", [False, True])
def test_xdp_program_is_read_and_detached_unless_a_bpf_link_holds_it(rtnl, netdev, read, by_link, flags):
    home = read()
    program = bpf_programs.load(bpf_programs.returning(bpf_programs.XDP_PASS))
    link = None
    if by_link:
        link = bpf_programs.link_xdp("vf4", program, flags)
    else:
        bpf_programs.attach_xdp("vf4", program, flags)
    os.close(program)
    assert dict(read())[XDP].endswith("(generic)" if flags else "(driver)")
    assert len(programs(read())) == 1
    with NetdevAttributes(rtnl) as attributes:
        attributes.restore(netdev, home, "restore")
    assert bool(differences(home, read())) == by_link
    if link is not None:
        os.close(link)
    assert read() == home


def test_tcx_program_is_read_and_stays(rtnl, netdev, read):
    home = read()
    bpf_programs.attach_tcx("vf4")
    assert dict(read())[TCX_INGRESS] == "1"
    with NetdevAttributes(rtnl) as attributes:
        attributes.restore(netdev, home, "restore")
    assert differences(home, read()) == ("its tcx ingress is 1, at home none",)


@pytest.mark.parametrize(
    "alias", [b"mine", b"100 %, a/b", "Büro".encode(), b"\xff\x1b[2J\nforged", b"\xfe" * 255]
)
def test_alias_of_any_bytes_is_recorded_restored_and_shown_in_one_line(rtnl, netdev, read, alias):
    """The kernel stores what a process with CAP_NET_ADMIN sends: `dev_set_alias` looks at no bytes."""
    before = read()
    rtnl.change(netdev.index, "alias", attribute(_IFALIAS, alias))
    home = read()
    assert msgspec.json.decode(msgspec.json.encode(home), type=Attributes) == home
    [difference] = differences(before, home)
    assert difference.isprintable()
    rtnl.change(netdev.index, "alias", attribute(_IFALIAS, b"another"))
    with NetdevAttributes(rtnl) as attributes:
        attributes.restore(netdev, home, "restore")
    assert rtnl.details(netdev.index, 0, "alias")[_IFALIAS].rstrip(b"\0") == alias
    assert read() == home


def test_link_above_that_takes_all_frames_in_a_namespace_unknown_is_seen_and_stays(rtnl, netdev, read):
    """A pod may move a macvlan on its VF to a third namespace, which outlives the pod's."""
    home, third = read(), create_namespace()
    try:
        above = ["ip", "link", "add", "link", "vf4", "name", "thief", "type", "macvlan", "mode", "passthru"]
        subprocess.run(above, check=True)
        rtnl.change(rtnl.link("thief").index, "move", in_namespace(third), named("thief"))
        with Rtnl(third) as elsewhere:
            elsewhere.change(elsewhere.link("thief").index, "up", up=True)
        with NetdevAttributes(rtnl) as attributes:
            attributes.restore(netdev, home, "restore")
        assert differences(home, read()) == ("its promiscuity is 1, at home 0",)
    finally:
        os.close(third)


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


def test_features_that_the_driver_refused_to_tell_at_home_stay_and_the_rest_is_restored(rtnl, netdev, read):
    """A driver that resets answers EBUSY, which is then recorded."""
    home = tuple(sorted((dict(read()) | {"features": "EBUSY"}).items()))
    subprocess.run(["ip", "link", "set", "vf4", "txqueuelen", "77"], check=True)
    with NetdevAttributes(rtnl) as attributes:
        attributes.restore(netdev, home, "restore")
    [difference] = differences(home, read())
    assert difference.endswith("at home EBUSY")


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


def test_settings_of_a_driver_are_read_when_the_sockets_buffer_does_not_hold_all_answers(netdev):
    connection = connect(GENERIC)
    with EthtoolSettings(NetlinkSocket(connection)) as settings:
        expected = settings.read(netdev.index)
        connection.setsockopt(SOL_SOCKET, SO_RCVBUF, 2048)  # twice as many bytes, socket(7)
        assert settings.read(netdev.index) == expected
        assert {"features", "channels"} <= expected.keys()


def test_attributes_of_a_netdev_that_is_gone_are_an_error(rtnl, netdev, read):
    rtnl.delete(netdev.index, "delete")
    with pytest.raises(KernelError, match="vf4"):
        read()
