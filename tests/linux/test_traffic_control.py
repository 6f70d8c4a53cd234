"""Rates as HTB keeps them."""

from __future__ import annotations

import os

import pytest

from contract.linux_lab import needs_namespaces
from k8s_rdma.linux.netlink.rtnl import Rtnl, named, of_kind
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.netlink.traffic_control import HtbClass, SourceMac, TrafficControl
from network_namespaces import create_namespace

pytestmark = needs_namespaces
QDISC = 0x10000
SOURCES = QDISC, 7
MAC = SourceMac("02:00:00:00:00:2a", 3)


@pytest.fixture
def ifb():
    namespace = create_namespace()
    with Rtnl(namespace) as rtnl:
        rtnl.create("create", named("q"), of_kind("ifb"))
        index = rtnl.link("q").index
        control = TrafficControl(rtnl.socket)
        control.add_htb(index, QDISC, 0xFFFF, "HTB")
        control.add_source_table(index, *SOURCES, "table")
        yield control, index
    os.close(namespace)


def htb(minor, rate, ceil):
    return HtbClass(handle=QDISC | minor, parent=QDISC, rate=rate, ceil=ceil, burst=1 << 17, quantum=1 << 16)


@pytest.mark.parametrize(
    ("rate", "ceil"),
    [(1, 1), (12_500, 125_000_000), ((1 << 32) - 1, 1 << 32), (1 << 32, 1 << 33), (125_000_000_000,) * 2],
)
def test_rates_are_read_back_to_the_byte_also_above_32_bits(ifb, rate, ceil):
    control, index = ifb
    control.set_class(index, htb(1, rate, ceil), "class")
    assert control.class_rates(index, "classes") == {QDISC | 1: (rate, ceil)}


def test_class_changes_when_set_again(ifb):
    control, index = ifb
    control.set_class(index, htb(1, 1 << 33, 1 << 34), "class")
    control.set_class(index, htb(1, 1000, 2000), "class")
    control.set_class(index, htb(2, 3000, 4000), "class")
    assert control.class_rates(index, "classes") == {QDISC | 1: (1000, 2000), QDISC | 2: (3000, 4000)}


def test_class_is_removed_once_no_filter_uses_it(ifb):
    control, index = ifb
    control.set_class(index, htb(1, 1000, 2000), "class")
    control.classify_source(index, SOURCES, MAC, QDISC | 1, "filter")
    with pytest.raises(NetlinkError, match="class 1: EBUSY"):
        control.delete_class(index, QDISC | 1, "class 1")
    control.forget_source(index, SOURCES, MAC.node, "filter")
    control.forget_source(index, SOURCES, MAC.node, "filter")
    control.delete_class(index, QDISC | 1, "class 1")
    assert control.class_rates(index, "classes") == {}


def test_single_class_is_read_alone_and_an_absent_one_is_none(ifb):
    control, index = ifb
    control.set_class(index, htb(1, 1000, 1 << 33), "class")
    control.set_class(index, htb(2, 3000, 4000), "class")
    found = control.class_state(index, QDISC | 1, "class")
    assert (found.rate, found.ceil) == (1000, 1 << 33)
    assert found.tokens > 0  # no frame was sent yet
    assert control.class_state(index, QDISC | 3, "class") is None


def test_sources_are_listed_with_their_classes_also_with_equal_last_bytes(ifb):
    control, index = ifb
    sources = {MAC: 1, SourceMac("02:00:00:00:11:2a", 4): 2, SourceMac("02:00:00:00:00:2b", 3): 2}
    for minor in (1, 2):
        control.set_class(index, htb(minor, 1000, 2000), "class")
    for source, minor in sources.items():
        control.classify_source(index, SOURCES, source, QDISC | minor, "filter")
    found = control.classified_sources(index, SOURCES, "filters")
    assert found == {source.node: QDISC | minor for source, minor in sources.items()}
    control.forget_source(index, SOURCES, MAC.node, "filter")
    assert MAC.node not in control.classified_sources(index, SOURCES, "filters")


def test_class_is_put_to_use_by_port_until_that_is_forgotten(ifb):
    control, index = ifb
    control.set_class(index, htb(1, 1000, 2000), "class")
    control.classify_port(index, (QDISC, 3), "q", QDISC | 1, "filter")
    with pytest.raises(NetlinkError, match="class 1: EBUSY"):
        control.delete_class(index, QDISC | 1, "class 1")
    control.forget_port(index, (QDISC, 3), "filter")
    control.forget_port(index, (QDISC, 3), "filter")
    control.delete_class(index, QDISC | 1, "class 1")
