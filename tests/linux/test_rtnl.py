"""Links, addresses and routes of a real namespace."""

from __future__ import annotations

import errno
import ipaddress
import os
import subprocess
from pathlib import Path

import pytest

from contract.linux_lab import needs_namespaces
from k8s_rdma.core.step import ConfigureInterface, NetnsRef, Route
from k8s_rdma.linux.netlink.rtnl import Rtnl, in_namespace, named, of_kind, with_alias, with_mac, with_mtu
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.netns import entered
from k8s_rdma.linux.pod_interface import configure
from network_namespaces import create_namespace

pytestmark = needs_namespaces


@pytest.fixture
def netns():
    descriptor = create_namespace()
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def rtnl(netns):
    with Rtnl(netns) as opened:
        yield opened


def pair(rtnl, name):
    rtnl.create(f"create {name}", named(name), of_kind("veth"))
    return rtnl.link(name)


def test_link_is_none_if_it_does_not_exist(rtnl):
    assert rtnl.link("absent") is None
    assert rtnl.link_at(999) is None


def test_link_is_the_same_by_name_by_index_and_in_the_list(rtnl):
    link = pair(rtnl, "a0")
    rtnl.change(
        link.index, "change", with_alias("x y"), with_mac("02:00:00:00:00:07"), with_mtu(9000), up=True
    )
    link = rtnl.link("a0")
    assert (link.alias, link.mac, link.mtu, link.is_up, link.carrier, link.kind) == (
        "x y", "02:00:00:00:00:07", 9000, True, False, "veth",
    )  # fmt: skip
    assert rtnl.link_at(link.index) == link
    assert link in rtnl.links()


def test_link_is_decoded_again_only_after_a_change(rtnl):
    link = pair(rtnl, "a0")
    assert rtnl.link_at(link.index) is link
    rtnl.change(link.index, "change", with_alias("x y"))
    changed = rtnl.link("a0")
    assert changed.alias == "x y"
    assert any(listed is changed for listed in rtnl.links())
    rtnl.delete(link.index, "delete")
    assert rtnl.link_at(link.index) is None


def test_link_whose_name_is_no_text_is_found_as_sysfs_names_it_and_has_the_name_taken_from_it(rtnl):
    """A pod may call a netdev so, and the kernel brings it back from there."""
    name = os.fsdecode(b"a\xff\xfe")
    link = pair(rtnl, name)
    assert link.name == name
    assert rtnl.link(name) == link
    rtnl.change(link.index, "rename", named("b"))
    assert rtnl.link_at(link.index).name == "b"


def test_error_about_a_link_whose_name_is_no_text_can_be_encoded(rtnl):
    name = os.fsdecode(b"a\xff")
    pair(rtnl, name)
    with pytest.raises(NetlinkError) as caught:
        rtnl.create(f"create {name}", named(name), of_kind("veth"))
    assert str(caught.value).encode().startswith(rb"create a\udcff: EEXIST")


def test_link_has_no_altnames_once_they_are_deleted(rtnl, netns):
    link = pair(rtnl, "a0")
    with entered(netns):
        for name in ("other", "and-a-longer-one-than-fits"):
            subprocess.run(["ip", "link", "property", "add", "dev", "a0", "altname", name], check=True)
    assert sorted(rtnl.link("other").altnames) == ["and-a-longer-one-than-fits", "other"]
    for _ in range(2):
        rtnl.delete_altnames(rtnl.link("a0"), "delete")
    assert rtnl.link("other") is None
    assert rtnl.link_at(link.index).altnames == ()


def test_pair_names_its_other_end(rtnl, netns):
    link = pair(rtnl, "a0")
    assert rtnl.link_at(link.peer).peer == link.index
    other = create_namespace()
    assert rtnl.number_of(other) is None
    rtnl.change(link.peer, "move", in_namespace(other), named("moved"))
    assert rtnl.link("a0").peer_elsewhere == rtnl.number_of(other)
    os.close(other)


def test_deleting_holds_when_the_link_is_gone(rtnl):
    link = pair(rtnl, "a0")
    rtnl.delete(link.index, "delete")
    rtnl.delete(link.index, "delete")
    assert rtnl.link_at(link.peer) is None


@pytest.mark.parametrize(
    ("number", "attempt"),
    [
        (errno.EEXIST, lambda rtnl: pair(rtnl, "lo")),
        (errno.ENODEV, lambda rtnl: rtnl.change(999, "rename", named("b"))),
        (errno.EOPNOTSUPP, lambda rtnl: rtnl.create("create", named("b"), of_kind("nonsense"))),
        (errno.ENETUNREACH, lambda rtnl: route(rtnl, Route("192.0.2.0/24", "198.51.100.1"))),
    ],
)
def test_refusals_carry_their_errno(rtnl, number, attempt):
    with pytest.raises(NetlinkError) as failure:
        attempt(rtnl)
    assert failure.value.errno == number


def route(rtnl, wanted):
    link = pair(rtnl, "a0")
    rtnl.change(link.index, "up", up=True)
    rtnl.add_route(link.index, wanted, "route")


@pytest.mark.parametrize("text", ["10.0.0.1/24", "10.0.0.1/32", "fd00::1/64", "fd00::1/128"])
def test_address_comes_and_goes_and_both_hold_when_repeated(rtnl, text):
    link, address = pair(rtnl, "a0"), ipaddress.ip_interface(text)
    rtnl.change(link.index, "up", up=True)
    for _ in range(2):
        rtnl.add_address(link.index, address, "add")
        assert rtnl.addresses(link.index) == [address]
    for _ in range(2):
        rtnl.delete_address(link.index, address, "delete")
        assert rtnl.addresses(link.index) == []


def test_addresses_are_those_of_one_link(rtnl):
    here, there = pair(rtnl, "a0"), pair(rtnl, "b0")
    address = ipaddress.ip_interface("10.0.0.1/24")
    rtnl.add_address(here.index, address, "add")
    assert (rtnl.addresses(here.index), rtnl.addresses(there.index)) == ([address], [])


def test_configured_interface_answers_for_its_own_addresses_only(rtnl, netns):
    pair(rtnl, "rdma0")
    configure(ConfigureInterface(netns=NetnsRef("pod", 1), ifname="rdma0"), netns)
    with entered(netns):
        settings = Path("/proc/sys/net/ipv4/conf/rdma0")  # of the reading thread's namespace
        found = [int((settings / name).read_text()) for name in ("arp_ignore", "arp_announce")]
    assert found == [1, 2]
