"""Real traffic through an interface in a pod whose cap software keeps."""

from __future__ import annotations

import time

import pytest

from contract.linux_lab import needs_namespaces
from contract.virtual_lab import VirtualLab
from k8s_rdma.core.step import CapInterface
from k8s_rdma.linux.netlink.traffic_control import bucket_for
from linux.virtual.vf_pod import Pod, vf_class

pytestmark = needs_namespaces

MBPS, PAYLOAD = 20, bytes(1486)
FRAME = 1500
SECONDS, TRIES, LEAST = 1, 6, 0.9


@pytest.fixture
def lab(tmp_path):
    made = VirtualLab(tmp_path, 2)
    yield made
    made.close()


@pytest.fixture
def pods(lab):
    made = [Pod(lab, index) for index in range(2)]
    yield made
    for pod in made:
        pod.socket.close()


def test_traffic_under_a_cap_is_neither_more_nor_much_less(lab, pods):
    """Beyond the bucket, which is full at first, a sender that never stops gets its rate.

    Less than that goes through while the machine does not let the sender run.
    """
    lab.kernel.apply(CapInterface(netns=pods[0].netns, ifname="rdma0", max_tx_rate_mbps=MBPS))
    bucket = bucket_for(MBPS)
    send_for(bucket.burst / bucket.rate, pods)  # empties it
    shares = []
    while not shares or (max(shares) < LEAST and len(shares) < TRIES):
        sent, took = send_for(SECONDS, pods)
        assert sent <= bucket.rate * took + bucket.burst + 2 * FRAME
        shares.append(sent / (bucket.rate * took))
    assert max(shares) >= LEAST, shares


def send_for(seconds, pods):
    """As much as goes; bytes that the PF's scheduler let through, and how long it took."""
    began, before = time.monotonic(), vf_class(0)[0]
    while time.monotonic() - began < seconds:
        pods[0].send(PAYLOAD, destination=pods[1].home.mac)  # waits while its socket's buffer is full
    return vf_class(0)[0] - before, time.monotonic() - began
