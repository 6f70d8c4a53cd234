"""Resetting a VF, the same on every kernel."""

from __future__ import annotations

import pytest

from contract.lab import give, home_of, needs, previous_of, rate, state_of
from k8s_rdma.core.step import ConfigureVfs, SetRates, VfConfig, VfRate, VfRef, Vlan
from k8s_rdma.core.types import Setting
from k8s_rdma.errors import KernelError


@pytest.fixture
def vf(lab):
    return VfRef(lab.pcis[1], 2)


def test_vf_is_down_bare_and_without_rates_when_reset(lab, vf):
    name = home_of(lab, vf).name
    before = lab.kernel.observe(), lab.seen(name)
    lab.kernel.apply(SetRates(pf=vf.pf, rates=(rate(lab, 2, 10, 20),), previous=(VfRate(2),)))
    lab.use(name, None, "10.0.0.1/24", "fd00::1/64")
    assert lab.seen(name).is_up
    lab.kernel.reset(vf)
    assert (lab.kernel.observe(), lab.seen(name)) == before
    lab.kernel.reset(vf)
    assert (lab.kernel.observe(), lab.seen(name)) == before


def test_vf_has_no_vlan_when_reset(lab, vf):
    needs(lab, Setting.VLAN)
    before = lab.kernel.observe()
    config = VfConfig(index=vf.index, vlan=Vlan(100))
    lab.kernel.apply(ConfigureVfs(pf=vf.pf, configs=(config,), previous=(previous_of(lab, vf.pf, config),)))
    assert state_of(lab, vf).vlan == 100
    lab.kernel.reset(vf)
    assert lab.kernel.observe() == before


def test_reset_leaves_other_vfs_alone(lab, vf):
    other = VfRef(vf.pf, 0)
    lab.kernel.apply(SetRates(pf=vf.pf, rates=(rate(lab, 0, 10, 20),), previous=(VfRate(0),)))
    lab.use(home_of(lab, other).name, None, "10.0.0.1/24")
    before = state_of(lab, other), lab.seen(home_of(lab, other).name)
    lab.kernel.reset(vf)
    assert (state_of(lab, other), lab.seen(home_of(lab, other).name)) == before


def test_reset_of_a_vf_in_a_namespace_fails_without_a_change(lab, vf):
    netns = lab.namespace()
    lab.kernel.apply(SetRates(pf=vf.pf, rates=(rate(lab, 2, 10, 20),), previous=(VfRate(2),)))
    lab.kernel.apply(give(lab, vf, netns))
    lab.use("rdma0", netns, "10.0.0.1/24")
    before = lab.kernel.observe(), lab.seen("rdma0", netns)
    with pytest.raises(KernelError, match=f"VF 2 of PF {vf.pf}"):
        lab.kernel.reset(vf)
    assert (lab.kernel.observe(), lab.seen("rdma0", netns)) == before


def test_reset_fails_when_the_vf_is_unknown(lab, vf):
    with pytest.raises(KernelError, match="VF 255 of PF"):
        lab.kernel.reset(VfRef(vf.pf, 255))
