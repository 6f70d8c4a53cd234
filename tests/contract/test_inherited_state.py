"""A pod's settings of its interface beside name, MAC and MTU end with the pod, the same on every kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.lab import give, home_of, rate, state_of
from k8s_rdma.core.netdev_attributes import programs
from k8s_rdma.core.step import CleanVf, SetRates, VfRate, VfRef

CHANGES = ["settings", "driver", "program", "held program"]


@pytest.fixture
def vf(lab):
    return VfRef(lab.pcis[0], 1)


def change(lab, what, ifname, netns):
    match what:
        case "settings":
            lab.tune(ifname, netns)
        case "driver":
            lab.tune_driver(ifname, netns)
        case "program" | "held program":
            lab.attach_program(ifname, netns, by_link=what == "held program")


@pytest.mark.parametrize("what", CHANGES)
def test_vf_comes_home_as_it_was_whatever_its_pod_set(lab, vf, what):
    home = home_of(lab, vf)
    before, seen = lab.kernel.observe(), lab.inherited(home.name, None)
    netns, other = lab.namespace(), lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    change(lab, what, "rdma0", netns)
    changed = lab.inherited("rdma0", netns)
    assert lab.kernel.apply(step.inverse) in (None, home.attributes)
    assert lab.kernel.observe() == before
    assert lab.inherited(home.name, None) == seen != changed
    assert lab.kernel.attributes(vf) == home.attributes
    lab.kernel.apply(give(lab, vf, other))
    assert lab.inherited("rdma0", other) == seen
    assert not lab.kernel.interfaces(other)["rdma0"].xdp


def test_attributes_of_a_vf_that_returned_as_it_was_are_those_that_were_read(lab, vf):
    home = home_of(lab, vf)
    step = give(lab, vf, lab.namespace())
    assert lab.kernel.apply(step) is None
    assert lab.kernel.apply(step.inverse) == home.attributes == lab.kernel.attributes(vf)
    lab.tune_driver(home.name, None)
    assert lab.kernel.apply(step.inverse) != lab.inherited(home.name, None)


def test_vf_comes_home_without_the_links_that_its_pod_made_on_it(lab, vf):
    """They would stay in the pod's namespace, which another process may hold, and hear the next holder."""
    home, netns = home_of(lab, vf), lab.namespace()
    before, step = lab.kernel.observe(), give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.build_on("rdma0", netns)
    assert lab.seen("above", netns)
    lab.kernel.apply(step.inverse)
    assert lab.seen("above", netns) is None
    assert lab.kernel.observe() == before
    assert lab.kernel.attributes(vf) == home.attributes


@pytest.mark.parametrize("what", CHANGES)
def test_vf_comes_home_as_it_was_when_its_namespace_was_destroyed(lab, vf, what):
    home = home_of(lab, vf)
    seen, netns = lab.inherited(home.name, None), lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    change(lab, what, "rdma0", netns)
    lab.destroy(netns)
    lab.kernel.apply(step.inverse)
    assert lab.inherited(home.name, None) == seen


@pytest.mark.parametrize("what", CHANGES)
def test_vf_is_clean_before_it_is_given_whatever_was_set_on_the_host(lab, vf, what):
    home = home_of(lab, vf)
    seen = lab.inherited(home.name, None)
    change(lab, what, home.name, None)
    assert lab.inherited(home.name, None) != seen
    lab.kernel.apply(CleanVf(vf=vf, home=home))
    assert lab.inherited(home.name, None) == seen
    assert state_of(lab, vf).mac == home.mac


@pytest.mark.parametrize("what", ["program", "held program"])
def test_vf_has_no_program_before_it_is_given_when_its_home_is_not_known(lab, vf, what):
    home = home_of(lab, vf)
    lab.attach_program(home.name, None, by_link=what == "held program")
    assert programs(lab.kernel.attributes(vf))
    lab.kernel.apply(CleanVf(vf=vf, home=replace(home, attributes=None)))
    assert not programs(lab.kernel.attributes(vf))


def test_cleaning_has_no_effect_on_a_clean_vf_and_on_one_elsewhere(lab, vf):
    home, netns = home_of(lab, vf), lab.namespace()
    before = lab.kernel.observe(), lab.seen(home.name)
    lab.kernel.apply(CleanVf(vf=vf, home=home))
    lab.kernel.apply(CleanVf(vf=vf, home=replace(home, attributes=None)))
    assert (lab.kernel.observe(), lab.seen(home.name)) == before
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.tune("rdma0", netns)
    given = lab.inherited("rdma0", netns)
    lab.kernel.apply(CleanVf(vf=vf, home=home))
    assert lab.inherited("rdma0", netns) == given
    lab.kernel.apply(step.inverse)


def test_vf_comes_home_new_when_its_home_was_not_noted(lab, vf):
    """As in receipts of older agents, and in a rebuilt ledger."""
    home = home_of(lab, vf)
    before, seen = lab.kernel.observe(), lab.inherited(home.name, None)
    netns = lab.namespace()
    step = replace(give(lab, vf, netns), home=replace(home, attributes=None))
    lab.kernel.apply(step)
    for what in ("settings", "held program"):
        change(lab, what, "rdma0", netns)
    for _ in range(2):
        lab.kernel.apply(step.inverse)
        assert lab.kernel.observe() == before
        assert lab.inherited(home.name, None) == seen


def test_vf_keeps_its_rates_and_settings_when_a_new_netdev_replaces_its_own(lab, vf):
    lab.kernel.apply(SetRates(pf=vf.pf, rates=(rate(lab, 1, 100, 200),), previous=(VfRate(1),)))
    home, before = home_of(lab, vf), state_of(lab, vf)
    lab.attach_program(home.name, None, by_link=True)
    lab.kernel.apply(CleanVf(vf=vf, home=home))
    assert state_of(lab, vf) == before


def test_xdp_program_of_a_pod_is_shown(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    assert not lab.kernel.interfaces(netns)["rdma0"].xdp
    lab.attach_program("rdma0", netns)
    assert lab.kernel.interfaces(netns)["rdma0"].xdp
    lab.kernel.apply(step.inverse)
