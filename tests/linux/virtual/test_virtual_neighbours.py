"""Virtual PFs beside links and changes of other programs in the same namespace."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from contract.lab import LINK_MBPS, PF0, PF1
from contract.linux_lab import needs_namespaces
from contract.virtual_lab import VirtualLab
from k8s_rdma.core.step import BringHome, NetnsRef, VfHome, VfRef
from k8s_rdma.core.types import PciAddress
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import enslaved_to, named, of_kind
from k8s_rdma.linux.virtual.pf import create_pf, destroy_pf
from k8s_rdma.linux.virtual.topology import VirtualPf, random_base_mac

pytestmark = needs_namespaces
PF = VirtualPf(
    name="enp9s0", pci=PciAddress("0000:09:00.0"), uplink="free", vfs=2, base_mac=random_base_mac()
)


@pytest.fixture
def lab(tmp_path):
    made = VirtualLab(tmp_path, 2)
    made.rtnl.create("create", named("free"), of_kind("veth"))
    try:
        yield made
    finally:
        made.close()


def create(lab, name, kind):
    lab.rtnl.create(f"create {name}", named(name), of_kind(kind))
    return lab.rtnl.link(name)


def names(lab):
    return {link.name for link in lab.rtnl.links()}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("enp9s0r1", "veth"), ("enp9s0-tx", "ifb"), ("enp9s0-no", "bridge"), ("enp9s0", "bridge")],
)
def test_creating_fails_and_leaves_a_link_alone_when_it_bears_a_name_of_the_pf(lab, name, kind):
    theirs = create(lab, name, kind)
    before = names(lab)
    with pytest.raises(KernelError, match=name):
        create_pf(PF, lab.rtnl)
    assert names(lab) == before
    assert lab.rtnl.link_at(theirs.index) == theirs


@pytest.mark.parametrize(("name", "kind"), [("enp9s0r77", "veth"), ("enp9s0-tx", "bridge")])
def test_destroying_leaves_a_link_alone_when_it_only_bears_such_a_name(lab, name, kind):
    theirs = create(lab, name, kind)
    before = names(lab)
    destroy_pf(PF, lab.rtnl)
    assert names(lab) == before
    if kind == "veth":
        create_pf(PF, lab.rtnl)
        destroy_pf(PF, lab.rtnl)
    assert lab.rtnl.link_at(theirs.index) == theirs


def test_creating_fails_and_the_uplink_stays_when_it_is_another_pfs(lab):
    master = lab.rtnl.link("up0").master
    with pytest.raises(KernelError, match="uplink up0 is a port of something else"):
        create_pf(replace(PF, uplink="up0"), lab.rtnl)
    assert lab.rtnl.link("up0").master == master
    assert "enp9s0" not in names(lab)


def test_link_speed_is_unknown_if_the_uplink_was_removed(lab):
    lab.rtnl.change(lab.rtnl.link("up0").index, "take away", enslaved_to(0))
    assert [pf.link_mbps for pf in lab.kernel.observe().pfs] == [None, LINK_MBPS]


def test_link_speed_is_unknown_if_the_pf_was_set_down(lab):
    lab.rtnl.change(lab.rtnl.link("enp3s0f0").index, "down", up=False)
    assert [pf.link_mbps for pf in lab.kernel.observe().pfs] == [None, LINK_MBPS]


def test_pf_without_its_qdisc_is_unreadable_and_the_other_one_is_read(lab):
    subprocess.run(["tc", "qdisc", "del", "dev", "enp3s0f0-tx", "root"], check=True)
    hardware = lab.kernel.observe()
    assert [pf.pci for pf in hardware.pfs] == [PF1]
    (unreadable,) = hardware.unreadable
    assert unreadable.subject == f"PF {PF0}"


def test_vf_is_made_anew_for_the_pf_that_there_is_when_it_was_replaced_since_the_last_look(lab):
    lab.kernel.observe()
    old = lab.pfs[0]
    new = replace(old, base_mac=random_base_mac())
    destroy_pf(old, lab.rtnl)
    create_pf(new, lab.rtnl)
    lab.rtnl.delete(lab.rtnl.link(new.port_name(0)).index, "delete port")
    home = VfHome(name=new.vf_name(0), mac=new.vf_mac(0), mtu=1500)
    gone = NetnsRef("/proc/4194305/ns/net", 1)
    lab.kernel.apply(BringHome(vf=VfRef(PF0, 0), home=home, netns=gone, ifname="rdma0"))
    policed = subprocess.run(
        ["tc", "filter", "show", "dev", new.port_name(0), "ingress"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert new.vf_mac(0).replace(":", "")[:8] in policed.stdout
