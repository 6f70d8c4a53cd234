"""Addresses of a pod's interface, as a station at the other end of its link finds them."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
import time

import pytest

from contract.linux_lab import needs_namespaces
from k8s_rdma.core.step import ConfigureInterface, NetnsRef, Route
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import AddressState, Rtnl, in_namespace, named, of_kind
from k8s_rdma.linux.netns import Namespaces, entered
from k8s_rdma.linux.pod_interface import (
    ANSWER_MS,
    USUAL_ANSWER_MS,
    advertisement,
    announce,
    configure,
    interfaces_in,
)
from network_namespaces import create_namespace

pytestmark = needs_namespaces
IFA_F_NODAD = 2
DEADLINE_S = 120


class Station:
    """A namespace with one end of a link, under the name `net0`."""

    def __init__(self):
        self.namespace = create_namespace()
        self.netns = NetnsRef(f"/proc/{os.getpid()}/fd/{self.namespace}", os.fstat(self.namespace).st_ino)

    def close(self):
        os.close(self.namespace)

    def run(self, *command):
        ended = subprocess.run(
            ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.namespace}", *command],
            capture_output=True,
            text=True,
            check=True,
        )
        return ended.stdout

    def ip(self, *arguments):
        return json.loads(self.run("ip", "-json", *arguments) or "[]")

    def set(self, setting, value):
        self.run("sh", "-c", f"echo {value} >/proc/sys/net/ipv6/conf/{setting}")

    def neighbour(self, address):
        return [each.get("lladdr") for each in self.ip("neighbour", "show", address)]

    def configure(self, *addresses, routes=()):
        step = ConfigureInterface(netns=self.netns, ifname="net0", addresses=addresses, routes=routes)
        configure(step, self.namespace)

    def look(self):
        return interfaces_in(self.netns, Namespaces())["net0"]

    def answer_ms(self):
        return int(self.run("cat", "/proc/sys/net/ipv6/neigh/net0/retrans_time_ms"))

    @property
    def mac(self):
        return self.ip("link", "show", "net0")[0]["address"]


@pytest.fixture
def stations():
    """A pod, its interface down, and another station that is up."""
    pod, other = Station(), Station()
    with Rtnl(pod.namespace) as rtnl:
        rtnl.create("create", named("net0"), of_kind("veth"))
        peer = rtnl.link_at(rtnl.link("net0").peer)
        rtnl.change(peer.index, "move", in_namespace(other.namespace), named("net0"))
    other.run("ip", "link", "set", "net0", "up")
    yield pod, other
    pod.close()
    other.close()


@pytest.fixture
def pod(stations):
    return stations[0]


@pytest.fixture
def other(stations):
    return stations[1]


def eventually(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_address_with_flags_has_these_and_is_not_optimistic(pod):
    step = ConfigureInterface(
        netns=pod.netns, ifname="net0", addresses=("fd00::2/64", "10.0.0.2/24"), address_flags=IFA_F_NODAD
    )
    configure(step, pod.namespace)
    found = pod.look()
    assert "fd00::2/64" in found.addresses - found.unverified - found.unusable
    shown = {each["local"]: each for each in pod.ip("address", "show", "net0")[0]["addr_info"]}
    assert shown["fd00::2"]["nodad"]


def test_address_is_usable_at_once_during_duplicate_address_detection(pod):
    pod.configure("fd00::2/64", "10.0.0.2/24")
    found = pod.look()
    assert "fd00::2/64" in found.unverified
    assert (found.unusable, found.duplicates) == (set(), set())
    with entered(pod.namespace):
        user = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    with user:
        user.bind(("fd00::2", 0))
    eventually(lambda: not pod.look().unverified)
    assert {"fd00::2/64", "10.0.0.2/24"} <= pod.look().addresses


def test_first_connection_of_a_pod_succeeds_during_duplicate_address_detection(pod, other):
    other.run("ip", "address", "add", "fd00::1/64", "dev", "net0", "nodad")
    eventually(lambda: other.look().carrier or pod.run("ip", "link", "set", "net0", "up"))
    with entered(other.namespace):
        server = socket.create_server(("fd00::1", 4711), family=socket.AF_INET6)
    with server:
        pod.configure("fd00::2/64")
        with entered(pod.namespace):
            client = socket.socket(socket.AF_INET6)
        with client:
            client.settimeout(DEADLINE_S)
            client.connect(("fd00::1", 4711))
            assert pod.answer_ms() == ANSWER_MS < USUAL_ANSWER_MS


def test_address_that_another_station_has_is_found_out(pod, other):
    other.run("ip", "address", "add", "fd00::2/64", "dev", "net0", "nodad")
    pod.configure("fd00::2/64", "fd00::3/64")
    eventually(lambda: pod.look().duplicates)
    assert pod.look().duplicates == {"fd00::2/64"}
    assert "fd00::3/64" not in pod.look().duplicates


def test_address_without_optimism_is_unusable_until_duplicate_address_detection_ends(pod):
    with Rtnl(pod.namespace) as rtnl:
        link = rtnl.link("net0")
        rtnl.change(link.index, "up", up=True)
        eventually(lambda: rtnl.link("net0").carrier)
        rtnl.add_address(link.index, ipaddress.ip_interface("fd00::2/64"), "add")
        states = {str(each.address): each.state for each in rtnl.every_address()[link.index]}
    assert states["fd00::2/64"] is AddressState.TENTATIVE
    assert pod.look().unusable >= {"fd00::2/64"}
    eventually(lambda: not pod.look().unusable)


def test_interface_without_a_link_is_configured_and_reports_that(pod, other):
    other.run("ip", "link", "set", "net0", "down")
    pod.configure("fd00::2/64", "10.0.0.2/24", routes=(Route("10.9.0.0/16", "10.0.0.1"),))
    assert not pod.look().carrier
    announce({"net0": ("10.0.0.2/24", "fd00::2/64")}, pod.namespace)


def test_namespace_without_duplicate_address_detection_has_addresses_at_once(pod):
    pod.set("all/accept_dad", 0)
    pod.set("default/accept_dad", 0)
    pod.set("net0/accept_dad", 0)
    pod.configure("fd00::2/64")
    found = pod.look()
    assert "fd00::2/64" in found.addresses
    assert "fd00::2/64" not in found.unusable
    eventually(lambda: "fd00::2/64" not in pod.look().unverified)  # the kernel's worker says so, soon after


def test_link_local_address_is_given_as_any_other(pod):
    pod.configure("fe80::1234/64")
    [found] = [
        each for each in pod.ip("address", "show", "net0")[0]["addr_info"] if each["local"] == "fe80::1234"
    ]
    assert found["scope"] == "link"


def test_ipv6_address_is_refused_if_ipv6_is_disabled(pod):
    pod.set("net0/disable_ipv6", 1)
    with pytest.raises(KernelError, match=r"address fd00::2/64: IPv6 is disabled .*net0\.disable_ipv6"):
        pod.configure("10.0.0.2/24", "fd00::2/64")
    pod.configure("10.0.0.2/24")


def test_ipv6_address_is_refused_if_packets_are_too_small_for_it(pod):
    pod.run("ip", "link", "set", "net0", "mtu", "1200")
    with pytest.raises(KernelError, match="IPv6 needs an MTU of 1280 bytes, it has 1200"):
        pod.configure("fd00::2/64")


@pytest.mark.parametrize(("address", "own"), [("10.0.0.2", "10.0.0.1/24"), ("fd00::2", "fd00::1/64")])
def test_station_that_knew_the_last_holder_learns_the_new_one(pod, other, address, own):
    stale = "02:00:00:00:00:99"
    options = ["nodad"] if ":" in own else []
    other.run("ip", "address", "add", own, "dev", "net0", *options)
    other.run("ip", "neighbour", "add", address, "lladdr", stale, "nud", "reachable", "dev", "net0")
    pod.configure(f"{address}/{'64' if ':' in own else '24'}")
    eventually(lambda: pod.look().carrier)
    assert other.neighbour(address) == [stale]
    announce({"net0": (f"{address}/24",), "gone": ("10.0.0.9/24",)}, pod.namespace)
    eventually(lambda: other.neighbour(address) == [pod.mac])
    assert pod.answer_ms() == USUAL_ANSWER_MS


def test_announcement_does_not_change_a_station_that_never_queried(pod, other):
    other.run("ip", "address", "add", "10.0.0.1/24", "dev", "net0")
    pod.configure("10.0.0.2/24")
    eventually(lambda: pod.look().carrier)
    announce({"net0": ("10.0.0.2/24",)}, pod.namespace)
    assert other.neighbour("10.0.0.2") == []
    assert pod.neighbour("10.0.0.2") == []


def test_announcement_has_all_addresses_of_an_interface(pod, other):
    given = ("10.0.0.2/24", "10.1.0.2/24", "fd00::2/64", "fd01::2/64")
    for number, address in enumerate(given):
        own = address.replace("::2", "::1").replace(".2/", ".1/")
        other.run("ip", "address", "add", own, "dev", "net0")
        stale = ("lladdr", f"02:00:00:00:00:{number:02}", "nud", "reachable", "dev", "net0")
        other.run("ip", "neighbour", "add", address.partition("/")[0], *stale)
    pod.configure(*given)
    eventually(lambda: pod.look().carrier)
    announce({"net0": given}, pod.namespace)
    targets = [address.partition("/")[0] for address in given]
    eventually(lambda: [other.neighbour(target) for target in targets] == [[pod.mac]] * len(given))


def test_advertisement_has_the_mac_of_infiniband_at_its_place():
    """RFC 4391, section 9.3: three times eight octets, of which the first four state its kind."""
    mac, address = bytes(range(20)), ipaddress.IPv6Address("fd00::1")
    message = advertisement(mac, address)
    assert message[8:24] == address.packed
    assert message[24:] == b"\x02\x03\0\0" + mac
