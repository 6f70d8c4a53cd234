"""CapInterface and reports of caps, the same on every kernel."""

from __future__ import annotations

import os
import resource
from contextlib import contextmanager, suppress

import pytest

from contract.lab import give, home_of, state_of
from k8s_rdma.core.kernel import LocatedVf
from k8s_rdma.core.plan import undo
from k8s_rdma.core.step import CapInterface, ConfigureInterface, VfRef
from k8s_rdma.errors import KernelError

MAC = "02:00:00:00:00:77"
RATES = (1, 10, 999, 1000, 34_359, 34_360, 100_000, 400_000)
"""Mb/s; 34,360 is more than 32 bits of bytes a second."""


@pytest.fixture
def vf(lab):
    return VfRef(lab.pcis[0], 1)


@pytest.fixture
def netns(lab, vf):
    netns = lab.namespace()
    lab.kernel.apply(give(lab, vf, netns))
    return netns


@contextmanager
def few_files(left):
    """This process can open so many and no more for a while."""
    probes = [os.open("/dev/null", os.O_RDONLY) for _ in range(left + 1)]
    for each in probes:
        os.close(each)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probes[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def cap(netns, mbps, ifname="rdma0", previous=0):
    return CapInterface(netns=netns, ifname=ifname, max_tx_rate_mbps=mbps, previous=previous)


def cap_of(lab, netns, ifname="rdma0"):
    """As both looks tell it."""
    told = lab.kernel.interfaces(netns)[ifname].max_tx_rate_mbps
    located = lab.kernel.located(netns).values()
    assert [each.max_tx_rate_mbps for each in located if each.ifname == ifname] == [told]
    return told


def test_interface_has_no_cap_when_given(lab, netns):
    assert cap_of(lab, netns) == 0


@pytest.mark.parametrize("mbps", RATES)
def test_interface_is_capped_to_the_megabit(lab, netns, mbps):
    lab.kernel.apply(cap(netns, mbps))
    assert cap_of(lab, netns) == mbps


def test_cap_changes_when_set_again_and_ends_when_undone(lab, netns):
    lab.kernel.apply(cap(netns, 100))
    lab.kernel.apply(cap(netns, 40_000, previous=100))
    assert cap_of(lab, netns) == 40_000
    lab.kernel.apply(cap(netns, 40_000, previous=100).inverse)
    assert cap_of(lab, netns) == 100
    lab.kernel.apply(cap(netns, 100).inverse)
    assert cap_of(lab, netns) == 0


def test_setting_and_removing_hold_when_they_hold_already(lab, netns):
    lab.kernel.apply(cap(netns, 0))
    assert cap_of(lab, netns) == 0
    for _ in range(2):
        lab.kernel.apply(cap(netns, 100))
        assert cap_of(lab, netns) == 100
    for _ in range(2):
        lab.kernel.apply(cap(netns, 100).inverse)
        assert cap_of(lab, netns) == 0


def test_cap_stays_when_the_interface_comes_up_and_goes_down(lab, netns):
    lab.kernel.apply(cap(netns, 100))
    up = ConfigureInterface(netns=netns, ifname="rdma0", addresses=("10.56.0.2/24",))
    for step in (up, up.inverse, up):
        lab.kernel.apply(step)
        assert cap_of(lab, netns) == 100


def test_interface_that_is_up_is_capped_and_uncapped(lab, netns):
    lab.kernel.apply(ConfigureInterface(netns=netns, ifname="rdma0"))
    lab.kernel.apply(cap(netns, 100))
    assert (cap_of(lab, netns), lab.seen("rdma0", netns).is_up) == (100, True)
    lab.kernel.apply(cap(netns, 0))
    assert (cap_of(lab, netns), lab.seen("rdma0", netns).is_up) == (0, True)


def test_foreign_queueing_discipline_is_no_cap_and_is_replaced(lab, netns):
    lab.kernel.apply(cap(netns, 100))
    lab.uncap("rdma0", netns)
    assert cap_of(lab, netns) == 0
    lab.kernel.apply(cap(netns, 100))
    assert cap_of(lab, netns) == 100


def test_cap_is_found_by_its_vf_when_the_pod_renamed_the_interface(lab, netns, vf):
    lab.kernel.apply(cap(netns, 100))
    home = home_of(lab, VfRef(vf.pf, 0))
    lab.alter("rdma0", netns, name="mine", mac=MAC, mtu=home.mtu)
    pci = state_of(lab, vf).pci
    assert lab.kernel.located(netns) == {
        pci: LocatedVf(ifname="mine", mac=MAC, max_tx_rate_mbps=100, qdisc="tbf")
    }


def test_caps_are_of_each_interface_apart(lab, netns, vf):
    other = VfRef(lab.pcis[1], 0)
    lab.kernel.apply(give(lab, other, netns, "rdma1"))
    lab.kernel.apply(cap(netns, 100))
    lab.kernel.apply(cap(netns, 200, "rdma1"))
    lab.uncap("rdma0", netns)
    found = {pci: each.max_tx_rate_mbps for pci, each in lab.kernel.located(netns).items()}
    assert found == {state_of(lab, vf).pci: 0, state_of(lab, other).pci: 200}


def test_namespace_without_vfs_has_no_caps(lab):
    assert lab.kernel.located(lab.namespace()) == {}


@pytest.mark.parametrize("look", ["located", "interfaces"])
@pytest.mark.parametrize("left", range(4))
def test_looks_tell_all_or_a_kernel_error_when_hardly_a_file_can_be_opened(lab, netns, look, left):
    lab.kernel.apply(cap(netns, 100))
    whole = getattr(lab.kernel, look)(netns)
    with few_files(left), suppress(KernelError):
        assert getattr(lab.kernel, look)(netns) == whole
    assert getattr(lab.kernel, look)(netns) == whole


@pytest.mark.parametrize("look", ["located", "interfaces"])
def test_lookup_of_caps_in_a_missing_namespace_fails(lab, netns, look):
    lab.kernel.apply(cap(netns, 100))
    lab.destroy(netns)
    with pytest.raises(KernelError, match=netns.path):
        getattr(lab.kernel, look)(netns)


def test_capping_fails_when_interface_or_namespace_is_missing(lab, netns):
    with pytest.raises(KernelError, match="absent"):
        lab.kernel.apply(cap(netns, 100, "absent"))
    lab.destroy(netns)
    with pytest.raises(KernelError, match=netns.path):
        lab.kernel.apply(cap(netns, 100))


def test_uncapping_holds_when_interface_or_namespace_is_gone(lab, netns):
    lab.kernel.apply(cap(netns, 100, "absent").inverse)
    lab.destroy(netns)
    lab.kernel.apply(cap(netns, 100).inverse)


@pytest.mark.parametrize("dies", [False, True])
def test_next_holder_has_no_cap_when_a_vf_came_home(lab, vf, dies):
    netns, next_one = lab.namespace(), lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.kernel.apply(cap(netns, 100))
    if dies:
        lab.destroy(netns)
    lab.kernel.apply(step.inverse)
    lab.kernel.apply(give(lab, vf, next_one))
    assert cap_of(lab, next_one) == 0


def test_everything_is_as_before_when_a_plan_with_caps_is_undone_wherever_it_stopped(lab, vf):
    before, netns = lab.kernel.observe(), lab.namespace()
    steps = [
        give(lab, vf, netns),
        cap(netns, 100),
        ConfigureInterface(netns=netns, ifname="rdma0", addresses=("10.56.0.2/24",)),
    ]
    for reached in range(len(steps) + 1):
        for step in steps[:reached]:
            lab.kernel.apply(step)
        for step in undo(steps):
            lab.kernel.apply(step)
        assert lab.kernel.observe() == before
