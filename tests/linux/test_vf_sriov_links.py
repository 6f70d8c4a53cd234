"""Settings of netdevs during node setup, by the running kernel, and netdevs of VFs by their functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from contract.linux_lab import needs_namespaces
from fakes.sriov_links import MachineLinks
from fakes.sriov_machine import Card, MachineSysfs, SriovMachine
from k8s_rdma.core.types import PciAddress
from k8s_rdma.linux.netlink.rtnl import named, of_kind, with_mac
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.vf.creation import SriovPf
from k8s_rdma.linux.vf.sriov_links import (
    GuidOf,
    KernelSriovLinks,
    NetdevsOf,
    VfGuid,
    VfLinkState,
    VfMac,
    VfTrust,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CARD = Card(name="enp1s0f0", pci=PciAddress("0000:01:00.0"), mac="52:54:00:aa:00:01", total_vfs=2)


@pytest.fixture
def links(namespace: int) -> Iterator[KernelSriovLinks]:
    """The netdev `pf` in a namespace of the test's own."""
    with KernelSriovLinks() as opened:
        opened.create("create", named("pf"), of_kind("veth"), with_mac("02:00:00:00:00:04"))
        yield opened


@needs_namespaces
@pytest.mark.parametrize(("mtu", "is_taken"), [(1400, True), (9000, True), (67, False), (65536, False)])
def test_mtu_is_set_if_the_driver_takes_it(links: KernelSriovLinks, mtu: int, is_taken: bool) -> None:
    assert links.set_mtu(links.link("pf"), mtu) == is_taken
    assert links.link("pf").mtu == (mtu if is_taken else 1500)


@needs_namespaces
def test_netdev_that_is_gone_is_an_error_and_no_mtu_out_of_range(links: KernelSriovLinks) -> None:
    gone = links.link("pf")
    links.delete(gone.index, "delete")
    with pytest.raises(NetlinkError, match="pf: MTU 1400: ENODEV"):
        links.set_mtu(gone, 1400)


@needs_namespaces
def test_netdev_is_renamed_and_set_up(links: KernelSriovLinks) -> None:
    before = links.link("pf")
    links.rename(before, "pf0")
    links.bring_up(links.link("pf0"))
    assert links.link("pf") is None
    assert (links.link("pf0").index, links.link("pf0").is_up) == (before.index, True)


@needs_namespaces
def test_permanent_address_is_the_present_one_if_the_driver_reports_no_other(links: KernelSriovLinks) -> None:
    assert links.permanent_address(links.link("pf")) == "02:00:00:00:00:04"


@needs_namespaces
@pytest.mark.parametrize(
    "setting",
    [
        VfMac("02:00:00:00:00:05"),
        VfGuid(GuidOf.NODE, "00:11:22:33:44:55:66:77"),
        VfGuid(GuidOf.PORT, "00:11:22:33:44:55:66:77"),
        VfTrust(True),
        VfLinkState("enable"),
    ],
)
def test_setting_of_a_vf_is_not_supported_if_the_driver_has_no_function_for_it(
    links: KernelSriovLinks, setting: VfMac | VfGuid | VfTrust | VfLinkState
) -> None:
    assert not links.set_vf(links.link("pf"), 0, setting)


def test_netdev_whose_name_the_vf_had_is_not_taken_for_its_own(tmp_path: Path) -> None:
    card = SriovMachine(tmp_path / "sys", [CARD])
    sriov = SriovPf(MachineSysfs(card), CARD.pci)
    sriov.create_vfs(2)
    before = sriov.vfs()[0]
    vfs = card.cards[CARD.pci].vfs
    card.rename(vfs[0], "other")
    card.rename(vfs[1], *before.netdevs)
    assert [link.name for link in NetdevsOf(MachineLinks(card).links()).netdevs_of(before)] == ["other"]
