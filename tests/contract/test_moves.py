"""GiveVf and BringHome, the same on every kernel."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from contract.lab import give, home_of, rate, state_of
from k8s_rdma.core.kernel import NameTakenError
from k8s_rdma.core.step import ConfigureInterface, GiveVf, SetRates, VfHome, VfRate, VfRef
from k8s_rdma.core.types import PciAddress
from k8s_rdma.errors import KernelError


@pytest.fixture
def vf(lab):
    return VfRef(lab.pcis[0], 1)


def at_home(lab, vf):
    """The machine as its kernel shows it, and the VF's netdev as anyone sees it."""
    return lab.kernel.observe(), lab.seen(home_of(lab, vf).name)


def test_vf_is_in_the_namespace_down_and_under_its_new_name_when_given(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    found = lab.seen("rdma0", netns)
    assert found is not None
    assert (found.mac, found.mtu, found.is_up, found.addresses) == (step.home.mac, step.home.mtu, False, ())
    assert lab.seen(step.home.name) is None
    assert state_of(lab, vf).netdev is None
    assert state_of(lab, vf).mac == step.home.mac


def test_giving_again_has_no_effect(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.kernel.apply(ConfigureInterface(netns=netns, ifname="rdma0", addresses=("10.0.0.1/24",)))
    before = lab.kernel.observe(), lab.seen("rdma0", netns)
    lab.kernel.apply(step)
    assert (lab.kernel.observe(), lab.seen("rdma0", netns)) == before


def test_giving_again_gives_the_name_back_when_the_pod_has_changed_it(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.alter("rdma0", netns, name="mine", mac="02:00:00:00:00:77", mtu=1280)
    lab.use("mine", netns)
    lab.kernel.apply(step)
    assert lab.seen("rdma0", netns) is not None
    assert lab.seen("mine", netns) is None


def test_giving_again_fails_when_the_name_is_taken_since(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.alter("rdma0", netns, name="mine", mac="02:00:00:00:00:77", mtu=1280)
    lab.occupy("rdma0", netns)
    with pytest.raises(KernelError, match="rdma0"):
        lab.kernel.apply(step)
    assert lab.seen("mine", netns) is not None


def test_vf_is_exactly_as_before_when_given_and_brought_home(lab, vf):
    before = at_home(lab, vf)
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.kernel.apply(step.inverse)
    assert at_home(lab, vf) == before
    assert lab.seen("rdma0", netns) is None


def test_bringing_home_holds_when_never_given_and_when_repeated(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    before = lab.kernel.observe()
    lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before
    lab.kernel.apply(step)
    lab.kernel.apply(step.inverse)
    lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before


def test_vf_comes_home_as_it_was_when_the_pod_altered_it(lab, vf):
    before = at_home(lab, vf)
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.kernel.apply(ConfigureInterface(netns=netns, ifname="rdma0", addresses=("10.0.0.1/24",)))
    lab.alter("rdma0", netns, name="mine", mac="02:00:00:00:00:77", mtu=1280)
    lab.kernel.apply(step.inverse)
    assert at_home(lab, vf) == before


def test_vf_comes_home_at_no_cost_of_the_addresses_that_its_pod_added(lab, vf):
    """To delete each takes the kernel a millisecond if there are 20,000; others wait for the worker."""
    before = at_home(lab, vf)
    costs_s = []
    for addresses in (1, 4000):
        netns = lab.namespace()
        step = give(lab, vf, netns)
        lab.kernel.apply(step)
        lab.use("rdma0", netns, *(f"10.1.{number >> 8}.{number & 255}/32" for number in range(addresses)))
        began_s = time.thread_time()
        lab.kernel.apply(step.inverse)
        costs_s.append(time.thread_time() - began_s)
        assert at_home(lab, vf) == before
    assert costs_s[1] < 3 * costs_s[0] + 0.1


def test_vf_comes_home_as_it_was_when_its_namespace_was_destroyed(lab, vf):
    rates = SetRates(pf=vf.pf, rates=(rate(lab, 1, 100, 200),), previous=(VfRate(1),))
    lab.kernel.apply(rates)
    before = at_home(lab, vf)
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.destroy(netns)
    lab.kernel.apply(step.inverse)
    assert at_home(lab, vf) == before


def test_vf_can_be_given_again_when_its_namespace_was_destroyed(lab, vf):
    first, second = lab.namespace(), lab.namespace()
    step = give(lab, vf, first)
    lab.kernel.apply(step)
    lab.destroy(first)
    lab.kernel.apply(step.inverse)
    lab.kernel.apply(give(lab, vf, second))
    assert lab.seen("rdma0", second) is not None


def test_giving_fails_and_the_vf_stays_home_when_the_name_is_taken(lab, vf):
    netns = lab.namespace()
    lab.occupy("rdma0", netns)
    step = give(lab, vf, netns)
    before = lab.kernel.observe(), lab.seen("rdma0", netns)
    with pytest.raises(KernelError, match="rdma0"):
        lab.kernel.apply(step)
    assert (lab.kernel.observe(), lab.seen("rdma0", netns)) == before
    lab.kernel.apply(step.inverse)
    assert (lab.kernel.observe(), lab.seen("rdma0", netns)) == before


def test_bringing_home_fails_when_its_name_is_taken_there_and_works_when_it_is_free_again(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.occupy(step.home.name)
    with pytest.raises(NameTakenError, match=step.home.name):
        lab.kernel.apply(step.inverse)
    assert state_of(lab, vf).netdev is None
    assert lab.seen("rdma0", netns) is not None
    lab.vacate(step.home.name)
    lab.kernel.apply(step.inverse)
    assert state_of(lab, vf).netdev == step.home.name


@pytest.mark.parametrize("destroyed", [False, True])
def test_vf_comes_home_under_another_name_when_its_own_is_taken(lab, vf, destroyed):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.occupy(step.home.name)
    if destroyed:
        lab.destroy(netns)
    with pytest.raises(NameTakenError, match=step.home.name):
        lab.kernel.apply(step.inverse)
    lab.kernel.apply(replace(step.inverse, home=replace(step.home, name="vf-spare")))
    assert state_of(lab, vf).netdev == "vf-spare"
    lab.vacate(step.home.name)
    lab.kernel.apply(step.inverse)
    assert state_of(lab, vf).netdev == step.home.name


def test_giving_fails_and_the_vf_stays_home_when_the_namespace_is_gone(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.destroy(netns)
    before = lab.kernel.observe()
    with pytest.raises(KernelError, match=netns.path):
        lab.kernel.apply(step)
    lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before


def test_vf_of_another_namespace_is_left_alone_when_wanted_or_released_for_this_one(lab, vf):
    mine, other = lab.namespace(), lab.namespace()
    step = give(lab, vf, mine)
    lab.kernel.apply(give(lab, vf, other))
    before = lab.kernel.observe(), lab.seen("rdma0", other)
    with pytest.raises(KernelError, match="VF 1 of PF"):
        lab.kernel.apply(step)
    lab.kernel.apply(step.inverse)
    lab.destroy(mine)
    lab.kernel.apply(step.inverse)
    assert (lab.kernel.observe(), lab.seen("rdma0", other)) == before


@pytest.mark.parametrize("unknown", ["index", "PF"])
def test_moves_fail_when_the_vf_is_unknown(lab, vf, unknown):
    absent = VfRef(vf.pf, 255) if unknown == "index" else VfRef(PciAddress("0000:99:00.0"), 0)
    home = VfHome(name="enp3s0f0v3", mac="02:00:00:00:00:01", mtu=1500)
    step = GiveVf(vf=absent, home=home, netns=lab.namespace(), ifname="rdma0")
    with pytest.raises(KernelError, match=str(absent.pf)):
        lab.kernel.apply(step)
    with pytest.raises(KernelError, match=str(absent.pf)):
        lab.kernel.apply(step.inverse)


def test_two_vfs_bear_one_name_when_in_two_namespaces(lab, vf):
    here, there = lab.namespace(), lab.namespace()
    before = lab.kernel.observe()
    steps = [give(lab, vf, here), give(lab, VfRef(lab.pcis[1], 0), there)]
    for step in steps:
        lab.kernel.apply(step)
    macs = {lab.seen("rdma0", netns).mac for netns in (here, there)}
    assert macs == {step.home.mac for step in steps}
    lab.destroy(there)
    for step in steps:
        lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before


def test_sixty_vfs_are_in_one_namespace_and_home_again(make_lab):
    lab = make_lab(60)
    netns = lab.namespace()
    before = lab.kernel.observe()
    steps = [give(lab, VfRef(lab.pcis[1], index), netns, f"rdma{index}") for index in range(60)]
    for step in steps:
        lab.kernel.apply(step)
    assert {lab.seen(f"rdma{index}", netns).mac for index in range(60)} == {step.home.mac for step in steps}
    assert [vf.netdev for vf in lab.kernel.observe().pfs[1].vfs[:60]] == [None] * 60
    for step in reversed(steps):
        lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before


def test_vfs_in_a_namespace_are_listed_with_name_and_mac_there(lab, vf):
    netns, other = lab.namespace(), lab.namespace()
    assert lab.kernel.located(netns) == {}
    second = VfRef(vf.pf, 0)
    pcis, mac = [state_of(lab, each).pci for each in (vf, second)], home_of(lab, vf).mac
    for each, ifname in ((vf, "rdma0"), (second, "rdma1")):
        lab.kernel.apply(give(lab, each, netns, ifname))
    lab.occupy("somebody", netns)
    lab.alter("rdma1", netns, name="mine", mac="02:00:00:00:00:77", mtu=1280)
    for kernel in (lab.kernel, lab.another_kernel()):
        found = {pci: (each.ifname, each.mac) for pci, each in kernel.located(netns).items()}
        assert found == {pcis[0]: ("rdma0", mac), pcis[1]: ("mine", "02:00:00:00:00:77")}
    assert lab.kernel.located(other) == {}
    lab.destroy(netns)
    with pytest.raises(KernelError, match="no longer exists"):
        lab.kernel.located(netns)
