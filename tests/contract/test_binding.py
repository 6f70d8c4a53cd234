"""BindVf and UnbindVf, the same on every kernel that can give VFs as PCI functions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.lab import give, home_of, needs, state_of
from k8s_rdma.core.kernel import NameTakenError
from k8s_rdma.core.plan import undo
from k8s_rdma.core.step import BindVf, VfRef
from k8s_rdma.core.types import Setting
from k8s_rdma.errors import KernelError


@pytest.fixture
def vf(lab):
    needs(lab, Setting.VFIO_PCI)
    return VfRef(lab.pcis[0], 1)


def bind(lab, vf):
    return BindVf(
        vf=vf,
        pci=state_of(lab, vf).pci,
        driver="vfio-pci",
        kernel_driver=lab.vf_driver,
        home=home_of(lab, vf),
    )


def test_bound_vf_has_no_netdev_and_names_its_driver(lab, vf):
    step = bind(lab, vf)
    lab.kernel.apply(step)
    found = state_of(lab, vf)
    assert (found.netdev, found.rdma_device, found.pci) == (None, None, step.pci)
    assert "vfio-pci" in found.unusable
    assert lab.seen(step.home.name) is None


def test_binding_holds_when_repeated_also_by_another_kernel(lab, vf):
    step = bind(lab, vf)
    lab.kernel.apply(step)
    before = lab.kernel.observe()
    lab.kernel.apply(step)
    lab.kernel.close()
    successor = lab.another_kernel()
    successor.apply(step)
    assert successor.observe() == before


def test_vf_is_exactly_as_before_when_bound_and_unbound(lab, vf):
    before, name = lab.kernel.observe(), home_of(lab, vf).name
    seen = lab.seen(name)
    step = bind(lab, vf)
    lab.kernel.apply(step)
    lab.kernel.apply(step.inverse)
    assert (lab.kernel.observe(), lab.seen(name)) == (before, seen)
    lab.kernel.apply(step.inverse)
    assert (lab.kernel.observe(), lab.seen(name)) == (before, seen)


def test_unbinding_an_unbound_vf_has_no_effect(lab, vf):
    before = lab.kernel.observe()
    lab.kernel.apply(bind(lab, vf).inverse)
    assert lab.kernel.observe() == before


def test_unbinding_leaves_a_vf_alone_that_serves_a_namespace(lab, vf):
    step, netns = bind(lab, vf), lab.namespace()
    lab.kernel.apply(give(lab, vf, netns))
    before = lab.kernel.observe(), lab.seen("rdma0", netns)
    lab.kernel.apply(step.inverse)
    assert (lab.kernel.observe(), lab.seen("rdma0", netns)) == before


def test_binding_a_vf_in_a_namespace_fails_without_a_change(lab, vf):
    step, netns = bind(lab, vf), lab.namespace()
    lab.kernel.apply(give(lab, vf, netns))
    before = lab.kernel.observe(), lab.seen("rdma0", netns)
    with pytest.raises(KernelError, match="VF 1 of PF"):
        lab.kernel.apply(step)
    assert (lab.kernel.observe(), lab.seen("rdma0", netns)) == before


def test_giving_fails_and_bringing_home_has_no_effect_while_bound(lab, vf):
    netns = lab.namespace()
    moving = give(lab, vf, netns)
    lab.kernel.apply(bind(lab, vf))
    before = lab.kernel.observe()
    with pytest.raises(KernelError, match="VF 1 of PF"):
        lab.kernel.apply(moving)
    lab.kernel.apply(moving.inverse)
    assert lab.kernel.observe() == before
    assert lab.seen("rdma0", netns) is None


def test_reset_fails_without_a_change_while_bound(lab, vf):
    lab.kernel.apply(bind(lab, vf))
    before = lab.kernel.observe()
    with pytest.raises(KernelError, match="VF 1 of PF"):
        lab.kernel.reset(vf)
    assert lab.kernel.observe() == before


def test_unbinding_fails_while_the_name_of_home_is_taken_and_works_when_it_is_free(lab, vf):
    before = lab.kernel.observe()
    step = bind(lab, vf)
    lab.kernel.apply(step)
    lab.occupy(step.home.name)
    with pytest.raises(NameTakenError, match=step.home.name):
        lab.kernel.apply(step.inverse)
    lab.vacate(step.home.name)
    lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before


@pytest.mark.parametrize("wrong", ["pci", "index"])
def test_binding_fails_if_the_vf_differs_from_its_description(lab, vf, wrong):
    right = bind(lab, vf)
    if wrong == "pci":
        step = replace(right, pci=state_of(lab, VfRef(vf.pf, 2)).pci)
    else:
        step = replace(right, vf=VfRef(vf.pf, 255))
    before = lab.kernel.observe()
    for each in (step, step.inverse):
        with pytest.raises(KernelError, match=str(vf.pf)):
            lab.kernel.apply(each)
    assert lab.kernel.observe() == before


def test_several_are_bound_and_home_again(lab, vf):
    before = lab.kernel.observe()
    steps = [bind(lab, VfRef(vf.pf, index)) for index in (0, 1, 2)]
    for step in (*steps, *undo(steps)):
        lab.kernel.apply(step)
    assert lab.kernel.observe() == before


def test_binding_that_the_pf_does_not_take_is_refused_without_a_change(lab):
    if Setting.VFIO_PCI in lab.takes:
        pytest.skip(f"{lab.pf_names[0]} takes {Setting.VFIO_PCI}")
    before = lab.kernel.observe()
    with pytest.raises(KernelError, match="VF 1 of PF"):
        lab.kernel.apply(bind(lab, VfRef(lab.pcis[0], 1)))
    assert lab.kernel.observe() == before
