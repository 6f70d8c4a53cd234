"""Work of VirtualSriov that physical functions would not need, and limits that no pod must escape."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace

import pytest

from contract.lab import PF0, PF1, home_of
from contract.linux_lab import needs_namespaces
from contract.virtual_lab import VirtualLab
from k8s_rdma.core.step import (
    BringHome,
    CleanVf,
    ConfigureInterface,
    GiveVf,
    NetnsRef,
    SetRates,
    VfRate,
    VfRef,
)
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import Rtnl, enslaved_to, in_namespace, named, of_kind, with_alias, with_mac
from k8s_rdma.linux.virtual.kernel import VirtualSriov
from k8s_rdma.linux.virtual.topology import alias_of, pf_of

pytestmark = needs_namespaces
VF = VfRef(PF0, 1)


@pytest.fixture
def lab(tmp_path):
    made = VirtualLab(tmp_path, 3)
    yield made
    made.close()


def give(lab, netns, vf=VF, ifname="rdma0"):
    return GiveVf(vf=vf, home=home_of(lab, vf), netns=netns, ifname=ifname)


def delete(rtnl, name):
    rtnl.delete(rtnl.link(name).index, f"delete {name}")


def test_vf_is_made_anew_with_its_rates_when_a_pod_destroyed_it(lab):
    lab.kernel.apply(SetRates(pf=PF0, rates=(VfRate(1, 100, 200),), previous=(VfRate(1),)))
    before, netns = lab.kernel.observe(), lab.namespace()
    lab.kernel.apply(give(lab, netns))
    with lab.rtnl_of(netns) as inside:
        delete(inside, "rdma0")
    assert lab.kernel.observe() == before
    assert lab.seen("enp3s0f0v1").mac == before.pfs[0].vfs[1].mac


def test_vf_is_away_and_not_made_anew_while_its_namespace_lives(lab):
    netns = lab.namespace()
    lab.kernel.apply(give(lab, netns))
    before = lab.seen("rdma0", netns)
    assert [vf.netdev for vf in lab.kernel.observe().pfs[0].vfs] == ["enp3s0f0v0", None, "enp3s0f0v2"]
    assert lab.seen("rdma0", netns) == before


def test_port_is_made_anew_when_its_making_was_cut_short(lab):
    before = lab.kernel.observe()
    delete(lab.rtnl, "enp3s0f0r1")
    bridge = lab.rtnl.link("enp3s0f0")
    lab.rtnl.create("a port and no more", named("enp3s0f0r1"), enslaved_to(bridge.index), of_kind("veth"))
    assert lab.kernel.observe() == before
    assert lab.rtnl.link("enp3s0f0r1").is_up


def test_class_is_made_anew_when_its_making_was_cut_short(lab):
    before = lab.kernel.observe()
    tc("filter", "del", "dev", "enp3s0f0-tx", "parent", "1:", "handle", "1:1:2", "prio", "1000", "u32")
    tc("class", "del", "dev", "enp3s0f0-tx", "classid", "1:11")
    assert "1:11 " not in tc("class", "show", "dev", "enp3s0f0-tx")
    assert lab.kernel.observe() == before
    assert "flowid 1:11" in tc("filter", "show", "dev", "enp3s0f0-tx")


def test_pf_is_unreadable_and_the_other_seen_when_its_scheduler_is_missing(lab):
    delete(lab.rtnl, "enp3s0f0-tx")
    hardware = lab.kernel.observe()
    assert [pf.pci for pf in hardware.pfs] == [PF1]
    assert hardware.unreadable[0].subject == f"PF {PF0}"
    with pytest.raises(KernelError, match="enp3s0f0-tx: no longer exists"):
        lab.kernel.apply(SetRates(pf=PF0, rates=(VfRate(0, 1, 2),), previous=(VfRate(0),)))


def test_vf_that_cannot_be_made_anew_is_unreadable(lab):
    delete(lab.rtnl, "enp3s0f0r1")
    lab.occupy("enp3s0f0v1")
    hardware = lab.kernel.observe()
    assert [pf.pci for pf in hardware.pfs] == [PF1]
    assert hardware.unreadable[0].subject == f"VF 1 of PF {PF0}"
    assert "EEXIST" in hardware.unreadable[0].why


class DyingPorts(Rtnl):
    """Links of which one more is gone whenever one is made, as if namespaces ended one by one."""

    def __init__(self, *doomed):
        super().__init__()
        self.doomed = list(doomed)

    def create(self, operation, *attributes):
        super().create(operation, *attributes)
        if self.doomed:
            delete(self, self.doomed.pop(0))


def test_observation_is_whole_when_vfs_die_one_after_the_other_while_it_looks(lab):
    before, dying = lab.kernel.observe(), DyingPorts()
    kernel = VirtualSriov(lab.namespaces, dying)
    delete(lab.rtnl, "enp3s0f0r0")
    dying.doomed = ["enp3s0f0r1", "enp3s0f1r2"]
    seen = [kernel.observe(), kernel.observe()]
    kernel.close()
    assert seen == [before, before]


class CountingLinks(Rtnl):
    """Counts the links that are looked up one by one."""

    found = 0

    def link(self, name):
        self.found += 1
        return super().link(name)

    def link_at(self, index):
        self.found += 1
        return super().link_at(index)


def test_vf_that_comes_and_goes_has_few_links_looked_up_in_the_host_namespace(lab):
    """A look-up takes the processor as long as to bring a link up, and a pod may have 60 VFs."""
    links, netns = CountingLinks(), lab.namespace()
    kernel = VirtualSriov(lab.namespaces, links)
    kernel.observe()
    step = give(lab, netns)
    counts = []
    for each in (CleanVf(vf=VF, home=step.home), step, step.inverse):
        before = links.found
        kernel.apply(each)
        counts.append(links.found - before)
    kernel.close()
    assert counts == [1, 2, 4]


def test_vf_is_made_anew_for_the_pf_that_has_taken_the_place_of_the_one_observed(lab):
    step = give(lab, lab.namespace())
    bridge = lab.rtnl.link("enp3s0f0")
    pf = replace(pf_of(bridge), base_mac="02:aa:bb:cc:dd:00")
    lab.rtnl.change(bridge.index, "another", with_alias(alias_of(pf)))
    delete(lab.rtnl, "enp3s0f0r1")
    lab.kernel.apply(step.inverse)
    assert "02aabbcc" in tc("filter", "show", "dev", "enp3s0f0r1", "ingress")


def test_link_speed_is_unknown_while_the_uplink_has_no_carrier(lab):
    peer = lab.rtnl.link_at(lab.rtnl.link("up0").peer)
    lab.rtnl.change(peer.index, "pull the cable", up=False)
    assert [pf.link_mbps for pf in lab.kernel.observe().pfs] == [None, 1000]


def test_vf_comes_home_when_the_pod_moved_it_on(lab):
    before, netns, nested = lab.kernel.observe(), lab.namespace(), lab.namespace()
    step = give(lab, netns)
    lab.kernel.apply(step)
    with lab.rtnl_of(netns) as inside, lab.namespaces.existing(nested) as target:
        inside.change(inside.link("rdma0").index, "move on", in_namespace(target))
    lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before
    assert lab.seen("rdma0", nested) is None


def test_pods_own_interface_stays_when_it_bears_the_index_that_the_vf_had(lab):
    """Indexes are per namespace: another veth of the pod's may have the number that the VF's port reports."""
    netns, nested = lab.namespace(), lab.namespace()
    step = give(lab, netns)
    lab.kernel.apply(step)
    with (
        lab.namespaces.existing(netns) as pod,
        lab.namespaces.existing(nested) as target,
        Rtnl(pod) as inside,
    ):
        vf = inside.link("rdma0")
        inside.change(vf.index, "move on", in_namespace(target))
        subprocess.run(
            [
                "nsenter",
                f"--net={netns.path}",
                "ip",
                "link",
                "add",
                "own",
                "index",
                str(vf.index),
                "type",
                "veth",
            ],
            check=True,
        )
        lab.kernel.apply(step.inverse)
        assert inside.link_at(vf.index).name == "own"
    assert lab.seen("enp3s0f0v1") is not None


def test_giving_fails_and_the_pods_own_interface_keeps_its_name_when_it_bears_that_index(lab):
    netns, other = lab.namespace(), lab.namespace()
    step = give(lab, netns)
    lab.kernel.apply(give(lab, other))
    index = lab.rtnl.link("enp3s0f0r1").peer
    inside = ("nsenter", f"--net={netns.path}", "ip", "link")
    subprocess.run([*inside, "add", "own", "index", str(index), "type", "veth"], check=True)
    with pytest.raises(KernelError, match="another namespace"):
        lab.kernel.apply(step)
    assert lab.seen("own", netns) is not None


def test_vf_of_another_namespace_is_left_alone_if_the_released_one_cannot_be_read(lab):
    netns = lab.namespace()
    step = give(lab, NetnsRef("/no/such/directory/pod", 1))
    lab.kernel.apply(give(lab, netns))
    before = lab.seen("rdma0", netns)
    lab.kernel.apply(step.inverse)
    assert lab.seen("rdma0", netns) == before


def test_vf_stays_in_place_if_its_own_namespace_cannot_be_read(lab, tmp_path):
    netns = lab.namespace()
    step = give(lab, netns)
    lab.kernel.apply(step)
    elsewhere = NetnsRef(str(tmp_path / "unmounted" / "pod"), netns.inode)
    with pytest.raises(KernelError, match="cannot be accessed"):
        lab.kernel.apply(BringHome(vf=VF, home=step.home, netns=elsewhere, ifname="rdma0"))
    assert lab.seen("rdma0", netns) is not None


def test_port_says_whose_the_vf_is_while_it_is_away(lab):
    netns = lab.namespace()
    step = give(lab, netns)
    lab.kernel.apply(step)
    assert json.loads(lab.rtnl.link("enp3s0f0r1").alias) == {"given": netns.inode}
    lab.kernel.apply(step.inverse)
    assert lab.rtnl.link("enp3s0f0r1").alias == ""


def test_vf_that_is_away_is_not_made_anew_when_its_port_is_down(lab):
    netns = lab.namespace()
    lab.kernel.apply(give(lab, netns))
    lab.rtnl.change(lab.rtnl.link("enp3s0f0r1").index, "maintenance", up=False)
    assert lab.kernel.observe().pfs[0].vfs[1].netdev is None
    assert lab.seen("rdma0", netns) is not None


def test_vf_has_the_mac_that_its_pf_lets_through_whatever_its_netdev_says(lab):
    before = lab.kernel.observe()
    lab.rtnl.change(lab.rtnl.link("enp3s0f0v1").index, "alter", with_mac("02:00:00:00:00:77"))
    assert lab.kernel.observe() == before


def test_vf_comes_home_from_the_pod_to_which_another_program_moved_it(lab):
    before, netns = lab.kernel.observe(), lab.namespace()
    step = give(lab, netns)
    subprocess.run(["ip", "link", "set", "enp3s0f0v1", "netns", netns.path], check=True)
    lab.kernel.apply(step.inverse)
    assert lab.kernel.observe() == before


def test_giving_renames_when_the_vf_is_there_under_another_name(lab):
    netns = lab.namespace()
    step = give(lab, netns)
    lab.kernel.apply(step)
    lab.alter("rdma0", netns, name="mine", mac=step.home.mac, mtu=1500)
    lab.kernel.apply(step)
    assert lab.seen("rdma0", netns).mac == step.home.mac


def test_giving_works_when_an_earlier_one_was_cut_short_before_the_move(lab):
    first, second = lab.namespace(), lab.namespace()
    lab.rtnl.change(lab.rtnl.link("enp3s0f0r1").index, "half of it", with_alias(str(first.inode)))
    lab.kernel.apply(give(lab, second))
    assert lab.seen("rdma0", second) is not None


def test_vf_at_home_is_bare_and_as_it_was_when_brought_home(lab):
    before, netns = lab.seen("enp3s0f0v1"), lab.namespace()
    step = give(lab, netns)
    vf = lab.rtnl.link("enp3s0f0v1")
    lab.rtnl.change(vf.index, "alter", with_mac("02:00:00:00:00:77"))
    subprocess.run(["ip", "address", "add", "10.9.9.9/24", "dev", vf.name], check=True)
    subprocess.run(["ip", "link", "set", vf.name, "up"], check=True)
    lab.kernel.apply(step.inverse)
    assert lab.seen("enp3s0f0v1") == before


def test_namespaces_held_by_descriptor_serve_although_their_path_is_broken(lab):
    before, netns = lab.kernel.observe(), lab.namespace()
    with lab.namespaces.existing(netns) as pod:
        held = lab.namespaces.hold(pod, "/nowhere/pod")
    step = give(lab, held)
    lab.kernel.apply(step)
    lab.kernel.apply(ConfigureInterface(netns=held, ifname="rdma0", addresses=("10.0.0.1/24",)))
    assert lab.seen("rdma0", netns).addresses == ("10.0.0.1/24",)
    lab.kernel.apply(BringHome(vf=VF, home=step.home, netns=held, ifname="rdma0"))
    lab.namespaces.release(held)
    assert lab.kernel.observe() == before


def test_no_descriptor_stays_open_when_everything_is_done_and_the_kernel_closed(tmp_path):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    before = descriptors()
    lab = VirtualLab(tmp_path, 3)
    netns = lab.namespace()
    step = give(lab, netns)
    lab.kernel.watch(lambda: None)
    for each in (step, step, ConfigureInterface(netns=netns, ifname="rdma0"), step.inverse, step.inverse):
        lab.kernel.apply(each)
    with pytest.raises(KernelError):
        lab.kernel.apply(ConfigureInterface(netns=netns, ifname="absent"))
    lab.close()
    assert descriptors() == before


def tc(*arguments):
    return subprocess.run(["tc", *arguments], capture_output=True, text=True, check=True).stdout
