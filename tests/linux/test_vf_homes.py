"""VFs at home as they were before: attributes of a real netdev, whose driver is bound in name only.

The contract of all kernels (tests/contract/test_inherited_state.py) has pods that change these attributes.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import bpf_programs
from contract.linux_lab import needs_namespaces
from k8s_rdma.core.step import BringHome, CleanVf, NetnsRef, VfHome, VfRef
from k8s_rdma.core.types import PciAddress
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import named, of_kind
from k8s_rdma.linux.vf.attributes import NetdevAttributes
from k8s_rdma.linux.vf.homes import RDMA_DEVICE, VfHomes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl

pytestmark = needs_namespaces

VF = VfRef(PciAddress("0000:03:00.0"), 4)


class Function:
    """Where the VF is, the names of its RDMA devices, and its driver, which makes another netdev."""

    pci = PciAddress("0000:03:02.0")

    def __init__(self, rtnl: Rtnl) -> None:
        self.rtnl = rtnl
        self.rdma: set[str] = set()
        self.bound_anew: list[tuple[str, str | None]] = []
        self.makes_netdev = True

    def at_home(self, vf: VfRef) -> Link | None:
        assert vf == VF
        return self.rtnl.link("vf4")

    def function(self, vf: VfRef) -> Function:
        assert vf == VF
        return self

    def names(self, pci: PciAddress) -> set[str]:
        assert pci == self.pci
        return self.rdma

    def restore_name(self, pci: PciAddress, name: str, operation: str) -> None:
        assert (pci, operation) == (self.pci, f"VF 4 of PF {VF.pf}: RDMA device as at home")
        self.rdma = {name} if name else self.rdma

    def renew(self, vf: VfRef, home: VfHome, why: str, *, mac: str | None) -> None:
        assert (vf, home.name) == (VF, "vf4")
        self.bound_anew.append((why, mac))
        if self.makes_netdev:
            self.rtnl.delete(self.rtnl.link("vf4").index, "delete")
            self.rtnl.create("create", named("vf4"), of_kind("veth"))


@pytest.fixture
def function(rtnl: Rtnl, netdev: Link) -> Function:
    return Function(rtnl)


@pytest.fixture
def homes(rtnl: Rtnl, function: Function) -> Iterator[VfHomes]:
    with NetdevAttributes(rtnl) as attributes:
        yield VfHomes(attributes=attributes, places=function, rdma=function, binding=function)


def home_of(homes: VfHomes) -> VfHome:
    return VfHome(name="vf4", mac="02:00:00:00:00:04", mtu=1500, attributes=homes.attributes(VF))


def back(home: VfHome) -> BringHome:
    return BringHome(
        vf=VF, home=home, netns=NetnsRef("/run/netns/pod", 7), ifname="rdma0", mac="02:00:00:00:00:99"
    )


def change(*settings: str) -> None:
    subprocess.run(["ip", "link", "set", "vf4", *settings], check=True)


def test_attributes_have_the_name_of_the_rdma_device_if_there_is_one(homes, function):
    assert RDMA_DEVICE not in dict(homes.attributes(VF))
    function.rdma = {"mlx5_4"}
    assert dict(homes.attributes(VF))[RDMA_DEVICE] == "mlx5_4"


def test_attributes_of_home_are_returned_if_the_vf_returned_with_them(homes, function):
    home = home_of(homes)
    assert homes.restore(back(home), ()) == home.attributes
    assert function.bound_anew == []


def test_vf_that_returned_with_other_attributes_has_those_of_home_and_its_rdma_device_that_name(
    homes, function
):
    function.rdma = {"mlx5_4"}
    home = home_of(homes)
    change("txqueuelen", "77")
    function.rdma = {"mine"}
    assert homes.restore(back(home), ()) is None
    assert homes.attributes(VF) == home.attributes
    assert function.bound_anew == []


def test_vf_is_bound_anew_with_the_mac_of_its_pod_if_an_attribute_stays(homes, function):
    home = home_of(homes)
    change("mode", "dormant")
    assert homes.restore(back(home), ()) is None
    assert function.bound_anew == [("its link mode is 1, at home 0", "02:00:00:00:00:99")]
    assert homes.attributes(VF) == home.attributes


@pytest.mark.parametrize(
    ("is_noted", "links_above", "why"),
    [
        (False, (), "its attributes at home were not noted"),
        (True, ("above\udcff", "other"), r"the pod has above\udcff on it"),
        (False, ("above",), "the pod has above on it"),
    ],
)
def test_vf_is_bound_anew_once_if_its_attributes_say_too_little(homes, function, is_noted, links_above, why):
    home = home_of(homes)
    step = back(home if is_noted else replace(home, attributes=None))
    homes.restore(step, links_above)
    homes.restore(step, links_above)
    assert function.bound_anew == [(why, "02:00:00:00:00:99")]
    homes.clean(CleanVf(vf=VF, home=home))  # as before the next pod has it
    homes.restore(step, links_above)
    assert function.bound_anew == [(why, "02:00:00:00:00:99")] * 2


def test_vf_is_cleaned_of_attributes_unlike_those_of_home_and_of_programs_alone_if_these_are_unknown(
    homes, function
):
    home = home_of(homes)
    homes.clean(CleanVf(vf=VF, home=home))
    change("txqueuelen", "77")
    homes.clean(CleanVf(vf=VF, home=replace(home, attributes=None)))
    assert function.bound_anew == []
    homes.clean(CleanVf(vf=VF, home=home))
    assert function.bound_anew == [("its txqueuelen is 77, at home 1000", None)]
    assert homes.attributes(VF) == home.attributes


def test_program_that_stays_on_a_vf_that_was_bound_anew_is_an_error(homes, function):
    home = replace(home_of(homes), attributes=None)
    program = bpf_programs.load(bpf_programs.returning(bpf_programs.XDP_PASS))
    bpf_programs.attach_xdp("vf4", program)
    os.close(program)
    function.makes_netdev = False
    with pytest.raises(KernelError, match=f"VF 4 of PF {VF.pf}: bound anew, and it has XDP program"):
        homes.clean(CleanVf(vf=VF, home=home))
    function.makes_netdev = True
    homes.clean(CleanVf(vf=VF, home=home))
    assert [why.partition(" program")[0] for why, _ in function.bound_anew] == ["it has XDP"] * 2


def test_vf_elsewhere_is_clean_and_cannot_be_restored(homes, function, rtnl, netdev):
    home = home_of(homes)
    rtnl.delete(netdev.index, "delete")
    homes.clean(CleanVf(vf=VF, home=home))
    assert function.bound_anew == []
    with pytest.raises(KernelError, match=f"VF 4 of PF {VF.pf}: its netdev is not in the host's namespace"):
        homes.restore(back(home), ())
