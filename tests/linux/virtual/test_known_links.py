"""Links are known as a list of all would show them, whatever was changed, and few are read for it."""

from __future__ import annotations

import random
from dataclasses import replace
from socket import SO_RCVBUF, SOL_SOCKET

import pytest

from contract.lab import PF0, home_of
from contract.linux_lab import needs_namespaces
from contract.virtual_lab import VirtualLab
from k8s_rdma.core.step import GiveVf, VfRef
from k8s_rdma.linux.netlink.rtnl import Rtnl, named, of_kind, with_alias, with_mac, with_mtu
from k8s_rdma.linux.virtual.kernel import VirtualSriov
from k8s_rdma.linux.virtual.known_links import MOST_READ_SINGLY, KnownLinks

pytestmark = needs_namespaces


@pytest.fixture
def lab(tmp_path):
    made = VirtualLab(tmp_path, 3)
    yield made
    made.close()


class CountingLists(Rtnl):
    """Counts lists of all links."""

    lists = 0

    def links(self):
        self.lists += 1
        return super().links()


@pytest.fixture
def rtnl(lab):
    with CountingLists() as opened:
        yield opened


@pytest.fixture
def known(rtnl):
    with KnownLinks(rtnl) as links:
        links.read()
        yield links


def by_index(links):
    """The carriers of other links than the uplink are reported late, and need not be known."""
    return {link.index: link if link.name == "up0" else replace(link, carrier=False) for link in links}


def changes_of(lab, rtnl, netns):
    """Each change that an observation of virtual PFs depends on."""
    step = GiveVf(vf=VfRef(PF0, 1), home=home_of(lab, VfRef(PF0, 1)), netns=netns, ifname="rdma0")

    def change(name, *attributes, up=None):
        link = rtnl.link(name)
        if link is not None:
            rtnl.change(link.index, "change", *attributes, up=up)

    def delete(name):
        link = rtnl.link(name)
        if link is not None:
            rtnl.delete(link.index, "delete")

    def pair():
        if rtnl.link("pair") is None:
            rtnl.create("create", named("pair"), of_kind("veth"))

    return [
        lambda: lab.kernel.apply(step),
        lambda: lab.kernel.apply(step.inverse),
        pair,
        lambda: delete("pair"),
        lambda: change("enp3s0f0r0", up=False),
        lambda: change("enp3s0f0r0", up=True),
        lambda: change("enp3s0f0r0", with_alias('{"vlan":7}')),
        lambda: change("enp3s0f0r0", with_alias("")),
        lambda: change("enp3s0f1", up=False),
        lambda: change("enp3s0f1", up=True),
        lambda: change("enp3s0f0v2", with_mtu(1400)),
        lambda: change("enp3s0f0v2", with_mtu(1500)),
        lambda: change("enp3s0f0v2", with_mac("02:00:00:00:00:77")),
        lambda: change("enp3s0f0v2", named("renamed")),
        lambda: change("renamed", named("enp3s0f0v2")),
        lambda: change("up0", up=False),
        lambda: change("up0", up=True),
    ]


@pytest.mark.parametrize("seed", range(4))
def test_links_are_known_as_a_list_shows_them_after_any_changes(lab, rtnl, known, seed):
    chance = random.Random(seed)
    changes = changes_of(lab, rtnl, lab.namespace())
    for _ in range(60):
        for change in chance.choices(changes, k=chance.randint(0, 3)):
            change()
        assert by_index(known.read({"up0"})) == by_index(lab.rtnl.links())
    assert rtnl.lists == 1


def test_link_that_is_down_is_known_by_its_present_alias_of_which_nothing_is_reported(lab, rtnl, known):
    port = rtnl.link("enp3s0f0r1").index
    rtnl.change(port, "down", up=False)
    known.read()
    rtnl.change(port, "alias", with_alias("another"))
    assert by_index(known.read())[port].alias == "another"
    assert rtnl.lists == 1


def test_links_are_listed_anew_when_reports_were_lost(lab, rtnl, known):
    known.socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 1)  # the least, socket(7)
    vf = rtnl.link("enp3s0f0v2").index
    for mtu in range(1300, 1310):
        rtnl.change(vf, "change", with_mtu(mtu))
    rtnl.create("create", named("late"), of_kind("veth"))
    assert by_index(known.read()) == by_index(lab.rtnl.links())
    assert rtnl.lists == 2


def test_links_are_listed_anew_when_many_have_changed(lab, rtnl, known):
    for number in range(MOST_READ_SINGLY):
        rtnl.create("create", named(f"pair{number}"), of_kind("veth"))
    assert by_index(known.read()) == by_index(lab.rtnl.links())
    assert rtnl.lists == 2


def test_look_at_virtual_hardware_lists_no_links_after_a_pod_has_come_and_gone(lab, rtnl):
    """A list of 135 links takes the kernel half a millisecond, under the lock that all pods' changes need."""
    kernel = VirtualSriov(lab.namespaces, rtnl)
    before = kernel.observe()
    home = home_of(lab, VfRef(PF0, 1))
    step = GiveVf(vf=VfRef(PF0, 1), home=home, netns=lab.namespace(), ifname="rdma0")
    for each in (step, step.inverse):
        kernel.apply(each)
        seen = kernel.observe()
    assert (seen, rtnl.lists) == (before, 1)
    kernel.close()
