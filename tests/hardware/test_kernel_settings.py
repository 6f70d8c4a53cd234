"""Settings of real VFs: their effect on real frames, and how often the kernel is asked."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import pytest

from contract.hardware_lab import needs_hardware
from contract.lab import give, home_of, needs, previous_of, state_of
from contract.linux_lab import DEADLINE_S, await_link, inside, run
from hardware.netlink_lab import simulated_pf
from k8s_rdma.core.kernel import PfState, Vf, present_config
from k8s_rdma.core.plan import undo
from k8s_rdma.core.step import ConfigureInterface, ConfigureVfs, VfConfig, VfRef, Vlan
from k8s_rdma.core.types import LinkState, PciAddress, Setting, VlanProto
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.netlink import sriov
from k8s_rdma.linux.vf.programming import configure_vfs, with_settings

MAC = "02:11:22:33:44:55"
NOWHERE = PciAddress("0000:99:00.0")
ONE, OTHER = "10.7.0.1", "10.7.0.2"


class CountedQueries(NetlinkQueries):
    """Counts queries that hold the kernel's lock for long."""

    asked = 0

    def vf_infos(self, index):
        self.asked += 1
        return super().vf_infos(index)


def configure(lab, vf, **settings):
    config = VfConfig(index=vf.index, **settings)
    return ConfigureVfs(pf=vf.pf, configs=(config,), previous=(previous_of(lab, vf.pf, config),))


def attach(lab, vf, address, steps=(), **options):
    """In a namespace of its own with an address; return the applied steps and the namespace."""
    netns = lab.namespace()
    applied = [*steps, replace(give(lab, vf, netns), **options)]
    for step in applied:
        lab.kernel.apply(step)
    lab.kernel.apply(ConfigureInterface(netns=netns, ifname="rdma0", addresses=(f"{address}/24",)))
    await_link("rdma0", netns)
    return applied, netns


def detach(lab, *attached):
    for applied, _ in attached:
        for step in undo(applied):
            lab.kernel.apply(step)


def hears(netns, address, deadline_s=DEADLINE_S):
    """Whether an answer comes in time; those that must not come are waited for less long."""
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        answer = run(*inside(netns), "ping", "-c", "1", "-W", "1", address, check=False)
        if "bytes from" in answer:
            return True
    return False


@needs_hardware
def test_pod_with_a_mac_of_its_own_is_heard_and_the_pod_after_it_too(lab):
    needs(lab, Setting.MAC)
    vf, peer = VfRef(lab.pcis[0], 1), VfRef(lab.pcis[1], 1)
    assert state_of(lab, vf).spoof_check == "ON"
    other = attach(lab, peer, OTHER)
    one = attach(lab, vf, ONE, [configure(lab, vf, mac=MAC)], mac=MAC)
    assert hears(one[1], OTHER)
    assert MAC in run(*inside(other[1]), "ip", "neighbour", "show", ONE)
    detach(lab, one)
    run(*inside(other[1]), "ip", "neighbour", "flush", "all")
    after = attach(lab, vf, ONE)
    assert hears(after[1], OTHER)
    detach(lab, after, other)


@needs_hardware
def test_vfs_in_one_vlan_hear_each_other_and_no_others(lab):
    needs(lab, Setting.VLAN)
    vf, peer = VfRef(lab.pcis[0], 1), VfRef(lab.pcis[1], 1)
    tagged = attach(lab, vf, ONE, [configure(lab, vf, vlan=Vlan(100))])
    untagged = attach(lab, peer, OTHER)
    assert not hears(tagged[1], OTHER, deadline_s=3)
    step = configure(lab, peer, vlan=Vlan(100))
    lab.kernel.apply(step)
    assert hears(tagged[1], OTHER)
    lab.kernel.apply(step.inverse)
    detach(lab, tagged, untagged)
    assert (state_of(lab, vf).vlan, state_of(lab, peer).vlan) == (0, 0)


