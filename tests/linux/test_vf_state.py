"""One VF as an observation has it: its netdev, its settings, and why it is unusable."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from k8s_rdma.core.kernel import Vf
from k8s_rdma.linux.netlink.queries import DevlinkRate
from linux.small_machine import INFINIBAND, PF, PF1, SmallMachine, link, observed, only_pf, vf_pci


def test_vf_is_observed_with_all_that_is_known_of_it(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)
    machine.add_rdma(vf_pci(1), "mlx5_3", 12)
    machine.change_vf(
        1, vlan=7, qos=2, vlan_proto="802.1Q", trust=True, link_state="disable", min_tx_rate_mbps=5
    )
    assert observed(machine).vfs[1] == Vf(
        index=1,
        pci=vf_pci(1),
        netdev="eth12",
        mac="0a:00:00:00:00:0c",
        mtu=1500,
        min_tx_rate_mbps=5,
        vlan=7,
        qos=2,
        vlan_proto="802.1Q",
        spoof_check="N/A",
        trust="ON",
        link_state="Down",
        rdma_device="mlx5_3",
        admin_mac="0b:00:00:00:00:01",
        driver="mlx5_core",
    )


def test_vf_in_another_namespace_has_no_netdev_and_its_pfs_mac(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)
    machine.remove_netdev(vf_pci(0), "eth11")
    vf = observed(machine).vfs[0]
    assert (vf.netdev, vf.mac, vf.unusable) == (None, "0b:00:00:00:00:00", "")


@pytest.mark.parametrize(
    ("guid", "shown"),
    [("02:00:00:00:00:00:01:00", "02:00:00:00:00:00:01:00"), ("00:00:00:00:00:00:00:00", ""), ("", "")],
)
def test_infiniband_vf_in_another_namespace_has_its_port_guid_and_never_its_pfs_address(
    machine: SmallMachine, guid: str, shown: str
) -> None:
    pfs_own = "00:00:10:87:fe:80:00:00:00:00:00:00:b8:59:9f:03:00:00:00:10"
    machine.add_pf(vfs=1, type=INFINIBAND, mac=pfs_own)
    machine.change_vf(0, mac=pfs_own, port_guid=guid)
    machine.remove_netdev(vf_pci(0), "eth11")
    vf = observed(machine).vfs[0]
    assert (vf.netdev, vf.mac, vf.unusable) == (None, shown, "")


@pytest.mark.parametrize(("driver", "why"), [(None, "no driver"), ("vfio-pci", "vfio-pci")])
def test_vf_without_a_driver_that_makes_netdevs_is_unusable(
    machine: SmallMachine, driver: str | None, why: str
) -> None:
    machine.add_pf(vfs=2)
    machine.take_netdev(vf_pci(0), "eth11")
    machine.bind(vf_pci(0), driver)
    vf = observed(machine).vfs[0]
    assert vf.netdev is None
    assert why in vf.unusable


def test_vf_that_the_host_uses_is_unusable(machine: SmallMachine) -> None:
    machine.add_pf(vfs=3)
    machine.answers.routes = frozenset({11})
    machine.answers.by_name["eth12"] = replace(machine.answers.by_name["eth12"], master=99)
    first, second, third = (vf.unusable for vf in observed(machine).vfs)
    assert "default route" in first
    assert "#99" in second
    assert third == ""


def test_vf_with_an_address_of_the_host_is_unusable_with_advice(machine: SmallMachine) -> None:
    machine.add_pf(vfs=3)
    machine.answers.by_name["vlan7"] = link(50, "vlan7", peer=12, kind="vlan")
    machine.answers.addressed = frozenset({11, 50})
    observer = machine.observer()
    first, second, third = (vf.unusable for vf in only_pf(observer.observe()).vfs)
    assert "eth11" in first
    assert "take the address off" in first
    assert "or on a link above" in second
    assert third == ""
    machine.answers.addressed = frozenset()
    del machine.answers.by_name["vlan7"]
    assert [vf.unusable for vf in only_pf(observer.observe(frozenset())).vfs] == ["", "", ""]


def test_vf_with_a_link_of_the_host_on_it_is_unusable_as_that_would_end_with_its_move(machine) -> None:
    """Such as a guest's macvtap; the other end of a pair elsewhere may have the index of any link here."""
    machine.add_pf(vfs=2)
    machine.answers.by_name["guest0"] = link(50, "guest0", peer=11, kind="macvtap")
    machine.answers.by_name["veth0"] = link(51, "veth0", peer=12, kind="veth", peer_elsewhere=0)
    machine.answers.by_name["mac0"] = link(52, "mac0", peer=12, kind="macvlan", peer_elsewhere=0)
    first, second = (vf.unusable for vf in observed(machine).vfs)
    assert "macvtap on its netdev eth11" in first
    assert second == ""


def test_vf_whose_netdev_netlink_does_not_know_is_unusable(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)
    del machine.answers.by_name["eth11"]
    vf = observed(machine).vfs[0]
    assert vf.netdev == "eth11"
    assert "netlink has none" in vf.unusable


def test_vf_whose_netdev_netlink_has_for_another_function_is_unusable(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)
    machine.answers.by_name["eth11"] = replace(machine.answers.by_name["eth11"], device=PF1)
    assert "eth11" in observed(machine).vfs[0].unusable


def test_vf_whose_netdev_sysfs_does_not_know_is_unusable(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)
    link = machine.answers.by_name["eth11"]
    machine.remove_netdev(vf_pci(0), "eth11")
    machine.answers.by_name["eth11"] = link
    vf = observed(machine).vfs[0]
    assert vf.netdev == "eth11"
    assert "sysfs has none" in vf.unusable


def test_vf_in_another_namespace_is_not_lost_to_it_for_its_rates_by_devlink(machine: SmallMachine) -> None:
    machine.add_pf(vfs=1)
    machine.remove_netdev(vf_pci(0), "eth11")
    machine.answers.modes = {PF: "switchdev"}
    machine.answers.rates_by_devlink = {PF: {0: DevlinkRate(max_tx_rate_mbps=9)}}
    found = machine.observer().observe().pfs[0].vfs[0]
    assert (found.netdev, found.unusable, found.max_tx_rate_mbps) == (None, "", 9)


def test_vf_whose_netdev_has_a_name_that_is_no_text_is_shown_and_not_usable(machine):
    """As a pod may leave it, and it must not keep the rest from being reported."""
    machine.add_pf(vfs=2)
    machine.remove_netdev(vf_pci(0), "eth11")
    machine.add_netdev(vf_pci(0), os.fsdecode(b"x\xff"), 11)
    vf, other = machine.observer().observe().pfs[0].vfs
    assert vf.netdev.encode() == rb"x\udcff"
    assert vf.unusable == r"the name of its netdev x\udcff is not valid text"
    assert (other.netdev, other.unusable) == ("eth12", "")
