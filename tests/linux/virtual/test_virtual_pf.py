"""Making and destroying virtual PFs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from contract.lab import PF1
from contract.linux_lab import needs_namespaces
from contract.virtual_lab import VirtualLab
from k8s_rdma.core.types import PciAddress
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import Link, Rtnl, named, of_kind, with_alias
from k8s_rdma.linux.netns import entered
from k8s_rdma.linux.virtual.pf import create_pf, destroy_pf
from k8s_rdma.linux.virtual.topology import VirtualPf, alias_of, pf_of, random_base_mac
from network_namespaces import create_namespace

PF = VirtualPf(
    name="enp9s0",
    pci=PciAddress("0000:09:00.0"),
    uplink="wire",
    vfs=2,
    link_mbps=500,
    base_mac="02:00:00:00:00:00",
)


@pytest.fixture
def rtnl():
    """Of a namespace with an uplink, whose other end is `wire-far`."""
    namespace = create_namespace()
    with entered(namespace), Rtnl() as opened:
        opened.create("create wire", named("wire"), of_kind("veth"))
        far = opened.link_at(opened.link("wire").peer)
        opened.change(far.index, "name it", named("wire-far"))
        yield opened
    os.close(namespace)


def names(rtnl):
    return {link.name for link in rtnl.links()}


@needs_namespaces
def test_pf_is_a_bridge_with_uplink_ports_and_vfs(rtnl):
    create_pf(PF, rtnl)
    bridge = rtnl.link("enp9s0")
    assert pf_of(bridge) == PF
    assert {link.name for link in rtnl.links() if link.master == bridge.index} == {
        "wire",
        "enp9s0r0",
        "enp9s0r1",
    }
    vf, port = rtnl.link("enp9s0v1"), rtnl.link("enp9s0r1")
    assert (vf.mac, vf.is_up, port.peer) == ("02:00:00:00:00:01", False, vf.index)


@needs_namespaces
def test_creating_an_existing_pf_has_no_effect(rtnl):
    create_pf(PF, rtnl)
    before = rtnl.links()
    create_pf(PF, rtnl)
    assert rtnl.links() == before


@needs_namespaces
@pytest.mark.parametrize(
    "change",
    [
        {"vfs": 3},
        {"link_mbps": 501},
        {"base_mac": "02:00:00:00:01:00"},
        {"name": "other"},
        {"pci": PciAddress("0000:09:00.1")},
    ],
    ids=str,
)
def test_creating_fails_when_name_or_address_is_another_pfs(rtnl, change):
    create_pf(PF, rtnl)
    before = rtnl.links()
    with pytest.raises(KernelError, match=r"expected .* found"):
        create_pf(replace(PF, **change), rtnl)
    assert rtnl.links() == before


@needs_namespaces
def test_creating_fails_if_a_foreign_link_has_the_name(rtnl):
    rtnl.create("create", named("enp9s0"), of_kind("bridge"))
    rtnl.change(rtnl.link("enp9s0").index, "in use", up=True)
    before = names(rtnl)
    with pytest.raises(KernelError, match="enp9s0"):
        create_pf(PF, rtnl)
    assert names(rtnl) == before


@needs_namespaces
def test_failed_creation_leaves_no_link(rtnl):
    before = names(rtnl)
    with pytest.raises(KernelError, match="no uplink absent"):
        create_pf(replace(PF, uplink="absent"), rtnl)
    rtnl.create("in the way", named("enp9s0v1"), of_kind("bridge"))
    with pytest.raises(KernelError, match="VF 1 of enp9s0: EEXIST"):
        create_pf(PF, rtnl)
    assert names(rtnl) == {*before, "enp9s0v1"}


@needs_namespaces
def test_pf_is_made_anew_when_its_making_was_cut_short(rtnl):
    create_pf(replace(PF, vfs=5), rtnl)
    rtnl.change(rtnl.link("enp9s0").index, "as before its last step", with_alias(""), up=False)
    create_pf(PF, rtnl)
    assert pf_of(rtnl.link("enp9s0")) == PF
    assert "enp9s0r2" not in names(rtnl)


@needs_namespaces
def test_destroying_takes_everything_but_the_uplink_and_holds_when_it_is_gone(rtnl):
    before = names(rtnl)
    create_pf(PF, rtnl)
    for _ in range(2):
        destroy_pf(PF, rtnl)
        assert names(rtnl) == before


@needs_namespaces
def test_destroying_takes_vfs_that_are_away_and_leaves_other_pfs(tmp_path):
    lab = VirtualLab(tmp_path, 2)
    try:
        pf, other = lab.pfs
        with lab.namespaces.existing(lab.namespace()) as pod:
            vf = lab.rtnl.link(pf.vf_name(0))
            subprocess.run(
                ["ip", "link", "set", vf.name, "netns", f"/proc/{os.getpid()}/fd/{pod}"], check=True
            )
            destroy_pf(pf, lab.rtnl)
            with Rtnl(pod) as there:
                assert names(there) == {"lo"}
        assert [state.pci for state in lab.kernel.observe().pfs] == [PF1]
        assert {other.vf_name(0), other.vf_name(1)} <= names(lab.rtnl)
    finally:
        lab.close()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"name": "enp195s0f0n"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"vfs": 0}, "vfs"),
        ({"vfs": 257}, "vfs"),
        ({"link_mbps": 0}, "link_mbps"),
        ({"link_mbps": 1_000_001}, "link_mbps"),
        ({"base_mac": "02:00:00:00:00:01"}, "base_mac"),
        ({"base_mac": "03:00:00:00:00:00"}, "base_mac"),
    ],
    ids=str,
)
def test_impossible_pf_is_refused_before_the_kernel_is_called(change, fault):
    with pytest.raises(KernelError, match=f"virtual PF: {fault} "):
        create_pf(replace(PF, **change), None)


def test_names_and_alias_fit_whatever_the_pf():
    longest = VirtualPf(
        name="n" * 10,
        pci=PciAddress("10000000:ff:1f.7"),
        uplink="u" * 15,
        vfs=256,
        link_mbps=1_000_000,
        base_mac=random_base_mac(),
    )
    assert len(alias_of(longest)) <= 255
    assert max(map(len, (longest.vf_name(255), longest.port_name(255), longest.scheduler_name))) <= 15


def test_addresses_of_vfs_differ_between_pfs():
    pfs = [
        replace(PF, pci=PciAddress(f"0000:{bus}:{device}.{n}"))
        for bus in ("03", "04")
        for device in ("00", "01")
        for n in (0, 1)
    ]
    addresses = {pf.vf_pci(index) for pf in pfs for index in range(256)}
    assert len(addresses) == len(pfs) * 256
    assert not addresses & {pf.pci for pf in pfs}


@pytest.mark.parametrize(
    "change",
    [
        {"alias": ""},
        {"alias": "core"},
        {"alias": "{}"},
        {"alias": alias_of(replace(PF, pci=PciAddress("nowhere")))},
        {"kind": "veth"},
    ],
    ids=str,
)
def test_link_is_no_pf_without_the_alias_of_one(change):
    link = Link(
        index=1,
        name=PF.name,
        mac=PF.mac,
        mtu=1500,
        is_up=True,
        carrier=True,
        kind="bridge",
        master=0,
        alias=alias_of(PF),
        peer=0,
        peer_elsewhere=None,
    )
    assert pf_of(link) == PF
    assert pf_of(replace(link, **change)) is None


@needs_namespaces
def test_command_creates_and_destroys_in_the_callers_namespace_and_both_hold_when_repeated(rtnl):
    before = names(rtnl)
    create = ("create", "--name", "enp9s0", "--pci", "09:00.0", "--uplink", "wire", "--vfs", "2")
    for _ in range(2):
        assert run(*create).returncode == 0
    assert pf_of(rtnl.link("enp9s0")).vfs == 2
    failed = run(*create[:-1], "3")
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1)
    for _ in range(2):
        assert run("destroy", "--name", "enp9s0").returncode == 0
    assert names(rtnl) == before


def run(*arguments):
    command = [sys.executable, "-m", "k8s_rdma.linux.virtual", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