@needs_hardware
def test_settings_of_many_vfs_are_read_back_by_one_query(lab):
    with CountedQueries() as queries:
        kernel = lab.another_kernel(queries=queries)
        kernel.observe()
        queries.asked = 0
        configs = tuple(VfConfig(index=index, vlan=Vlan(100 + index, 3)) for index in range(lab.vfs))
        previous = tuple(previous_of(lab, lab.pcis[0], config) for config in configs)
        step = ConfigureVfs(pf=lab.pcis[0], configs=configs, previous=previous)
        kernel.apply(step)
        assert queries.asked == 1
        kernel.apply(step)
        assert [vf.vlan for vf in kernel.observe().pfs[0].vfs] == [100 + index for index in range(lab.vfs)]
        assert queries.asked == 2
        kernel.apply(step.inverse)


@needs_hardware
def test_vf_without_its_own_mac_in_a_pod_that_changed_it_comes_home_if_the_pf_got_it_meanwhile(lab):
    """The PF lets the VF have no MAC but the pod's; at home it has its own again."""
    needs(lab, Setting.MAC)
    vf, netns = VfRef(lab.pcis[0], 2), lab.namespace()
    home, before = home_of(lab, vf), lab.kernel.observe()
    steps = [configure(lab, vf, mac=MAC), replace(give(lab, vf, netns), mac=MAC, mtu=1400)]
    for step in steps:
        lab.kernel.apply(step)
    lab.destroy(netns)
    successor = lab.another_kernel()
    for step in undo(steps):
        successor.apply(step)
    assert home_of(lab, vf) == home
    assert lab.kernel.observe() == before


def test_every_setting_is_written_and_read_as_the_kernel_has_it():
    with simulated_pf(4) as name, CountedQueries() as queries:
        index = queries.rtnl.link(name).index
        vfs = tuple(
            Vf(index=info.index, pci=NOWHERE, netdev=None, mac="", mtu=1500)
            for info in queries.vf_infos(index)
        )
        takes = frozenset(Setting)
        bare = PfState(
            name=name, pci=NOWHERE, link_mbps=1000, driver="netdevsim", vfs=vfs, supported_settings=takes
        )
        pf = with_settings(bare, queries.vf_infos(index))
        every = VfConfig(
            index=0,
            mac=MAC,
            vlan=Vlan(100, 5, VlanProto.DOT1AD),
            trust=True,
            spoof_check=True,
            link_state=LinkState.DISABLE,
        )
        configs = every, replace(every, index=3, mac=None, spoof_check=False)
        previous = tuple(
            present_config(vf, config) for vf, config in zip((pf.vfs[0], pf.vfs[3]), configs, strict=True)
        )
        step = ConfigureVfs(pf=NOWHERE, configs=configs, previous=previous)
        doors = {
            "write": partial(sriov.set_vfs, queries.rtnl, index, "settings"),
            "read": partial(queries.vf_infos, index),
        }
        queries.asked = 0
        now = configure_vfs(step, pf, **doors)
        assert queries.asked == 1
        shown = run("ip", "link", "show", name)
        assert f"link/ether {MAC}" in shown
        assert shown.count("vlan 100, qos 5, vlan protocol 802.1ad") == 2
        assert shown.count("link-state disable, trust on") == 2
        assert configure_vfs(step.inverse, now, **doors) == pf


@pytest.mark.parametrize(
    "setting", [VfConfig(index=2, vlan=Vlan(4095)), VfConfig(index=2, mac="01:00:00:00:00:01")]
)
@needs_hardware
def test_value_that_no_driver_takes_is_an_error_that_names_it(lab, setting):
    step = ConfigureVfs(pf=lab.pcis[0], configs=(setting,), previous=(VfConfig(index=2),))
    with pytest.raises(KernelError, match=r"VF 2 of PF .*(VLAN 4095|MAC 01:00)"):
        lab.kernel.apply(step)
