"""A netdev made what it was, in a namespace of the test's own."""

from __future__ import annotations

import ipaddress
import json
import subprocess

import pytest

from contract.linux_lab import needs_namespaces
from k8s_rdma.core.step import VfHome, VfRef
from k8s_rdma.core.types import PciAddress
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import named, of_kind, with_mac, with_mtu
from k8s_rdma.linux.vf.netdev import restore_netdev

pytestmark = needs_namespaces

VF = VfRef(PciAddress("0000:03:00.0"), 4)
HOME = VfHome(name="enp3s0f0v4", mac="02:00:00:00:00:04", mtu=1500)


@pytest.fixture
def index(rtnl):
    """A netdev as a pod may leave it: another name, MAC and MTU, up, with addresses."""
    rtnl.create("create", named("mine"), of_kind("bridge"), with_mac("02:00:00:00:00:77"), with_mtu(1280))
    index = rtnl.link("mine").index
    rtnl.change(index, "up", up=True)
    for address in ("10.0.0.1/24", "fd00::1/64"):
        rtnl.add_address(index, ipaddress.ip_interface(address), "address")
    return index


def test_netdev_is_as_at_home_whatever_it_was(rtnl, index):
    for _ in range(2):
        restore_netdev(index, VF, HOME, rtnl)
        link = rtnl.link_at(index)
        assert (link.name, link.mac, link.mtu, link.is_up) == (HOME.name, HOME.mac, HOME.mtu, False)
        assert rtnl.addresses(index) == []


def test_netdev_keeps_its_name_and_the_error_says_so_when_that_of_home_is_taken(rtnl, index):
    rtnl.create("create", named(HOME.name), of_kind("bridge"))
    with pytest.raises(KernelError, match=f"VF 4 of PF {VF.pf}: returned as mine; its name {HOME.name} is"):
        restore_netdev(index, VF, HOME, rtnl)
    assert rtnl.link_at(index).name == "mine"


def test_netdev_receives_at_home_only_traffic_to_its_mac(rtnl, namespace, index):
    """Whatever its pod wanted to hear: the next one has a right to less."""
    subprocess.run(
        ["ip", "link", "set", "mine", "promisc", "on", "allmulticast", "on", "arp", "off"], check=True
    )
    restore_netdev(index, VF, HOME, rtnl)
    shown = subprocess.run(["ip", "-j", "link", "show", HOME.name], check=True, capture_output=True).stdout
    assert not {"UP", "PROMISC", "ALLMULTI", "NOARP"} & set(json.loads(shown)[0]["flags"])


def test_netdev_has_no_altname_at_home_that_could_be_another_ones_name(rtnl, namespace, index):
    for name in ("enp3s0f0v5", HOME.name):
        subprocess.run(["ip", "link", "property", "add", "dev", "mine", "altname", name], check=True)
    restore_netdev(index, VF, HOME, rtnl)
    assert rtnl.link("enp3s0f0v5") is None
    assert rtnl.link(HOME.name).altnames == ()


def test_mac_that_is_refused_is_an_error_that_names_both(rtnl, index):
    home = VfHome(name=HOME.name, mac="01:00:00:00:00:01", mtu=HOME.mtu)  # of a group: no netdev takes it
    with pytest.raises(
        KernelError, match="MAC 01:00:00:00:00:01, which is 02:00:00:00:00:77 now: EADDRNOTAVAIL"
    ):
        restore_netdev(index, VF, home, rtnl)


def test_netdev_that_is_gone_is_an_error(rtnl, index):
    rtnl.delete(index, "delete")
    with pytest.raises(KernelError, match=r"VF 4 of PF .*disappeared"):
        restore_netdev(index, VF, HOME, rtnl)
