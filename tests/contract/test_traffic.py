"""Reports of traffic, the same on every kernel."""

from __future__ import annotations

import time

import pytest

from contract.lab import FRAME_BYTES, give
from k8s_rdma.core.step import ConfigureInterface, VfRef

FRAMES = 20
DEADLINE_S = 120
"""Drivers read their counters every two seconds or so."""


@pytest.fixture
def sender(lab):
    return VfRef(lab.pcis[0], 1)


def sampled(lab, holders, since=None):
    """The counters of each VF, once one of them has sent all its frames since."""
    until = time.monotonic() + DEADLINE_S
    while True:
        now = {each.vf: each for each in lab.kernel.sample(holders)}
        if since is None or any(now[vf].tx_packets >= since[vf].tx_packets + FRAMES for vf in now):
            return now
        assert time.monotonic() < until, f"since {since} only {now}"
        time.sleep(0.05)


def test_sample_has_every_vf_at_home(lab):
    pfs = [pf for pf in lab.kernel.observe().pfs if pf.pci in lab.pcis]
    vfs = [VfRef(pf.pci, vf.index) for pf in pfs for vf in pf.vfs]
    assert [each.vf for each in lab.kernel.sample({}) if each.vf.pf in lab.pcis] == vfs


def test_sample_counts_traffic_as_sent_by_the_holder_of_a_vf_alone(lab, sender):
    netns = lab.namespace()
    lab.kernel.apply(give(lab, sender, netns))
    lab.kernel.apply(ConfigureInterface(netns=netns, ifname="rdma0"))
    before = sampled(lab, {sender: netns})
    lab.send("rdma0", netns, FRAMES)
    after = sampled(lab, {sender: netns}, before)
    assert after[sender].tx_bytes >= before[sender].tx_bytes + FRAMES * FRAME_BYTES
    assert after[sender].rx_packets < before[sender].rx_packets + FRAMES
    others = after.keys() - {sender}
    assert all(after[vf].tx_packets < before[vf].tx_packets + FRAMES for vf in others)


def test_sample_has_vfs_in_several_namespaces_also_if_one_was_destroyed(lab):
    holders = {VfRef(lab.pcis[0], 0): lab.namespace(), VfRef(lab.pcis[1], 2): lab.namespace()}
    for vf, netns in holders.items():
        lab.kernel.apply(give(lab, vf, netns))
    assert holders.keys() <= {each.vf for each in lab.kernel.sample(holders)}
    gone, kept = holders
    lab.destroy(holders[gone])
    assert kept in {each.vf for each in lab.kernel.sample(holders)}


def test_pause_frames_of_a_pf_that_is_not_there_are_not_known(lab):
    assert lab.kernel.pause_frames("absent") == {}


def test_pause_frames_have_priorities(lab):
    pfs = [pf for pf in lab.kernel.observe().pfs if pf.pci in lab.pcis]
    for pf in pfs:
        assert set(lab.kernel.pause_frames(pf.name)) <= set(range(8))
