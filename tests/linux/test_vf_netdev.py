"""Name, MAC and MTU of a netdev on its way into a pod and home, in a namespace of the test's own.

A multicast address stands for one that the PF refuses: both end in EADDRNOTAVAIL.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import subprocess
from dataclasses import replace

import pytest

from contract.linux_lab import needs_namespaces
from k8s_rdma.core.kernel import OtherMacError
from k8s_rdma.core.step import GiveVf, NetnsRef, VfHome, VfRef
from k8s_rdma.core.types import PciAddress
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import named, of_kind, with_mac, with_mtu
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.vf.netdev import (
    apply_link_settings,
    require_link_settings,
    require_mtu_of_pf,
    restore_netdev,
    set_mac,
)

pytestmark = needs_namespaces

VF = VfRef(PciAddress("0000:03:00.0"), 4)
HOME = VfHome(name="vf4", mac="02:00:00:00:00:04", mtu=1500)
REFUSED = "01:00:00:00:00:04"
GIVE = GiveVf(
    vf=VF,
    home=HOME,
    netns=NetnsRef("/run/netns/pod", 7),
    ifname="rdma0",
    mac="02:00:00:00:00:99",
    mtu=1400,
)


@pytest.fixture
def index(rtnl):
    rtnl.create("create", named(HOME.name), of_kind("bridge"), with_mac(HOME.mac))
    return rtnl.link(HOME.name).index


def test_netdev_has_the_settings_that_the_pod_requests(rtnl, index):
    apply_link_settings(rtnl.link_at(index), GIVE, rtnl)
    found = rtnl.link_at(index)
    assert (found.mac, found.mtu) == (GIVE.mac, GIVE.mtu)
    require_link_settings(found, GIVE)


def test_netdev_that_has_it_is_left_as_it_is(rtnl, index):
    apply_link_settings(rtnl.link_at(index), GIVE, rtnl)
    rtnl.change(index, "up", up=True)
    before = rtnl.link_at(index)
    apply_link_settings(before, GIVE, rtnl)
    assert rtnl.link_at(index) == before


def test_netdev_keeps_the_settings_of_home_without_requests(rtnl, index):
    plain = replace(GIVE, mac=None, mtu=None)
    apply_link_settings(rtnl.link_at(index), plain, rtnl)
    found = rtnl.link_at(index)
    assert (found.mac, found.mtu) == (HOME.mac, HOME.mtu)
    require_link_settings(found, plain)


@pytest.mark.parametrize(("asked", "words"), [({"mac": HOME.mac}, "MAC"), ({"mtu": 1300}, "MTU 1300")])
def test_setting_that_the_netdev_in_the_pod_lacks_is_an_error_with_both_values(rtnl, index, asked, words):
    apply_link_settings(rtnl.link_at(index), GIVE, rtnl)
    with pytest.raises(KernelError, match=rf"VF 4 of PF .*: {words}.* was set, rdma0 in .* has"):
        require_link_settings(rtnl.link_at(index), replace(GIVE, **asked))


def test_mtu_above_that_of_the_pf_is_an_error_with_both(rtnl, index):
    pf = rtnl.link_at(index)
    require_mtu_of_pf(replace(GIVE, mtu=pf.mtu), pf)
    with pytest.raises(KernelError, match=r"VF 4 of PF .*: MTU 1501 is above that of its PF vf4, 1500"):
        require_mtu_of_pf(replace(GIVE, mtu=1501), pf)


def test_refused_mac_is_an_error_that_says_why_and_leaves_the_netdev_down(rtnl, index):
    with pytest.raises(KernelError, match=f"VF 4 of PF {VF.pf}: MAC {REFUSED}") as caught:
        apply_link_settings(rtnl.link_at(index), replace(GIVE, mac=REFUSED), rtnl)
    assert "the PF has given the VF another MAC" in caught.value.details
    found = rtnl.link_at(index)
    assert (found.mac, found.is_up) == (HOME.mac, False)


class Resetting:
    """A namespace whose netdevs take the MAC that their PF has for them as they go down, and no other."""

    def __init__(self, rtnl, mac):
        self._rtnl, self._mac = rtnl, mac
        self.link_at = rtnl.link_at

    def change(self, index, what, *attributes, up=None):
        if attributes:
            raise NetlinkError(what, errno.EADDRNOTAVAIL)
        self._rtnl.change(index, what, up=up)
        if not up:
            self._rtnl.change(index, what, with_mac(self._mac))


def test_mac_is_taken_when_the_netdev_goes_down_if_the_pf_has_it(rtnl, index):
    set_mac(rtnl.link_at(index), GIVE.mac, Resetting(rtnl, GIVE.mac), "test")
    assert rtnl.link_at(index).mac == GIVE.mac
    with pytest.raises(NetlinkError):
        set_mac(rtnl.link_at(index), HOME.mac, Resetting(rtnl, GIVE.mac), "test")


def test_pf_lets_the_vf_have_its_own_mac_when_that_is_not_the_one_that_it_has(rtnl, index):
    let = []
    restore_netdev(index, VF, HOME, rtnl, let.append)
    assert let == []
    rtnl.change(index, "mac", with_mac(GIVE.mac))
    restore_netdev(index, VF, HOME, rtnl, let.append)
    assert let == [HOME.mac]
    assert rtnl.link_at(index).mac == HOME.mac


def test_refused_mac_of_home_is_an_error_with_the_present_one_and_advice(rtnl, index):
    with pytest.raises(OtherMacError) as caught:
        restore_netdev(index, VF, replace(HOME, mac=REFUSED), rtnl)
    assert caught.value.mac == rtnl.link_at(index).mac
    assert f"vf 4 mac {REFUSED}" in caught.value.details


@pytest.fixture
def returned(rtnl):
    """A netdev as a pod may leave it: another name, MAC and MTU, up, with addresses."""
    rtnl.create("create", named("mine"), of_kind("bridge"), with_mac("02:00:00:00:00:77"), with_mtu(1280))
    index = rtnl.link("mine").index
    rtnl.change(index, "up", up=True)
    for address in ("10.0.0.1/24", "fd00::1/64"):
        rtnl.add_address(index, ipaddress.ip_interface(address), "address")
    return index


def test_netdev_is_as_at_home_whatever_it_was(rtnl, returned):
    for _ in range(2):
        restore_netdev(returned, VF, HOME, rtnl)
        link = rtnl.link_at(returned)
        assert (link.name, link.mac, link.mtu, link.is_up) == (HOME.name, HOME.mac, HOME.mtu, False)
        assert rtnl.addresses(returned) == []


def test_netdev_keeps_its_name_and_the_error_says_so_when_that_of_home_is_taken(rtnl, returned):
    rtnl.create("create", named(HOME.name), of_kind("bridge"))
    with pytest.raises(KernelError, match=f"VF 4 of PF {VF.pf}: returned as mine; its name {HOME.name} is"):
        restore_netdev(returned, VF, HOME, rtnl)
    assert rtnl.link_at(returned).name == "mine"


def test_netdev_receives_at_home_only_traffic_to_its_mac(rtnl, namespace, returned):
    """Whatever its pod wanted to hear: the next one has a right to less."""
    subprocess.run(
        ["ip", "link", "set", "mine", "promisc", "on", "allmulticast", "on", "arp", "off"], check=True
    )
    restore_netdev(returned, VF, HOME, rtnl)
    shown = subprocess.run(["ip", "-j", "link", "show", HOME.name], check=True, capture_output=True).stdout
    assert not {"UP", "PROMISC", "ALLMULTI", "NOARP"} & set(json.loads(shown)[0]["flags"])


def test_netdev_has_no_altname_at_home_that_could_be_another_ones_name(rtnl, namespace, returned):
    for name in ("enp3s0f0v5", HOME.name):
        subprocess.run(["ip", "link", "property", "add", "dev", "mine", "altname", name], check=True)
    restore_netdev(returned, VF, HOME, rtnl)
    assert rtnl.link("enp3s0f0v5") is None
    assert rtnl.link(HOME.name).altnames == ()


def test_mac_that_is_refused_is_an_error_that_names_both(rtnl, returned):
    home = VfHome(name=HOME.name, mac="01:00:00:00:00:01", mtu=HOME.mtu)  # of a group: no netdev takes it
    with pytest.raises(
        KernelError, match="MAC 01:00:00:00:00:01, which is 02:00:00:00:00:77 now: EADDRNOTAVAIL"
    ):
        restore_netdev(returned, VF, home, rtnl)


def test_netdev_that_is_gone_is_an_error(rtnl, returned):
    rtnl.delete(returned, "delete")
    with pytest.raises(KernelError, match=r"VF 4 of PF .*disappeared"):
        restore_netdev(returned, VF, HOME, rtnl)
