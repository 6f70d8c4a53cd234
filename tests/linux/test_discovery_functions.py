"""Which PFs are found, and which of them are ours."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.core.pf_selection import PfRule, Selection
from k8s_rdma.core.types import Enforce, LinkType, PciAddress
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.functions import Discovery, Missing
from linux.small_machine import INFINIBAND, PF, PF1, SmallMachine, vf_pci

if TYPE_CHECKING:
    from pathlib import Path


def select(machine: SmallMachine, *rules: PfRule, require_rdma: bool = True) -> Discovery:
    return machine.observer(Selection(require_rdma=require_rdma, rules=rules or (PfRule(),))).discover()


def names(discovery: Discovery) -> list[str]:
    return [each.pf.name for each in discovery.selected]


def two_pfs(machine: SmallMachine) -> None:
    machine.add_pf(PF, "eth0", 10, rdma="mlx5_0")
    machine.add_pf(PF1, "ib0", 30, rdma="mlx5_1", type=INFINIBAND)
    machine.write(f"{machine.device(PF1)}/device", "0x101b")


def test_pf_is_found_with_the_fields_of_selectors(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)
    (found,) = select(machine).selected
    assert (found.pf.pci, found.pf.name, found.pf.vendor, found.pf.driver) == (
        PF,
        "eth0",
        "15b3:1017",
        "mlx5_core",
    )
    assert (found.pf.total_vfs, found.pf.num_vfs) == (8, 2)
    assert (found.pf.link_type, found.pf.rdma_device) == (LinkType.ETHERNET, "mlx5_0")


def test_pf_is_found_while_it_has_no_vfs(machine: SmallMachine) -> None:
    machine.add_pf(vfs=0)
    assert names(select(machine)) == ["eth0"]


@pytest.mark.parametrize("change", [{"class": "0x010802"}, {"sriov_totalvfs": 0}])
def test_function_that_is_no_pf_of_a_network_card_is_not_found(
    machine: SmallMachine, change: dict[str, object]
) -> None:
    machine.add_pf()
    for name, text in change.items():
        machine.write(f"{machine.device(PF)}/{name}", text)
    discovery = select(machine)
    assert (discovery.selected, discovery.skipped) == ((), ())


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (PfRule(), ["eth0", "ib0"]),
        (PfRule(names=frozenset({"ib0"})), ["ib0"]),
        (PfRule(pcis=frozenset({PF})), ["eth0"]),
        (PfRule(vendors=frozenset({"15b3"})), ["eth0", "ib0"]),
        (PfRule(vendors=frozenset({"15b3:101b"})), ["ib0"]),
        (PfRule(vendors=frozenset({"8086"})), []),
        (PfRule(drivers=frozenset({"mlx5_core"})), ["eth0", "ib0"]),
        (PfRule(drivers=frozenset({"ice"})), []),
        (PfRule(link_types=frozenset({LinkType.INFINIBAND})), ["ib0"]),
        (PfRule(names=frozenset({"eth0"}), link_types=frozenset({LinkType.INFINIBAND})), []),
    ],
)
def test_rule_selects_when_all_its_selectors_match(
    machine: SmallMachine, rule: PfRule, expected: list[str]
) -> None:
    two_pfs(machine)
    discovery = select(machine, rule)
    assert names(discovery) == expected
    assert discovery.skipped == ()  # who wrote the rule expects no others


def test_first_rule_that_matches_applies(machine: SmallMachine) -> None:
    two_pfs(machine)
    first = PfRule(names=frozenset({"ib0"}), enforce=Enforce.HARDWARE)
    discovery = select(machine, first, PfRule())
    assert [each.rule.enforce for each in discovery.selected] == [Enforce.AUTO, Enforce.HARDWARE]


def test_pf_with_the_default_route_is_left_alone_and_said_to_be(machine: SmallMachine) -> None:
    two_pfs(machine)
    machine.answers.routes = frozenset({10})
    discovery = select(machine, PfRule(vendors=frozenset({"15b3"})))
    assert names(discovery) == ["ib0"]
    (left,) = discovery.skipped
    assert left.missing is Missing.LEAVE
    assert "eth0" in left.why
    assert "default route" in left.why


@pytest.mark.parametrize("rule", [PfRule(names=frozenset({"eth0"})), PfRule(pcis=frozenset({PF}))])
def test_pf_with_the_default_route_is_taken_when_its_rule_names_it(
    machine: SmallMachine, rule: PfRule
) -> None:
    machine.add_pf()
    machine.answers.routes = frozenset({10})
    assert names(select(machine, rule)) == ["eth0"]


def test_pf_without_rdma_device_is_left_alone_unless_rdma_is_not_required(machine: SmallMachine) -> None:
    machine.add_pf(rdma=None)
    discovery = select(machine)
    assert discovery.selected == ()
    assert [each.missing for each in discovery.skipped] == [Missing.RDMA]
    assert names(select(machine, require_rdma=False)) == ["eth0"]


def test_pf_whose_driver_is_still_coming_may_be_ours(machine: SmallMachine) -> None:
    machine.add_pf(driver=None)
    machine.remove_netdev(PF, "eth0")
    (machine.at(machine.device(PF)) / "net").rmdir()
    for rule in (PfRule(), PfRule(names=frozenset({"eth0"})), PfRule(drivers=frozenset({"mlx5_core"}))):
        (left,) = select(machine, rule).skipped
        assert (left.missing, left.pf.name) == (Missing.DRIVER, PF)
    assert select(machine, PfRule(vendors=frozenset({"8086"}))).skipped == ()
    machine.bind(PF, "mlx5_core")
    assert [each.missing for each in select(machine).skipped] == [Missing.NETDEV]
    assert select(machine, PfRule(drivers=frozenset({"ice"}))).skipped == ()


def test_pf_without_netdev_is_not_meant_by_names_that_others_have(machine: SmallMachine) -> None:
    two_pfs(machine)
    machine.remove_netdev(PF, "eth0")
    assert names(select(machine, PfRule(names=frozenset({"ib0"})))) == ["ib0"]
    assert select(machine, PfRule(names=frozenset({"ib0"}))).skipped == ()


def test_name_or_address_without_a_pf_is_a_problem(machine: SmallMachine) -> None:
    machine.add_pf()
    rule = PfRule(names=frozenset({"eth0", "eth7"}))
    address = PfRule(pcis=frozenset({PciAddress("0000:99:00.0")}))
    name_of_nothing, address_of_nothing = map(str, select(machine, rule, address).absent)
    assert "eth7" in name_of_nothing
    assert "0000:99:00.0" in address_of_nothing


def test_representors_are_not_the_pf(machine: SmallMachine) -> None:
    machine.add_netdev(PF, "eth0_0", 5)
    machine.write("class/net/eth0_0/phys_port_name", "pf0vf0")
    machine.add_pf()
    machine.write("class/net/eth0/phys_port_name", "p0")
    assert names(select(machine)) == ["eth0"]


def test_interface_of_another_partition_is_not_the_pf(machine: SmallMachine) -> None:
    machine.add_netdev(PF, "ib0.8001", 5, type=INFINIBAND, peer=10)
    machine.add_pf(name="ib0", type=INFINIBAND)
    assert names(select(machine)) == ["ib0"]


def test_first_of_two_ports_is_the_pf(machine: SmallMachine) -> None:
    machine.add_netdev(PF, "eth9", 5)
    machine.write("class/net/eth9/dev_port", 1)
    machine.add_pf()
    machine.write("class/net/eth0/dev_port", 0)
    assert names(select(machine)) == ["eth0"]


def test_netdev_that_netlink_has_for_another_device_is_no_agreement(machine: SmallMachine) -> None:
    machine.add_pf()
    del machine.answers.by_name["eth0"]
    assert [each.missing for each in select(machine).skipped] == [Missing.AGREEMENT]


def test_kernel_that_does_not_tell_a_netdevs_device_is_believed(machine: SmallMachine) -> None:
    machine.add_pf(vfs=1)
    for name, link in machine.answers.by_name.items():
        machine.answers.by_name[name] = replace(link, device="")
    (pf,) = machine.observer().observe().pfs
    assert [vf.unusable for vf in pf.vfs] == [""]


def test_machine_without_pci_has_no_pfs_but_one_without_sysfs_is_no_machine(
    machine: SmallMachine, tmp_path: Path
) -> None:
    assert select(machine).selected == ()
    (tmp_path / "bus/pci/devices").rename(tmp_path / "elsewhere")
    assert select(machine).selected == ()
    (tmp_path / "bus").rename(tmp_path / "no-bus")
    with pytest.raises(KernelError, match="mounted"):
        select(machine)


def test_bridges_above_are_the_pcie_path(machine: SmallMachine) -> None:
    machine.add_pf(vfs=1)
    (pf,) = machine.observer().observe().pfs
    assert pf.pcie_path == ("0000:3a:00.0",)
    assert vf_pci(0) == pf.vfs[0].pci


def test_netdev_without_a_driver_is_no_agreement(machine: SmallMachine) -> None:
    machine.add_pf(driver=None)
    assert [each.missing for each in select(machine).skipped] == [Missing.AGREEMENT]


@pytest.mark.parametrize(
    ("rule", "routes", "why"),
    [
        (PfRule(names=frozenset({"eth9"})), frozenset(), "nothing in hardware.pfs selects it"),
        (PfRule(), frozenset({10}), "default route"),
    ],
    ids=["deselected", "default route"],
)
def test_pf_whose_vfs_pods_have_is_ours_whatever_the_rules_say(
    machine: SmallMachine, rule: PfRule, routes: frozenset[int], why: str
) -> None:
    machine.add_pf()
    machine.answers.routes = routes
    selection = Selection(rules=(rule,))
    assert names(machine.observer(selection).discover()) == []
    hardware = machine.observer(replace(selection, allocated=frozenset({PF}))).observe()
    assert [pf.name for pf in hardware.pfs] == ["eth0"]
    assert why in " ".join(hardware.pfs[0].problems)


def test_pf_whose_vfs_pods_have_is_not_taken_for_absent_without_its_driver(machine: SmallMachine) -> None:
    machine.add_pf()
    machine.remove_netdev(PF, "eth0")
    machine.bind(PF, None)
    selection = Selection(rules=(PfRule(vendors=frozenset({"8086"})),))
    assert machine.observer(selection).observe().unreadable == ()
    held = machine.observer(replace(selection, allocated=frozenset({PF})))
    assert [each.subject for each in held.observe().unreadable] == [f"PF {PF}"]


@pytest.mark.parametrize("port_name", ["pf0vf0", "c1pf0vf0", "pf0sf88", "pf0hpf", "c1pf0", "pf1"])
def test_representor_alone_is_not_the_pf(machine: SmallMachine, port_name: str) -> None:
    machine.add_pf(vfs=1)
    machine.remove_netdev(PF, "eth0")
    machine.add_netdev(PF, "eth7", 50)
    machine.write("class/net/eth7/phys_port_name", port_name)
    discovery = select(machine)
    assert discovery.selected == ()
    [left] = discovery.skipped
    assert left.missing is Missing.NETDEV
    assert "has its netdev in another network namespace; only representors are here: eth7" in left.why


def test_only_netdev_of_a_physical_port_is_the_pf(machine: SmallMachine) -> None:
    machine.add_pf()
    machine.write("class/net/eth0/phys_port_name", "p0")
    assert names(select(machine)) == ["eth0"]


@pytest.mark.parametrize("layer", ["InfiniBand", None])
def test_infiniband_pf_without_ipoib_says_to_load_it(machine: SmallMachine, layer: str | None) -> None:
    machine.add_pf(name="ib0", type=INFINIBAND)
    machine.take_netdev(PF, "ib0")
    if layer:
        machine.write("class/infiniband/mlx5_0/ports/1/link_layer", layer)
    [left] = select(machine).skipped
    assert left.missing is Missing.NETDEV
    assert left.why.endswith("has made no netdev: ib_ipoib makes it for mlx5_0 and is not loaded")
    assert left.advice.startswith("modprobe ib_ipoib")
    machine.at("module/ib_ipoib").mkdir(parents=True)
    [left] = select(machine).skipped
    assert left.why.endswith("has made no netdev")


def test_ethernet_pf_without_a_netdev_is_not_advised_to_load_ipoib(machine: SmallMachine) -> None:
    machine.add_pf()
    machine.take_netdev(PF, "eth0")
    machine.write("class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet")
    [left] = select(machine).skipped
    assert "ipoib" not in left.why + left.advice
