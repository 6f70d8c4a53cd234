"""Machines on which other projects' tools, and people, made VFs otherwise than expected."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fakes.sriov_machine import Card
from init.conftest import IGB, IGB2
from k8s_rdma.core.types import LinkType, PciAddress
from k8s_rdma.init.pf_setup import PfResult, all_well

if TYPE_CHECKING:
    from collections.abc import Callable

    from init.conftest import World

    Make = Callable[..., World]

NO_MAC = "00:00:00:00:00:00"
IB = Card(
    name="ibp59s0",
    pci=PciAddress("0000:3b:00.0"),
    mac="00:00:10:29:fe:80:00:00:00:00:00:00:b8:59:9f:03:00:00:00:40",
    driver="mlx5_core",
    vf_driver="mlx5_core",
    link_type=LinkType.INFINIBAND,
)
NO_GUID = "00:00:10:29:fe:80:00:00:00:00:00:00:00:00:00:00:00:00:00:00"
IB2 = replace(IB, name="ibp60s0", pci=PciAddress("0000:3c:00.0"))


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        pytest.param(IGB, replace(IGB2, mac=IGB.mac), IGB.mac, id="cloned virtual machine"),
        pytest.param(replace(IGB, mac=NO_MAC), replace(IGB2, mac=NO_MAC), NO_MAC, id="no MAC"),
        pytest.param(replace(IB, mac=NO_GUID), replace(IB2, mac=NO_GUID), NO_GUID[-23:], id="no GUID"),
        pytest.param(IB, replace(IB2, mac="00:00:11:29" + IB.mac[11:]), IB.mac[-23:], id="one GUID"),
    ],
)
def test_init_refuses_pfs_whose_vfs_would_have_equal_addresses(
    world: Make, one: Card, other: Card, why: str
) -> None:
    """VFs without valid GUIDs, and virtual machines of one image whose VFs have one MAC:
    https://github.com/Mellanox/network-operator/issues/1825, https://github.com/systemd/systemd/issues/14744."""
    w = world(one, other)
    planned, outcomes = w.init(dry_run=True), w.init()
    for card in (one, other):
        assert planned[card.name].result is outcomes[card.name].result is PfResult.FAILED
        assert why in outcomes[card.name].message
        assert not w.card(card).vfs


def test_init_refuses_a_pf_without_permanent_address_even_if_it_is_alone(world: Make) -> None:
    """The VFs would have the addresses of another node's."""
    w = world(replace(IGB, mac=NO_MAC), IGB2)
    outcomes = w.init()
    assert outcomes[IGB.name].result is PfResult.FAILED
    assert outcomes[IGB2.name].result is PfResult.CHANGED


def test_init_makes_no_objection_to_addresses_if_no_vfs_are_wanted(world: Make) -> None:
    w = world(replace(IGB, mac=NO_MAC))
    outcome = w.init(hardware={"pfs": [{"names": [IGB.name], "numVfs": 0}]})[IGB.name]
    assert (outcome.result, outcome.message) == (PfResult.CHANGED, "PF up")


def test_init_finds_a_pf_by_its_altname(world: Make) -> None:
    """OpenShift 4.13 renamed ens7f0 to ens7f0np0 and kept the old name as an altname:
    https://github.com/openshift/openshift-docs/pull/60041,
    https://github.com/k8snetworkplumbingwg/sriov-network-operator/pull/967."""
    card = replace(IGB, name="ens7f0np0", altnames=("enp1s0f0np0", "ens7f0"))
    w = world(card)
    outcomes = w.init(hardware={"pfs": [{"names": ["ens7f0"], "numVfs": 2}]})
    assert {pf: outcome.result for pf, outcome in outcomes.items()} == {"ens7f0np0": PfResult.CHANGED}
    assert len(w.card(card).vfs) == 2


def test_init_fails_if_a_named_pf_differs_by_the_naming_scheme_alone(world: Make) -> None:
    """The same, on a system that keeps no altname."""
    w = world(replace(IGB, name="ens7f0np0"))
    outcomes = w.init(hardware={"pfs": [{"names": ["ens7f0", "eno1"]}]})
    assert not all_well(outcomes.values(), keep_used_vfs=True)
    assert outcomes["ens7f0np0"].result is PfResult.SKIPPED


@pytest.mark.parametrize("name", ["ens7", "ens70", "ens7f1", "eth0"])
def test_init_does_not_fail_if_a_named_pf_is_that_of_another_kind_of_node(world: Make, name: str) -> None:
    outcomes = world(replace(IGB, name="ens7f0np0")).init(hardware={"pfs": [{"names": [name]}]})
    assert all_well(outcomes.values(), keep_used_vfs=False) is (name != "ens7")


@pytest.mark.parametrize("loaded", [True, False])
def test_init_leaves_a_vf_with_the_override_of_another_tool_and_names_it(world: Make, loaded: bool) -> None:
    """A VF that another tool unbound, and that does not get its default driver back:
    https://github.com/k8snetworkplumbingwg/sriov-network-operator/issues/802."""
    w = world()
    w.init()
    vf = w.card().vfs[2]
    if loaded:
        w.machine.loaded.add("vfio-pci")
    w.machine.write(f"bus/pci/devices/{vf.pci}/driver/unbind", vf.pci)
    w.machine.write(f"bus/pci/devices/{vf.pci}/driver_override", "vfio-pci\n")
    first, second = w.init()[IGB.name], w.init()[IGB.name]
    assert first == second
    assert first.result is PfResult.READY
    assert "driver_override vfio-pci (VF 2)" in first.message
    assert (vf.driver, vf.override) == (None, "vfio-pci")


def test_init_names_the_override_that_keeps_a_vf_without_driver(world: Make) -> None:
    w = world()
    w.init()
    vf = w.card().vfs[2]
    w.machine.write(f"bus/pci/devices/{vf.pci}/driver/unbind", vf.pci)
    w.machine.write(f"bus/pci/devices/{vf.pci}/driver_override", "ixgbevf\n")
    outcome = w.init()[IGB.name]
    assert outcome.result is PfResult.FAILED
    assert "its driver_override lets only ixgbevf be bound to it" in outcome.message
    assert "unset-override" in outcome.advice


def test_init_sets_the_mtu_of_a_pf_and_of_its_unused_vfs(world: Make) -> None:
    """`mtu` of a SriovNetworkNodePolicy, as in
    https://github.com/k8snetworkplumbingwg/sriov-network-operator/issues/307."""
    w = world(replace(IGB, total_vfs=3))
    w.init()
    w.machine.move_away(IGB.pci, 1)
    hardware = {"pfs": [{"names": [IGB.name], "mtu": 9000}]}
    assert w.init(hardware=hardware)[IGB.name].result is PfResult.CHANGED
    assert w.card().mtu == 9000
    assert {index: vf.mtu for index, vf in w.card().vfs.items()} == {0: 9000, 1: 1500, 2: 9000}
    assert w.init(hardware=hardware)[IGB.name].result is PfResult.READY


def test_init_names_the_key_if_a_card_does_not_take_the_mtu(world: Make) -> None:
    w = world(replace(IGB, max_mtu=2044))
    outcome = w.init(hardware={"pfs": [{"names": [IGB.name], "mtu": 9000}]})[IGB.name]
    assert outcome.result is PfResult.FAILED
    assert "MTU 9000" in outcome.message
    assert "hardware.pfs[].mtu" in outcome.advice
    assert w.machine.now_s < 5
