"""FakeKernel beyond the contract: faults on command, and a physical VF's ways."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.kernel import FakeKernel
from fakes.machine import VF_DRIVER, FakeMachine, FakePf
from k8s_rdma.core.kernel import Unreadable
from k8s_rdma.core.plan import undo
from k8s_rdma.core.step import (
    BindVf,
    ConfigureInterface,
    ConfigureVfs,
    GiveVf,
    SetRates,
    VfConfig,
    VfHome,
    VfRate,
    VfRef,
    Vlan,
)
from k8s_rdma.core.types import LinkState, LinkType, PciAddress, Setting
from k8s_rdma.errors import KernelError

PF = PciAddress("0000:03:00.0")
ALL = 1_000


@pytest.fixture
def kernel():
    return make_kernel()


def make_kernel(vfs=4):
    return FakeKernel(FakeMachine(FakePf(name="p0", pci=PF, vfs=vfs, rdma=True)))


def give(kernel, netns, index=0, ifname="rdma0"):
    vf = kernel.observe().pfs[0].vfs[index]
    home = VfHome(name=vf.netdev, mac=vf.mac, mtu=vf.mtu)
    return GiveVf(vf=VfRef(PF, index), home=home, netns=netns, ifname=ifname)


def bind(kernel, index):
    vf = kernel.observe().pfs[0].vfs[index]
    home = VfHome(name=vf.netdev, mac=vf.mac, mtu=vf.mtu)
    return BindVf(vf=VfRef(PF, index), pci=vf.pci, driver="vfio-pci", kernel_driver=VF_DRIVER, home=home)


SETTINGS = ConfigureVfs(
    pf=PF,
    configs=(
        VfConfig(index=0, mac="02:00:00:00:00:55", vlan=Vlan(9, 3), trust=True),
        VfConfig(index=2, spoof_check=False, link_state=LinkState.DISABLE),
    ),
    previous=(
        VfConfig(index=0, mac="02:fa:00:00:00:00", vlan=Vlan(0), trust=False),
        VfConfig(index=2, spoof_check=True, link_state=LinkState.AUTO),
    ),
)


def plan_for(kernel, netns):
    return (
        SetRates(pf=PF, rates=(VfRate(0, 10, 20), VfRate(1, 5, 0)), previous=(VfRate(0), VfRate(1))),
        SETTINGS,
        replace(give(kernel, netns, 0, "rdma0"), mac="02:00:00:00:00:55", mtu=1400),
        bind(kernel, 2),
        give(kernel, netns, 1, "rdma1"),
        ConfigureInterface(netns=netns, ifname="rdma0", addresses=("10.0.0.1/24", "10.0.0.2/24")),
        ConfigureInterface(netns=netns, ifname="rdma1"),
    )


def apply_all(kernel, steps, done):
    for step in steps:
        done.append(step)
        kernel.apply(step)


@given(at=st.integers(0, 6), after_changes=st.integers(0, 5), namespace_dies=st.booleans())
def test_undo_restores_the_former_state_after_a_failure_of_any_step(at, after_changes, namespace_dies):
    kernel = make_kernel()
    netns = kernel.machine.create_namespace()
    before, steps, done = kernel.observe(), plan_for(kernel, netns), []
    kernel.fail(index=at, after_changes=after_changes)
    with pytest.raises(KernelError):
        apply_all(kernel, steps, done)
    if namespace_dies:
        kernel.machine.destroy_namespace(netns)
    for step in undo(done):
        kernel.apply(step)
    assert kernel.observe() == before


def test_undo_restores_the_former_state_when_it_fails_anywhere_and_is_repeated():
    for at, after_changes in product(range(7), range(6)):
        kernel = make_kernel()
        netns = kernel.machine.create_namespace()
        before, steps = kernel.observe(), plan_for(kernel, netns)
        apply_all(kernel, steps, [])
        kernel.fail(index=at, after_changes=after_changes)
        with pytest.raises(KernelError, match="made to fail"):
            apply_all(kernel, undo(steps), [])
        apply_all(kernel, undo(steps), [])
        assert kernel.observe() == before, (at, after_changes)


@pytest.mark.parametrize(
    ("after_changes", "rates"), [(0, [0, 0]), (1, [10, 0]), (2, [10, 5]), (ALL, [10, 5])]
)
def test_failing_step_takes_the_configured_effect(kernel, after_changes, rates):
    kernel.fail(after_changes=after_changes)
    with pytest.raises(KernelError, match="SetRates"):
        kernel.apply(plan_for(kernel, kernel.machine.create_namespace())[0])
    assert [vf.min_tx_rate_mbps for vf in kernel.observe().pfs[0].vfs[:2]] == rates


def test_steps_fail_in_a_row_if_configured_and_work_again_after(kernel):
    step = plan_for(kernel, kernel.machine.create_namespace())[0]
    kernel.fail(index=1, times=2)
    outcomes = []
    for _ in range(4):
        try:
            kernel.apply(step)
            outcomes.append("holds")
        except KernelError:
            outcomes.append("fails")
    assert outcomes == ["holds", "fails", "fails", "holds"]
    assert kernel.applied == [step] * 4


def test_rdma_device_moves_before_the_netdev(kernel):
    netns = kernel.machine.create_namespace()
    kernel.fail(after_changes=1)
    with pytest.raises(KernelError):
        kernel.apply(give(kernel, netns))
    vf = kernel.observe().pfs[0].vfs[0]
    assert (vf.rdma_device, vf.netdev) == (None, "p0v0")


def test_vf_comes_home_under_its_last_name_or_a_free_one_when_its_namespace_dies(kernel):
    first, second = kernel.machine.create_namespace(), kernel.machine.create_namespace()
    kernel.apply(give(kernel, first, 0))
    kernel.apply(give(kernel, second, 1))
    kernel.machine.destroy_namespace(first)
    kernel.machine.destroy_namespace(second)
    assert [vf.netdev for vf in kernel.observe().pfs[0].vfs] == ["rdma0", "dev0", "p0v2", "p0v3"]


def test_vf_comes_home_down_and_bare_when_its_namespace_dies(kernel):
    netns = kernel.machine.create_namespace()
    kernel.apply(give(kernel, netns))
    kernel.apply(ConfigureInterface(netns=netns, ifname="rdma0", addresses=("10.0.0.1/24",)))
    kernel.machine.destroy_namespace(netns)
    found = kernel.machine.interface("rdma0")
    assert (found.is_up, found.addresses) == (False, ())


def test_observation_names_unreadable_parts_and_counts(kernel):
    unreadable = Unreadable("0000:04:00.0", "EIO")
    kernel.machine.set_unreadable(unreadable)
    assert kernel.observe().unreadable == (unreadable,)
    assert kernel.observations == 1


def test_vf_comes_up_with_the_mac_that_its_pf_has_when_the_kernel_drives_it_again(kernel):
    step = bind(kernel, 0)
    kernel.apply(step)
    kernel.apply(SETTINGS)
    kernel.fail(after_changes=2)
    with pytest.raises(KernelError):
        kernel.apply(step.inverse)
    assert "no driver" in kernel.observe().pfs[0].vfs[0].unusable
    kernel.fail(after_changes=1)
    with pytest.raises(KernelError):
        kernel.apply(step.inverse)
    found = kernel.observe().pfs[0].vfs[0]
    assert (found.netdev, found.mac) == ("eth0", "02:00:00:00:00:55")


def test_infiniband_vf_has_a_guid_and_no_other_setting_of_ethernet():
    pf = FakePf(name="ib0", pci=PF, vfs=2, rdma=True, link_type=LinkType.INFINIBAND)
    kernel = FakeKernel(FakeMachine(pf))
    guid = "00:11:22:33:44:55:66:77"
    was = kernel.observe().pfs[0].vfs[1]
    config, previous = VfConfig(index=1, guid=guid), VfConfig(index=1, guid=was.admin_mac)
    step = ConfigureVfs(pf=PF, configs=(config,), previous=(previous,))
    kernel.apply(step)
    found = kernel.observe()
    assert found.pfs[0].link_type is LinkType.INFINIBAND
    assert found.pfs[0].vfs[1].admin_mac == guid
    kernel.apply(step.inverse)
    assert kernel.observe().pfs[0].vfs[1] == was
    with pytest.raises(KernelError, match="VLAN 9: fake does not support"):
        kernel.apply(ConfigureVfs(pf=PF, configs=(VfConfig(index=1, vlan=Vlan(9)),), previous=()))


def test_pf_takes_configured_settings():
    kernel = FakeKernel(FakeMachine(FakePf(name="p0", pci=PF, vfs=4, settings=frozenset({Setting.VLAN}))))
    assert kernel.observe().pfs[0].supported_settings == {Setting.VLAN}
    with pytest.raises(KernelError, match="QoS 3: fake does not support"):
        kernel.apply(SETTINGS)
    with pytest.raises(KernelError, match="vfio-pci"):
        kernel.apply(bind(kernel, 0))


def test_link_change_is_observed_and_watchers_are_notified(kernel):
    told = []
    kernel.watch(lambda: told.append(kernel.observe().pfs[0].link_mbps))
    kernel.machine.set_link(PF, 25_000)
    kernel.machine.set_link(PF, None)
    assert told == [25_000, None]


def test_rates_may_go_down_when_the_link_no_longer_carries_their_sum(kernel):
    kernel.apply(SetRates(pf=PF, rates=(VfRate(0, 60_000), VfRate(1, 40_000)), previous=()))
    kernel.machine.set_link(PF, 50_000)
    kernel.apply(SetRates(pf=PF, rates=(VfRate(0, 59_999),), previous=()))
    with pytest.raises(KernelError, match="100000 Mb/s, its link has 50000"):
        kernel.apply(SetRates(pf=PF, rates=(VfRate(0, 60_000),), previous=()))


def test_pci_addresses_of_all_vfs_differ_when_there_are_many():
    kernel = FakeKernel(
        FakeMachine(*(FakePf(name=f"p{n}", pci=PciAddress(f"0000:03:00.{n}"), vfs=128) for n in (0, 1)))
    )
    vfs = [vf for pf in kernel.observe().pfs for vf in pf.vfs]
    assert len({vf.pci for vf in vfs}) == len({vf.mac for vf in vfs}) == 256
