"""Attributes of the link itself that move along, read and restored in a namespace of the test's own."""

from __future__ import annotations

import os
import subprocess

import msgspec
import pytest

import bpf_programs
from contract.linux_lab import needs_namespaces
from k8s_rdma.core.netdev_attributes import XDP, Attributes, differences, programs
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import Rtnl, in_namespace, named
from k8s_rdma.linux.netlink.socket import attribute
from k8s_rdma.linux.vf.attributes import NetdevAttributes
from network_namespaces import create_namespace

pytestmark = needs_namespaces

_IFALIAS = 20


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
def test_attribute_of_the_link_is_read_and_restored(rtnl, netdev, read_attributes, setting, name):
    home = read_attributes()
    subprocess.run(["ip", "link", "set", "vf4", *setting.split()], check=True)
    assert name in {found for found, value in read_attributes() if dict(home)[found] != value}
    with NetdevAttributes(rtnl) as attributes:
        attributes.restore(netdev, home, "restore")
    assert bool(differences(home, read_attributes())) == (name == "link mode")


@pytest.mark.parametrize("flags", [0, bpf_programs.GENERIC], ids=["driver", "generic"])
@pytest.mark.parametrize("by_link", [False, True])
def test_xdp_program_is_read_and_detached_unless_a_bpf_link_holds_it(
    rtnl, netdev, read_attributes, by_link, flags
):
    home = read_attributes()
    program = bpf_programs.load(bpf_programs.returning(bpf_programs.XDP_PASS))
    link = None
    if by_link:
        link = bpf_programs.link_xdp("vf4", program, flags)
    else:
        bpf_programs.attach_xdp("vf4", program, flags)
    os.close(program)
    assert dict(read_attributes())[XDP].endswith("(generic)" if flags else "(driver)")
    assert len(programs(read_attributes())) == 1
    with NetdevAttributes(rtnl) as attributes:
        attributes.restore(netdev, home, "restore")
    assert bool(differences(home, read_attributes())) == by_link
    if link is not None:
        os.close(link)
    assert read_attributes() == home


@pytest.mark.parametrize(
    "alias", [b"mine", b"100 %, a/b", "Büro".encode(), b"\xff\x1b[2J\nforged", b"\xfe" * 255]
)
def test_alias_of_any_bytes_is_recorded_restored_and_shown_in_one_line(rtnl, netdev, read_attributes, alias):
    """The kernel stores any bytes of a process with CAP_NET_ADMIN: `dev_set_alias` looks at no bytes."""
    before = read_attributes()
    rtnl.change(netdev.index, "alias", attribute(_IFALIAS, alias))
    home = read_attributes()
    assert msgspec.json.decode(msgspec.json.encode(home), type=Attributes) == home
    [difference] = differences(before, home)
    assert difference.isprintable()
    rtnl.change(netdev.index, "alias", attribute(_IFALIAS, b"another"))
    with NetdevAttributes(rtnl) as attributes:
        attributes.restore(netdev, home, "restore")
    assert rtnl.details(netdev.index, 0, "alias")[_IFALIAS].rstrip(b"\0") == alias
    assert read_attributes() == home


def test_link_above_that_takes_all_frames_in_a_namespace_unknown_is_seen_and_stays(
    rtnl, netdev, read_attributes
):
    """A pod may move a macvlan on its VF to a third namespace, which outlives the pod's."""
    home, third = read_attributes(), create_namespace()
    try:
        above = ["ip", "link", "add", "link", "vf4", "name", "thief", "type", "macvlan", "mode", "passthru"]
        subprocess.run(above, check=True)
        rtnl.change(rtnl.link("thief").index, "move", in_namespace(third), named("thief"))
        with Rtnl(third) as elsewhere:
            elsewhere.change(elsewhere.link("thief").index, "up", up=True)
        with NetdevAttributes(rtnl) as attributes:
            attributes.restore(netdev, home, "restore")
        assert differences(home, read_attributes()) == ("its promiscuity is 1, at home 0",)
    finally:
        os.close(third)


def test_attributes_of_a_netdev_that_is_gone_are_an_error(rtnl, netdev, read_attributes):
    rtnl.delete(netdev.index, "delete")
    with pytest.raises(KernelError, match="vf4"):
        read_attributes()
