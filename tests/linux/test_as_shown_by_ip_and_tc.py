"""Requested settings as iproute2 shows them: another reader of the same kernel."""

from __future__ import annotations

import json
import re
import subprocess
from ipaddress import ip_interface

import pytest

from k8s_rdma.core.step import Route
from k8s_rdma.linux.netlink.rtnl import named, of_kind
from k8s_rdma.linux.netlink.traffic_control import HtbClass, TrafficControl

QDISC = 0x10000
MAC = "02:00:00:00:00:a5"


@pytest.fixture
def index(rtnl):
    """An interface `a` that is up."""
    rtnl.create("create a", named("a"), of_kind("ifb"))
    rtnl.change(rtnl.link("a").index, "up", up=True)
    return rtnl.link("a").index


@pytest.fixture
def control(rtnl, index):
    """Traffic control, an HTB scheduler on `a`, and in it one class."""
    made = TrafficControl(rtnl.socket)
    made.add_htb(index, QDISC, 0xFFFF, "htb")
    made.set_class(index, htb(1, 125_000_000, 12_500_000), "class")
    return made


def htb(minor, rate, ceil):
    return HtbClass(
        handle=QDISC | minor, parent=QDISC, rate=rate, ceil=ceil, burst=128 << 10, quantum=64 << 10
    )


def shown(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def ip(*arguments):
    return json.loads(shown("ip", "-json", *arguments))


def tc(*arguments):
    return json.loads(shown("tc", "-json", *arguments))


@pytest.mark.parametrize(("own", "other"), [("10.0.0.2", "10.9.9.9/32"), ("fd00::2", "fd00:9::9/128")])
def test_address_is_deleted_when_it_has_one_at_the_other_end(rtnl, index, own, other):
    subprocess.run(["ip", "address", "add", own, "peer", other, "dev", "a"], check=True)
    (found,) = [each for each in rtnl.addresses(index) if not each.ip.is_link_local]
    assert str(found.ip) == own
    rtnl.delete_address(index, found, "delete")
    assert own not in shown("ip", "address", "show", "dev", "a")


def test_first_route_to_a_destination_stays_and_a_route_on_the_link_has_its_scope(rtnl, index):
    rtnl.add_address(index, ip_interface("10.0.0.2/24"), "add")
    rtnl.add_route(index, Route("0.0.0.0/0", "10.0.0.1"), "add")
    rtnl.add_route(index, Route("0.0.0.0/0", "10.0.0.9"), "add again")
    rtnl.add_route(index, Route("10.9.0.0/16"), "add")
    routes = [(each["dst"], each.get("gateway"), each["scope"]) for each in ip("-N", "-details", "route")]
    assert ("default", "10.0.0.1", "0") in routes
    assert ("10.9.0.0/16", None, "253") in routes
    assert [gateway for destination, gateway, _ in routes if destination == "default"] == ["10.0.0.1"]


@pytest.mark.parametrize(("own", "dst"), [("10.0.0.2/24", "10.9.0.0/16"), ("fd00::2/64", "fd09::/64")])
def test_route_has_the_requested_metric_table_and_sizes(rtnl, index, own, dst):
    rtnl.add_address(index, ip_interface(own), "add")
    rtnl.add_route(index, Route(dst, mtu=1400, advmss=1360, priority=77, table=4711), "add")
    family = "-6" if ":" in dst else "-4"
    [found] = [each for each in ip(family, "-N", "route", "show", "table", "4711") if each["dst"] == dst]
    assert (found["metric"], found["metrics"]) == (77, [{"mtu": 1400, "advmss": 1360}])
    assert dst not in shown("ip", family, "route")


@pytest.mark.parametrize("scope", [0, 253, 254])
def test_route_has_the_requested_scope(rtnl, index, scope):
    rtnl.add_route(index, Route("10.9.0.0/16", scope=scope), "add")
    [found] = ip("-N", "-details", "route", "show", "10.9.0.0/16")
    assert found["scope"] == str(scope)


def test_class_has_rates_burst_and_quantum(control):
    found = shown("tc", "-details", "class", "show", "dev", "a")
    assert "rate 1Gbit ceil 100Mbit" in found
    assert "quantum 65536" in found
    sizes = re.findall(r"burst (\d+)(b|Kb)/", found)
    assert [int(size) * {"b": 1, "Kb": 1024}[unit] for size, unit in sizes] == [
        pytest.approx(128 << 10, rel=0.01)
    ] * 2


@pytest.mark.parametrize(("packets", "kind"), [(True, "pfifo"), (False, "bfifo")])
def test_queue_has_kind_and_size(control, index, packets, kind):
    control.add_fifo(index, QDISC | 1, 4711, "queue", packets=packets)
    (found,) = [each for each in tc("qdisc", "show", "dev", "a") if each.get("parent") == "1:1"]
    assert (found["kind"], found["options"]["limit"]) == (kind, 4711)


def test_source_filter_matches_all_six_octets_and_redirects(control, index):
    control.add_ingress(index, "ingress")
    control.redirect(index, index, "filter", priority=1, source=MAC)
    found = shown("tc", "filter", "show", "dev", "a", "ingress")
    assert re.findall(r"match (\S+) at (\S+)", found) == [
        ("02000000/ffffffff", "-8"),
        ("00a50000/ffff0000", "-4"),
    ]
    assert "Egress Redirect to device a" in found
