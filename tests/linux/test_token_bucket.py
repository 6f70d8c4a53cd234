"""A limit as the kernel keeps it, whatever else was, or is made of a netdev's queueing disciplines."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest

from contract.linux_lab import needs_namespaces
from k8s_rdma.core.types import MAX_RATE_MBPS
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import Rtnl, named, of_kind, u32, with_mtu
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.netlink.traffic_control import (
    HANDLE,
    Bucket,
    bucket_for,
    is_supported,
    limit,
    root_qdiscs,
)
from k8s_rdma.linux.netns import entered
from network_namespaces import create_namespace

pytestmark = needs_namespaces

_NUM_TX_QUEUES = 31
QUEUES = u32(_NUM_TX_QUEUES, 4)


@pytest.fixture(params=[(), (QUEUES,)], ids=["one queue", "four queues"])
def link(request):
    """A link that is up, with its kernel's default qdiscs."""
    namespace = create_namespace()
    with Rtnl(namespace) as rtnl, entered(namespace):
        rtnl.create("create", named("q"), *request.param, of_kind("ifb"))
        index = rtnl.link("q").index
        rtnl.change(index, "up", up=True)
        yield rtnl, index
    os.close(namespace)


def tc(*arguments):
    subprocess.run(["tc", "qdisc", *arguments], check=True, capture_output=True)


def shown():
    found = subprocess.run(["tc", "qdisc", "show", "dev", "q"], check=True, capture_output=True, text=True)
    return found.stdout.split("\n")[0]


def mbps_of(rtnl, index):
    return root_qdiscs(rtnl.socket, "look")[index].mbps


@pytest.mark.parametrize(
    ("mbps", "bucket"),
    [
        (1, Bucket(125_000, 65_600, 512 << 10)),
        (50, Bucket(6_250_000, 65_600, 512 << 10)),
        (200, Bucket(25_000_000, 100_000, 1_250_000)),
        (1000, Bucket(125_000_000, 500_000, 6_250_000)),
        (400_000, Bucket(50_000_000_000, 200_000_000, 64 << 20)),
    ],
)
def test_bucket_takes_any_frame_and_4_ms_of_the_rate_and_its_queue_50_ms(mbps, bucket):
    assert bucket_for(mbps) == bucket


@pytest.mark.parametrize("mbps", [1, 7, 200, 34_359, 34_360, 400_000])
def test_limit_is_the_one_that_tc_shows_and_that_is_read_back(link, mbps):
    rtnl, index = link
    limit(rtnl.socket, index, mbps, "limit")
    assert root_qdiscs(rtnl.socket, "look")[index].bucket == bucket_for(mbps)
    rate = f"{mbps}Mbit" if mbps % 1000 else f"{mbps // 1000}Gbit"
    assert shown().startswith(f"qdisc tbf 7264: root refcnt {shown().split()[5]} rate {rate} ")


@pytest.mark.parametrize("mbps", [8_590_000, MAX_RATE_MBPS])
def test_limit_may_be_so_large_that_4_ms_of_it_are_more_than_a_bucket_can_be(link, mbps):
    rtnl, index = link
    limit(rtnl.socket, index, mbps, "limit")
    assert mbps_of(rtnl, index) == mbps


def loopback():
    found = subprocess.run(["tc", "qdisc", "show", "dev", "lo"], check=True, capture_output=True, text=True)
    return found.stdout


@pytest.mark.parametrize("roots", [[], ["pfifo"], ["tbf", "rate", "1mbit", "burst", "2000", "limit", "9000"]])
def test_query_for_a_queueing_discipline_changes_no_state(link, roots):
    rtnl, _ = link
    if roots:
        tc("add", "dev", "lo", "root", *roots)
    before = loopback()
    assert (is_supported(rtnl.socket), is_supported(rtnl.socket, "nosuchqdisc")) == (True, False)
    assert loopback() == before


SIZE_TABLE = "stab overhead -1000 linklayer ethernet"

