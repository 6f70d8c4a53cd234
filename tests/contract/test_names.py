"""Alternative names of a VF's netdev, which move along and keep names from others, the same on every kernel.

Reported of other programs: k8snetworkplumbingwg/sriov-cni 250 and 445.
"""

from __future__ import annotations

import pytest

from contract.lab import give, home_of, state_of
from k8s_rdma.core.kernel import NameTakenError
from k8s_rdma.core.step import VfRef
from k8s_rdma.errors import KernelError


@pytest.fixture
def vf(lab):
    return VfRef(lab.pcis[0], 1)


@pytest.mark.parametrize("altname", ["rdma0", "taken", "spare"])
def test_vf_is_given_and_comes_home_without_the_alternative_name_that_it_had_at_home(lab, vf, altname):
    """`rdma0` is its name in the pod, `taken` another interface's there."""
    netns, name = lab.namespace(), home_of(lab, vf).name
    lab.occupy("taken", netns)
    lab.add_altname(name, None, altname)
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    assert lab.seen("rdma0", netns).mac == step.home.mac
    lab.occupy(altname)  # free on the host: it did not stay behind
    lab.kernel.apply(step.inverse)
    assert state_of(lab, vf).netdev == name


@pytest.mark.parametrize("destroyed", [False, True])
def test_vf_comes_home_without_an_alternative_name_that_is_its_own_or_another_ones_name_there(
    lab, vf, destroyed
):
    other = home_of(lab, VfRef(vf.pf, 2)).name
    for altname in (home_of(lab, vf).name, other):
        netns = lab.namespace()
        step = give(lab, vf, netns)
        lab.kernel.apply(step)
        lab.add_altname("rdma0", netns, altname)
        if destroyed:
            lab.destroy(netns)
        lab.kernel.apply(step.inverse)
        assert state_of(lab, vf).netdev == step.home.name
        assert state_of(lab, VfRef(vf.pf, 2)).netdev == other


def test_giving_again_gives_the_name_back_when_the_pod_made_it_an_alternative_one(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.alter("rdma0", netns, name="mine", mac=step.home.mac, mtu=step.home.mtu)
    lab.add_altname("mine", netns, "rdma0")
    lab.kernel.apply(step)
    lab.alter("rdma0", netns, name="mine", mac=step.home.mac, mtu=step.home.mtu)
    lab.occupy("rdma0", netns)  # free: it is not an alternative name any more


def test_giving_fails_by_name_when_it_is_an_alternative_one_of_another_interface(lab, vf):
    netns = lab.namespace()
    lab.occupy("other", netns)
    lab.add_altname("other", netns, "rdma0")
    step = give(lab, vf, netns)
    with pytest.raises(KernelError, match="rdma0"):
        lab.kernel.apply(step)
    assert state_of(lab, vf).netdev == step.home.name


def test_bringing_home_fails_by_name_when_it_is_an_alternative_one_of_another_interface(lab, vf):
    netns = lab.namespace()
    step = give(lab, vf, netns)
    lab.kernel.apply(step)
    lab.occupy("other")
    lab.add_altname("other", None, step.home.name)
    with pytest.raises(NameTakenError, match=step.home.name):
        lab.kernel.apply(step.inverse)
    lab.vacate("other")
    lab.kernel.apply(step.inverse)
    assert state_of(lab, vf).netdev == step.home.name
