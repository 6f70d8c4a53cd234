"""Several steps, failures among them, and what survives whom: the same on every kernel."""

from __future__ import annotations

import threading

import pytest

from contract.lab import LINK_MBPS, PF0, PF1, home_of
from k8s_rdma.core.plan import undo
from k8s_rdma.core.step import ConfigureInterface, GiveVf, NetnsRef, SetRates, VfRate, VfRef
from k8s_rdma.errors import KernelError

DEADLINE_S = 10


def plan_for(lab, netns):
    vfs = [VfRef(PF0, 0), VfRef(PF0, 2), VfRef(PF1, 1)]
    return [
        SetRates(
            pf=PF0,
            rates=(VfRate(0, 100, 200), VfRate(2, 0, 50)),
            previous=(VfRate(0), VfRate(2)),
        ),
        SetRates(pf=PF1, rates=(VfRate(1, 300, 0),), previous=(VfRate(1),)),
        *(
            GiveVf(vf=vf, home=home_of(lab, vf), netns=netns, ifname=f"rdma{number}")
            for number, vf in enumerate(vfs)
        ),
        *(
            ConfigureInterface(netns=netns, ifname=f"rdma{number}", addresses=(f"10.56.{number}.2/24",))
            for number in range(len(vfs))
        ),
    ]


def apply_all(kernel, steps, done):
    for step in steps:
        done.append(step)
        kernel.apply(step)


def test_observation_shows_pfs_and_vfs_at_home(lab):
    hardware = lab.kernel.observe()
    assert hardware.unreadable == ()
    assert [(pf.name, pf.pci, pf.link_mbps) for pf in hardware.pfs] == [
        ("enp3s0f0", PF0, LINK_MBPS),
        ("enp3s0f1", PF1, LINK_MBPS),
    ]
    vfs = [vf for pf in hardware.pfs for vf in pf.vfs]
    assert [vf.index for vf in vfs] == [0, 1, 2, 0, 1, 2]
    assert [vf.netdev for vf in vfs] == [f"enp3s0f{pf}v{index}" for pf in (0, 1) for index in (0, 1, 2)]
    assert len({vf.mac for vf in vfs}) == len({vf.pci for vf in vfs}) == 6
    assert all((vf.min_tx_rate_mbps, vf.max_tx_rate_mbps) == (0, 0) for vf in vfs)


def test_everything_is_as_before_when_a_plan_is_undone(lab):
    before, netns = lab.kernel.observe(), lab.namespace()
    steps = plan_for(lab, netns)
    for step in steps:
        lab.kernel.apply(step)
    assert all(lab.seen(f"rdma{number}", netns).up for number in range(3))
    for step in undo(steps):
        lab.kernel.apply(step)
    assert lab.kernel.observe() == before


def test_everything_is_as_before_when_a_step_in_the_middle_failed(lab):
    before, netns = lab.kernel.observe(), lab.namespace()
    lab.occupy("rdma2", netns)
    done = []
    with pytest.raises(KernelError, match="rdma2"):
        apply_all(lab.kernel, plan_for(lab, netns), done)
    assert len(done) == 5
    for step in undo(done):
        lab.kernel.apply(step)
    assert lab.kernel.observe() == before


def test_everything_is_as_before_when_all_is_undone_wherever_it_stopped(lab):
    before, netns = lab.kernel.observe(), lab.namespace()
    steps = plan_for(lab, netns)
    for reached in range(len(steps)):
        for step in steps[:reached]:
            lab.kernel.apply(step)
        for step in undo(steps):
            lab.kernel.apply(step)
        assert lab.kernel.observe() == before


def test_another_kernel_takes_over_when_the_first_is_gone(lab):
    before, netns = lab.kernel.observe(), lab.namespace()
    steps = plan_for(lab, netns)
    for step in steps:
        lab.kernel.apply(step)
    during = lab.kernel.observe()
    lab.kernel.close()
    successor = lab.another_kernel()
    assert successor.observe() == during
    for step in undo(steps):
        successor.apply(step)
    assert successor.observe() == before
    successor.close()


def test_everything_is_as_before_when_the_namespace_was_destroyed_under_a_plan(lab):
    before, netns = lab.kernel.observe(), lab.namespace()
    steps = plan_for(lab, netns)
    for step in steps:
        lab.kernel.apply(step)
    lab.destroy(netns)
    for step in undo(steps):
        lab.kernel.apply(step)
    assert lab.kernel.observe() == before


def test_namespace_is_alive_until_destroyed_and_only_under_its_inode(lab):
    netns = lab.namespace()
    assert lab.kernel.namespace_alive(netns)
    assert not lab.kernel.namespace_alive(NetnsRef(netns.path, netns.inode + 1))
    lab.destroy(netns)
    assert not lab.kernel.namespace_alive(netns)


def test_watch_tells_when_a_vf_moves_or_its_namespace_dies(lab):
    changed, netns = threading.Event(), lab.namespace()
    vf = VfRef(PF0, 0)
    step = GiveVf(vf=vf, home=home_of(lab, vf), netns=netns, ifname="rdma0")
    end = lab.kernel.watch(changed.set)
    lab.kernel.apply(step)
    assert changed.wait(DEADLINE_S)
    changed.clear()
    lab.destroy(netns)
    assert changed.wait(DEADLINE_S)
    end()
    end()


def test_watch_is_silent_when_ended(lab):
    told = []
    lab.kernel.watch(lambda: told.append(True))()
    vf = VfRef(PF0, 0)
    lab.kernel.apply(GiveVf(vf=vf, home=home_of(lab, vf), netns=lab.namespace(), ifname="rdma0"))
    assert told == []


def test_kernel_can_be_closed_twice_and_while_watched(lab):
    lab.kernel.watch(lambda: None)
    lab.kernel.close()
    lab.kernel.close()