OTHERS = {
    "none": ["del dev q root"],
    "another kind": ["replace dev q root pfifo"],
    "another kind of our handle": ["del dev q root", "add dev q root handle 7264: pfifo"],
    "another handle": ["replace dev q root handle 1: tbf rate 100mbit burst 65600 limit 512kb"],
    "another rate": ["change dev q root handle 7264: tbf rate 9gbit burst 9mb limit 1mb"],
    "a bucket without end": ["change dev q root handle 7264: tbf rate 100mbit burst 1gb limit 512kb"],
    "a queue of nothing": ["change dev q root handle 7264: tbf rate 100mbit burst 65600 limit 1"],
    "frames that count for less": [
        "del dev q root",
        f"add dev q root handle 7264: {SIZE_TABLE} tbf rate 100mbit burst 65600 limit 512kb",
    ],
    "ours below another": [
        "replace dev q root handle 1: tbf rate 9gbit burst 9mb limit 1mb",
        "add dev q parent 1:1 handle 7264: tbf rate 9gbit burst 9mb limit 1mb",
    ],
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_limit_holds_again_whatever_was_made_of_it(link, others):
    rtnl, index = link
    limit(rtnl.socket, index, 100, "limit")
    for each in others:
        tc(*each.split())
    assert root_qdiscs(rtnl.socket, "look")[index].bucket != bucket_for(100)
    limit(rtnl.socket, index, 100, "limit")
    assert root_qdiscs(rtnl.socket, "look")[index].bucket == bucket_for(100)
    assert "stab" not in shown()


@pytest.mark.parametrize("name", ["another kind", "a bucket without end", "frames that count for less"])
def test_other_queueing_discipline_has_no_limit(link, name):
    rtnl, index = link
    limit(rtnl.socket, index, 100, "limit")
    for each in OTHERS[name]:
        tc(*each.split())
    assert mbps_of(rtnl, index) == 0


def test_a_little_more_than_a_small_limit_does_not_pass_for_it(link):
    rtnl, index = link
    limit(rtnl.socket, index, 1, "limit")
    tbf = ("tbf", "rate", "1992kbit", "burst", "65600", "limit", "512kb")
    tc("change", "dev", "q", "root", "handle", "7264:", *tbf)
    assert mbps_of(rtnl, index) == 2
    limit(rtnl.socket, index, 1, "limit")
    assert mbps_of(rtnl, index) == 1


def test_limit_that_holds_is_not_set_again(link):
    rtnl, index = link
    limit(rtnl.socket, index, 100, "limit")
    with subprocess.Popen(["tc", "monitor"], stdout=subprocess.PIPE) as monitor:
        tc("add", "dev", "lo", "root", "handle", "1:", "pfifo")  # until the monitor is there
        for _ in range(2):
            limit(rtnl.socket, index, 100, "limit")
        monitor.terminate()
        assert b"dev q" not in monitor.stdout.read()


def test_queued_packets_stay_queued_when_the_rate_changes(link):
    rtnl, index = link
    limit(rtnl.socket, index, 1, "limit")
    tc("add", "dev", "q", "parent", f"{HANDLE >> 16:x}:1", "handle", "99:", "pfifo")
    limit(rtnl.socket, index, 7, "limit")
    found = subprocess.run(["tc", "qdisc", "show", "dev", "q"], check=True, capture_output=True, text=True)
    assert "qdisc pfifo 99: parent 7264:1" in found.stdout
    assert mbps_of(rtnl, index) == 7


def test_removal_leaves_the_default_of_the_kernel_and_foreign_disciplines(link):
    rtnl, index = link
    before = root_qdiscs(rtnl.socket, "look")[index]
    limit(rtnl.socket, index, 100, "limit")
    for _ in range(2):
        limit(rtnl.socket, index, 0, "no limit")
        assert root_qdiscs(rtnl.socket, "look")[index] == before
    tc("replace", "dev", "q", "root", "handle", "1:", "pfifo")
    limit(rtnl.socket, index, 0, "no limit")
    assert root_qdiscs(rtnl.socket, "look")[index] == replace(before, kind="pfifo", handle=0x10000)


def test_limit_stays_while_the_link_is_down_and_when_its_mtu_changes(link):
    rtnl, index = link
    limit(rtnl.socket, index, 100, "limit")
    rtnl.change(index, "down", up=False)
    rtnl.change(index, "MTU", with_mtu(9000))
    assert mbps_of(rtnl, index) == 100
    rtnl.change(index, "up", up=True)
    assert mbps_of(rtnl, index) == 100


def test_missing_link_is_an_error_with_the_requested_limit(link):
    rtnl, index = link
    rtnl.delete(index, "delete")
    with pytest.raises(NetlinkError, match="limit of q: ENODEV"):
        limit(rtnl.socket, index, 100, "limit of q")
    limit(rtnl.socket, index, 0, "limit of q")
    with pytest.raises(KernelError):
        limit(rtnl.socket, index, 1, "limit")
