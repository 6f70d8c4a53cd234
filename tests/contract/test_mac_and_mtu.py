"""GiveVf with a MAC and an MTU of the pod's own, the same on every kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.lab import give, home_of, needs, previous_of, state_of
from k8s_rdma.core.plan import undo
from k8s_rdma.core.step import ConfigureVfs, VfConfig, VfRef
from k8s_rdma.core.types import Setting
from k8s_rdma.errors import KernelError

MAC = "02:11:22:33:44:55"
MTU = 1400

both = pytest.mark.parametrize("wanted", [{"mac": MAC}, {"mtu": MTU}, {"mac": MAC, "mtu": MTU}], ids=str)


@pytest.fixture
def vf(lab):
    return VfRef(lab.pcis[0], 1)


def steps_for(lab, vf, netns, wanted):
    """As `core.plan` has them: a MAC is the PF's to know first."""
    for key in wanted:
        needs(lab, Setting(key))
    giving = replace(give(lab, vf, netns), **wanted)
    if "mac" not in wanted:
        return [giving]
    config = VfConfig(index=vf.index, mac=wanted["mac"])
    previous = previous_of(lab, vf.pf, config)
    return [ConfigureVfs(pf=vf.pf, configs=(config,), previous=(previous,)), giving]


def apply(lab, steps):
    for step in steps:
        lab.kernel.apply(step)


def at_home(lab, vf):
    return lab.kernel.observe(), lab.seen(home_of(lab, vf).name)


@both
def test_interface_has_requested_settings_in_the_pod(lab, vf, wanted):
    netns = lab.namespace()
    steps = steps_for(lab, vf, netns, wanted)
    home = home_of(lab, vf)
    apply(lab, steps)
    found = lab.seen("rdma0", netns)
    assert (found.mac, found.mtu) == (wanted.get("mac", home.mac), wanted.get("mtu", home.mtu))
    assert not found.is_up


def test_netdev_that_had_another_mac_than_that_of_home_gets_it_as_it_leaves_and_keeps_it(lab, vf):
    """For example, the PF has one for it that its driver does not know of yet."""
    before, netns = at_home(lab, vf), lab.namespace()
    step = give(lab, vf, netns)
    lab.alter(step.home.name, None, name=step.home.name, mac=MAC, mtu=step.home.mtu)
    lab.kernel.apply(step)
    assert lab.seen("rdma0", netns).mac == step.home.mac
    lab.alter("rdma0", netns, name="rdma0", mac=MAC, mtu=step.home.mtu)
    lab.kernel.apply(step)
    assert lab.seen("rdma0", netns).mac == MAC  # the pod's own MAC is the pod's affair
    lab.kernel.apply(step.inverse)
    assert at_home(lab, vf) == before


@both
def test_vf_is_exactly_as_before_when_it_came_home(lab, vf, wanted):
    before = at_home(lab, vf)
    steps = steps_for(lab, vf, lab.namespace(), wanted)
    apply(lab, steps)
    apply(lab, undo(steps))
    assert at_home(lab, vf) == before
    apply(lab, undo(steps))
    assert at_home(lab, vf) == before


@both
def test_vf_is_exactly_as_before_when_its_namespace_was_destroyed(lab, vf, wanted):
    before, netns = at_home(lab, vf), lab.namespace()
    steps = steps_for(lab, vf, netns, wanted)
    apply(lab, steps)
    lab.destroy(netns)
    apply(lab, undo(steps))
    assert at_home(lab, vf) == before


@both
def test_vf_is_exactly_as_before_when_the_pod_changed_both_and_another_kernel_brings_it_home(lab, vf, wanted):
    before, netns = at_home(lab, vf), lab.namespace()
    steps = steps_for(lab, vf, netns, wanted)
    apply(lab, steps)
    lab.alter("rdma0", netns, name="mine", mac=wanted.get("mac", steps[-1].home.mac), mtu=1300)
    lab.kernel.close()
    lab.kernel = lab.another_kernel()
    apply(lab, undo(steps))
    assert at_home(lab, vf) == before


@both
def test_giving_again_has_no_effect(lab, vf, wanted):
    netns = lab.namespace()
    steps = steps_for(lab, vf, netns, wanted)
    apply(lab, steps)
    lab.use("rdma0", netns, "10.0.0.1/24")
    before = lab.kernel.observe(), lab.seen("rdma0", netns)
    apply(lab, steps)
    assert (lab.kernel.observe(), lab.seen("rdma0", netns)) == before


@both
def test_inverse_has_no_effect_on_a_vf_that_was_never_given(lab, vf, wanted):
    before = at_home(lab, vf)
    apply(lab, undo(steps_for(lab, vf, lab.namespace(), wanted)))
    assert at_home(lab, vf) == before


@both
def test_vf_is_as_before_when_its_name_in_the_pod_was_taken(lab, vf, wanted):
    before, netns = at_home(lab, vf), lab.namespace()
    lab.occupy("rdma0", netns)
    steps = steps_for(lab, vf, netns, wanted)
    with pytest.raises(KernelError, match="rdma0"):
        apply(lab, steps)
    apply(lab, undo(steps))
    assert at_home(lab, vf) == before


def test_largest_mtu_is_the_pfs(lab, vf):
    netns = lab.namespace()
    apply(lab, steps_for(lab, vf, netns, {"mtu": lab.pf_mtu}))
    assert lab.seen("rdma0", netns).mtu == lab.pf_mtu


@pytest.mark.parametrize("far", ["below", "above"])
def test_vf_stays_unchanged_if_its_mtu_is_impossible(lab, vf, far):
    wanted = lab.pf_mtu + 100_000 if far == "above" else 67
    before, netns = at_home(lab, vf), lab.namespace()
    steps = steps_for(lab, vf, netns, {"mtu": wanted})
    with pytest.raises(KernelError, match=r"VF 1 of PF.*MTU"):
        apply(lab, steps)
    apply(lab, undo(steps))
    assert at_home(lab, vf) == before


def test_vf_in_a_pod_is_known_by_the_mac_that_its_pf_has_for_it(lab, vf):
    steps = steps_for(lab, vf, lab.namespace(), {"mac": MAC})
    apply(lab, steps)
    found = state_of(lab, vf)
    assert (found.mac, found.admin_mac) == (MAC, MAC)
