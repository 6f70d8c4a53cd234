"""Counters of links, against frames that were sent."""

from __future__ import annotations

import socket

import pytest

from contract.linux_lab import await_link, needs_namespaces
from k8s_rdma.linux.netlink.rtnl import LinkCounters, counters_of_all, named, of_kind

pytestmark = needs_namespaces

SOL_PACKET, PACKET_QDISC_BYPASS = 263, 20
"""linux/socket.h, linux/if_packet.h"""
FRAME = bytes.fromhex("0200000000fe 020000000001 88b5") + bytes(86)


@pytest.fixture
def pair(rtnl):
    """Both ends of a pair, up."""
    rtnl.create("create", named("here"), of_kind("veth"))
    ends = rtnl.link("here"), next(link for link in rtnl.links() if link.name.startswith("veth"))
    for end in ends:
        rtnl.change(end.index, "up", up=True)
    await_link("here")
    return ends


def test_traffic_sent_at_one_end_is_received_at_the_other(rtnl, pair):
    before = counters_of_all(rtnl.socket)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind(("here", 0))
        for _ in range(20):
            sender.send(FRAME)
    after = counters_of_all(rtnl.socket)
    here, there = (end.index for end in pair)
    assert 20 <= after[here].tx_packets - before[here].tx_packets < 40
    assert after[here].tx_bytes - before[here].tx_bytes >= 20 * len(FRAME)
    assert after[here].rx_packets - before[here].rx_packets < 20
    assert after[there].opposite.tx_packets >= after[here].tx_packets - 20
    assert after[there].rx_packets - before[there].rx_packets >= 20


def test_all_links_are_counted(rtnl, pair):
    assert counters_of_all(rtnl.socket).keys() == {link.index for link in rtnl.links()}


def test_opposite_swaps_both_directions():
    mine = LinkCounters(tx_bytes=1, rx_bytes=2, tx_packets=3, rx_packets=4)
    assert mine.opposite == LinkCounters(tx_bytes=2, rx_bytes=1, tx_packets=4, rx_packets=3)
    assert mine.opposite.opposite == mine


def test_drops_of_one_end_are_not_those_of_the_other(rtnl, pair):
    here, there = pair
    rtnl.change(there.index, "down", up=False)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        # Past the queue, which goes a moment after the carrier; without it, drops are not counted.
        sender.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
        sender.bind(("here", 0))
        before = counters_of_all(rtnl.socket)[here.index]
        for _ in range(5):
            with pytest.raises(OSError, match="No buffer space available"):
                sender.send(FRAME)
    after = counters_of_all(rtnl.socket)[here.index]
    assert after.tx_dropped >= before.tx_dropped + 5
    assert (after.opposite.tx_dropped, after.opposite.rx_dropped) == (None, None)
