"""Several steps, failures among them, and the end of kernels and namespaces: the same on every kernel."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from contract.lab import give, rate, state_of
from factories import interface, receipt
from k8s_rdma.core.ledger import RateChange
from k8s_rdma.core.plan import undo
from k8s_rdma.core.reprogramming import changing
from k8s_rdma.core.step import CapInterface, ConfigureInterface, NetnsRef, SetRates, VfRate, VfRef
from k8s_rdma.errors import KernelError

DEADLINE_S = 120


def plan_for(lab, netns):
    pf0, pf1 = lab.pcis
    vfs = [VfRef(pf0, 0), VfRef(pf0, 2), VfRef(pf1, 1)]
    return [
        SetRates(
            pf=pf0,
            rates=(rate(lab, 0, 100, 200), VfRate(2, 0, 50)),
            previous=(VfRate(0), VfRate(2)),
        ),
        SetRates(pf=pf1, rates=(rate(lab, 1, 300, 400),), previous=(VfRate(1),)),
        *(give(lab, vf, netns, f"rdma{number}") for number, vf in enumerate(vfs)),
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
    pfs = [pf for pf in hardware.pfs if pf.pci in lab.pcis]
    assert [(pf.pci, pf.name) for pf in pfs] == list(zip(lab.pcis, lab.pf_names, strict=True))
    assert {pf.link_mbps for pf in pfs} == {lab.link_mbps}
    for number, pf in enumerate(pfs):
        assert [vf.index for vf in pf.vfs] == list(range(len(pf.vfs)))
        assert len(pf.vfs) >= lab.vfs
        assert [vf.netdev for vf in pf.vfs] == [lab.vf_name(number, vf.index) for vf in pf.vfs]
        assert all(lab.seen(vf.netdev).mac == vf.mac for vf in pf.vfs)
    vfs = [vf for pf in pfs for vf in pf.vfs]
    assert len({vf.mac for vf in vfs}) == len({vf.pci for vf in vfs}) == len({vf.netdev for vf in vfs})
    assert len({vf.mac for vf in vfs}) == len(vfs) >= 2 * lab.vfs
    assert all((vf.min_tx_rate_mbps, vf.max_tx_rate_mbps) == (0, 0) for vf in vfs)


def test_everything_is_as_before_when_a_plan_is_undone(lab):
    before, netns = lab.kernel.observe(), lab.namespace()
    steps = plan_for(lab, netns)
    for step in steps:
        lab.kernel.apply(step)
    assert all(lab.seen(f"rdma{number}", netns).is_up for number in range(3))
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


def rated(lab, index, least, most, software=0):
    """An interface of a pod, with these rates of its VF and cap of its netdev."""
    vf = VfRef(lab.pcis[index], index)
    given, found = rate(lab, index, least, most), state_of(lab, vf)
    return replace(
        interface(vf.pf, vf.index, f"rdma{index}"),
        pci=found.pci,
        set_min_tx_rate_mbps=given.min_tx_rate_mbps,
        set_max_tx_rate_mbps=given.max_tx_rate_mbps,
        software_max_tx_rate_mbps=software,
    )


def change_of(lab, before, after):
    change = RateChange(generation=1, interfaces=after.interfaces)
    return changing([replace(before, change=change)], lab.kernel.located(before.netns))


def test_rates_and_caps_are_as_before_when_a_change_of_them_is_undone_wherever_it_stopped(lab):
    netns = lab.namespace()
    free, attached, changed = (
        receipt("c1", *interfaces, netns=netns)
        for interfaces in (
            (rated(lab, 0, 0, 0), rated(lab, 1, 0, 0)),
            (rated(lab, 0, 100, 200), rated(lab, 1, 0, 0, 40)),
            (rated(lab, 0, 50, 300), rated(lab, 1, 0, 90, 80)),
        )
    )
    for index, pci in enumerate(lab.pcis):
        lab.kernel.apply(give(lab, VfRef(pci, index), netns, f"rdma{index}"))
    for step in change_of(lab, free, attached):
        lab.kernel.apply(step)
    before, steps = (lab.kernel.observe(), lab.kernel.located(netns)), change_of(lab, attached, changed)
    assert [type(step) for step in steps] == [SetRates, SetRates, CapInterface]
    for reached in range(len(steps) + 1):
        for step in steps[:reached]:
            lab.kernel.apply(step)
        for step in undo(steps):
            lab.kernel.apply(step)
        assert (lab.kernel.observe(), lab.kernel.located(netns)) == before
    for step in steps:
        lab.kernel.apply(step)
    caps = {vf.ifname: vf.max_tx_rate_mbps for vf in lab.kernel.located(netns).values()}
    assert caps == {"rdma0": 0, "rdma1": 80}
    states = [state_of(lab, VfRef(pci, index)) for index, pci in enumerate(lab.pcis)]
    assert [vf.max_tx_rate_mbps for vf in states] == [300, 90]


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


def test_watch_reports_when_a_vf_moves_or_its_namespace_dies(lab):
    changed, netns = threading.Event(), lab.namespace()
    step = give(lab, VfRef(lab.pcis[0], 0), netns)
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
    lab.kernel.apply(give(lab, VfRef(lab.pcis[0], 0), lab.namespace()))
    assert told == []


def test_kernel_can_be_closed_twice_and_while_watched(lab):
    lab.kernel.watch(lambda: None)
    lab.kernel.close()
    lab.kernel.close()
