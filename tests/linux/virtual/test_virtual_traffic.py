"""Real frames through virtual functions: which are dropped, and who waits for whom.

Every bound here is one that holds however slow the machine is: a scheduler lets through in a time
at most so much, and a frame sent after another through the same queues arrives after it.
"""

from __future__ import annotations

import itertools
import socket
import time

import pytest

from contract.lab import PF0
from contract.linux_lab import needs_namespaces
from contract.virtual_lab import VirtualLab
from k8s_rdma.core.step import GiveVf, SetRates, VfRate, VfRef
from k8s_rdma.linux.virtual.pf import BURST, MOST_DEBT
from linux.virtual.vf_pod import EVERYBODY, Pod, dropped_as_forged, frames, octets, overdraw, vf_class

pytestmark = needs_namespaces


@pytest.fixture
def lab(tmp_path):
    made = VirtualLab(tmp_path, 3)
    yield made
    made.close()


@pytest.fixture
def pods(lab):
    made = [Pod(lab, index) for index in range(3)]
    yield made
    for pod in made:
        pod.socket.close()


def set_rates(lab, *rates):
    lab.kernel.apply(SetRates(pf=PF0, rates=rates, previous=tuple(VfRate(rate.index) for rate in rates)))


def send_on(pod, destination):
    """14 MB, and no longer than the kernel takes them."""
    for _ in range(10_000):
        pod.send(bytes(1400), destination=destination)


def test_frame_with_the_vfs_own_mac_arrives_at_vfs_and_uplink(lab, pods):
    with frames(lab.rtnl.link_at(lab.rtnl.link("up0").peer).name) as wire:
        pods[0].send(b"genuine")
        assert pods[1].receive_until(b"genuine") == [b"genuine"]
        assert wire.recv(2048)[:12] == octets(EVERYBODY) + octets(pods[0].home.mac)


@pytest.mark.parametrize("forged", ["of another VF", "of nobody", "of the last two bytes only"])
def test_frame_with_another_source_mac_is_dropped_and_counted(lab, pods, forged):
    own = pods[0].home.mac
    mac = {
        "of another VF": pods[1].home.mac,
        "of nobody": "02:11:22:33:44:55",
        "of the last two bytes only": f"02:11:22:33{own[11:]}",
    }[forged]
    before = dropped_as_forged()
    pods[0].send(b"forged", source=mac)
    pods[0].send(b"genuine")
    assert pods[2].receive_until(b"genuine") == [b"genuine"]
    assert dropped_as_forged() == before + 1


@pytest.mark.parametrize("length", range(5))
def test_frame_is_checked_and_counted_however_short_it_is(pods, length):
    dropped, before = dropped_as_forged(), vf_class(0)
    pods[0].send(bytes(length), source="02:11:22:33:44:55")
    pods[0].send(bytes(length))
    pods[0].send(b"last")
    assert pods[2].receive_until(b"last") == [b"", b"last"]
    assert dropped_as_forged() == dropped + 1
    assert vf_class(0)[0] >= before[0] + 2 * 14


def test_frame_is_dropped_when_the_pod_gave_its_interface_another_mac(lab, pods):
    lab.alter("rdma0", pods[0].netns, name="rdma0", mac="02:11:22:33:44:55", mtu=1500)
    pods[0].listen_anew(lab)
    pods[0].send(b"forged", source="02:11:22:33:44:55")
    pods[0].send(b"genuine")
    assert pods[2].receive_until(b"genuine") == [b"genuine"]


def test_frame_counts_for_its_own_vf_whatever_priority_its_sender_asks_for(pods):
    """HTB takes a packet's priority for a class if it is one's handle: crossing the pair must clear it."""
    before = [vf_class(index)[0] for index in range(2)]
    pods[0].socket.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 0x10011)
    for _ in range(20):
        pods[0].send(bytes(1400))
    pods[0].send(b"last")
    pods[1].receive_until(b"last")
    sent = [vf_class(index)[0] - before[index] for index in range(2)]
    assert sent[0] >= 28_000
    assert sent[1] < 14_000  # the pods' own messages for IPv6


@pytest.mark.parametrize("destination", ["a VF of the same PF", "the uplink"])
def test_cap_lets_no_more_through_than_it_says(lab, pods, destination):
    """10 Mb/s against all that a sender can do: the burst, and 1.25 MB for every second that it took."""
    set_rates(lab, VfRate(0, 0, 10))
    pods[0].socket.settimeout(0)
    to = pods[1].home.mac if destination == "a VF of the same PF" else "02:99:00:00:00:01"
    started, before = time.monotonic(), vf_class(0)
    with pytest.raises(BlockingIOError):  # the queue holds the sender back
        send_on(pods[0], to)
    sent = vf_class(0)[0] - before[0]
    assert 0 < sent <= BURST + 1_250_000 * (time.monotonic() - started) + 1500


def test_reservation_holds_at_once_on_a_vf_that_overdrew_as_best_effort(lab, pods):
    """HTB remembers overdrawn bytes as time; with tokens below zero a reservation does not hold yet."""
    overdraw(lab, pods[0])
    set_rates(lab, VfRate(0, 100, 0))
    assert vf_class(0)[2] > 0
    pods[1].listen_anew(lab)
    pods[0].send(b"onward")
    assert pods[1].receive_until(b"onward") == [b"onward"]


def test_no_frame_is_lost_when_a_vf_that_overdrew_little_gets_a_reservation(lab, pods):
    for number in itertools.count():
        pods[0].send(bytes(1400))
        if number % 100 == 0 and vf_class(0)[2] < 0:
            break
    sent, _, tokens = vf_class(0)
    assert tokens > -MOST_DEBT
    set_rates(lab, VfRate(0, 100, 0))
    assert vf_class(0)[0] >= sent  # it is the same class


def test_best_effort_vf_is_still_served_when_its_rates_were_set_and_taken_back(lab, pods):
    set_rates(lab, VfRate(0, 100, 200), VfRate(1, 100, 0))
    set_rates(lab, VfRate(0), VfRate(1))
    pods[0].send(b"onward")
    assert pods[1].receive_until(b"onward") == [b"onward"]


def test_vf_made_anew_is_policed_and_scheduled_like_the_first(lab, pods):
    lab.destroy(pods[0].netns)
    pods[0].socket.close()
    lab.kernel.apply(GiveVf(vf=VfRef(PF0, 0), home=pods[0].home, netns=pods[0].netns, ifname="rdma0").inverse)
    again, before, forged = Pod(lab, 0), vf_class(0)[0], dropped_as_forged()
    again.send(b"forged", source=pods[1].home.mac)
    again.send(b"genuine")
    assert pods[2].receive_until(b"genuine") == [b"genuine"]
    assert vf_class(0)[0] > before
    assert dropped_as_forged() == forged + 1
    again.socket.close()
