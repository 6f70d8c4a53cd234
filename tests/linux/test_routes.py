"""The links that the machine's own traffic leaves by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from contract.linux_lab import run
from k8s_rdma.linux.netlink.routes import below, default_route_links
from k8s_rdma.linux.netlink.rtnl import Link, named, of_kind


def ip(arguments):
    run("ip", *arguments.split())


@pytest.fixture
def links(rtnl):
    """Veth pairs `xa`, `xb`, `xc` with addresses, up; index by name."""
    ip("link set lo up")
    for number, name in enumerate(("xa", "xb", "xc")):
        ip(f"link add name {name} type veth peer name {name}1")
        ip(f"address add 10.0.{number}.1/24 dev {name}")
        ip(f"address add fd00:{number}::1/64 dev {name} nodad")
        ip(f"link set {name} up")
        ip(f"link set {name}1 up")
    return {link.name: link.index for link in rtnl.links()}


def found(rtnl):
    """By name, without the other ends of the veth pairs, which are below them."""
    known = {link.index: link.name for link in rtnl.links()}
    return {known[index] for index in default_route_links(rtnl, rtnl.links())} - {"xa1", "xb1", "xc1"}


def test_namespace_without_a_route_has_none(rtnl):
    assert default_route_links(rtnl, rtnl.links()) == frozenset()


def test_routes_to_somewhere_lead_through_no_default(rtnl, links):
    ip("route add 10.9.0.0/16 via 10.0.0.2")
    ip("-6 route add fd09::/32 via fd00:0::2")
    assert found(rtnl) == set()


def test_default_routes_of_every_metric_and_both_families_count(rtnl, links):
    ip("route add default via 10.0.0.2 metric 100")
    assert found(rtnl) == {"xa"}
    ip("route add default via 10.0.1.2 metric 200")
    assert found(rtnl) == {"xa", "xb"}
    ip("-6 route add default via fd00:2::2")
    assert found(rtnl) == {"xa", "xb", "xc"}


def test_default_routes_of_other_tables_and_those_that_lead_nowhere_do_not_count(rtnl, links):
    ip("route add default via 10.0.0.2 table 100")
    ip("-6 route add default via fd00:0::2 table 100")
    ip("route add blackhole default metric 50")
    ip("-6 route add unreachable default metric 50")
    assert found(rtnl) == set()


@pytest.mark.parametrize(
    "route",
    [
        "route add default nexthop via 10.0.0.2 nexthop via 10.0.1.2 weight 2",
        "-6 route add default nexthop via fd00:0::2 nexthop via fd00:1::2",
    ],
    ids=["IPv4", "IPv6"],
)
def test_every_nexthop_of_a_route_with_several_counts(rtnl, links, route):
    ip(route)
    assert found(rtnl) == {"xa", "xb"}


@pytest.mark.parametrize("compatible", [0, 1])
def test_nexthop_objects_and_groups_of_them_count(rtnl, links, compatible):
    ip("nexthop add id 1 via 10.0.0.2 dev xa")
    ip("nexthop add id 2 via 10.0.1.2 dev xb")
    ip("nexthop add id 3 group 1/2")
    ip("nexthop add id 4 via fd00:2::2 dev xc")
    # 0: routes through nexthop objects are reported without their links (ip-sysctl).
    Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text(str(compatible))
    ip("route add default nhid 3")
    ip("-6 route add default nhid 4")
    assert found(rtnl) == {"xa", "xb", "xc"}


def test_ports_of_a_bridge_count_with_it(rtnl, links):
    rtnl.create("create", named("xbr"), of_kind("bridge"))
    ip("link set xbr up")
    ip("address add 10.0.9.1/24 dev xbr")
    ip("link set xb master xbr")
    ip("route add default via 10.0.9.2")
    assert found(rtnl) == {"xbr", "xb"}


def test_parent_of_a_macvlan_counts_with_it(rtnl, links):
    ip("link add link xa name mv type macvlan")
    ip("address add 10.0.9.1/24 dev mv")
    ip("link set mv up")
    ip("route add default via 10.0.9.2")
    assert found(rtnl) == {"mv", "xa"}


def link(index, **values):
    plain = Link(
        index=index,
        name=f"l{index}",
        mac="",
        mtu=1500,
        is_up=True,
        carrier=True,
        kind="",
        master=0,
        alias="",
        peer=0,
        peer_elsewhere=None,
    )
    return replace(plain, **values)


def test_bonded_links_count_below_a_vlan_of_the_bond():
    vlan, bond = link(4, kind="vlan", peer=3), link(3, kind="bond")
    machine = (link(1, master=3), link(2, master=3), bond, vlan, link(5))
    assert below(machine, {4}) == {1, 2, 3, 4}
    assert below(machine, {1}) == {1}


def test_ports_of_an_open_vswitch_count_with_its_internal_ones():
    switch, internal = link(2, kind="openvswitch"), link(3, kind="openvswitch", master=2)
    assert below((link(1, master=2), switch, internal, link(4)), {3}) == {1, 2, 3}


def test_member_of_a_vrf_brings_no_other_with_it():
    assert below((link(1, master=3), link(2, master=3), link(3, kind="vrf")), {1}) == {1}


def test_link_in_another_namespace_is_not_taken_for_the_one_of_that_index_here():
    assert below((link(1, peer=2, peer_elsewhere=0), link(2)), {1}) == {1}
    assert below((link(1, peer=9),), {1, 8}) == {1}


def test_links_that_lead_to_each_other_come_to_an_end():
    assert below((link(1, peer=2), link(2, peer=1)), {1}) == {1, 2}
