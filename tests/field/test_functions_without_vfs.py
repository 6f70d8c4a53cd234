"""Functions of network cards that cannot have VFs, and the advice of doctor for each kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes.recorded_machine import RecordedMachine, read_machine
from k8s_rdma.config.hardware import HardwareConfig
from k8s_rdma.core.kernel import Hardware
from k8s_rdma.doctor.collectors.host import Host
from k8s_rdma.doctor.collectors.node import MachineCollector
from k8s_rdma.doctor.node.hardware import HardwareFacts, PlainFunction, check_firmware, check_hardware

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding

FILES = Path(__file__).parent / "files"


def facts_of(name: str) -> HardwareFacts:
    recorded = RecordedMachine(read_machine(FILES / f"{name}.yaml"))
    return MachineCollector(
        host=Host(Path("/")),
        sysfs=recorded.sysfs,
        queries=recorded.queries,
        hardware=HardwareConfig(),
        virtual=False,
    ).hardware_facts()


def findings(facts: HardwareFacts) -> dict[str, list[Finding]]:
    by_id: dict[str, list[Finding]] = {}
    for finding in (*check_hardware(facts), *check_firmware(facts)):
        by_id.setdefault(finding.id, []).append(finding)
    return by_id


def test_vfs_that_a_provider_passed_into_the_machine_are_not_to_be_reconfigured() -> None:
    """Their PF, and its firmware's settings, are the provider's: mlxconfig in the machine has no effect."""
    found = findings(facts_of("azure-nd-h100"))
    assert found.keys() == {"hardware-no-pf", "firmware-passed-vf"}
    assert [finding.about for finding in found["firmware-passed-vf"]] == ["ib0", "ib1", "enP30832s1"]
    [no_pf] = found["hardware-no-pf"]
    assert "VFs alone" in no_pf.found
    assert "nodeSelector" in no_pf.fix
    assert "mlxconfig" not in str(found)


def test_arm_side_of_a_bluefield_is_sent_to_its_host() -> None:
    found = findings(facts_of("bluefield-arm"))
    assert found.keys() == {"hardware-no-pf", "firmware-smart-nic"}
    [smart] = found["firmware-smart-nic"]
    assert (smart.about, "pf0hpf" in smart.found, "en3f0pf0sf0" in smart.found) == ("p0", True, False)
    assert "run k8s-rdma on the host" in found["hardware-no-pf"][0].fix
    assert "mlxconfig" not in str(found)


@pytest.mark.parametrize(
    ("driver", "vendor", "kind"),
    [
        ("mlx5_core", "15b3:101e", "firmware-passed-vf"),
        ("mlx5_core", "15b3:1018", "firmware-passed-vf"),
        ("mlx5_core", "15b3:a2d3", "firmware-passed-vf"),
        ("mlx4_core", "15b3:1004", "firmware-passed-vf"),
        ("bnxt_en", "14e4:1806", "firmware-passed-vf"),
        ("ionic", "1dd8:1003", "firmware-passed-vf"),
        ("qede", "1077:8090", "firmware-passed-vf"),
        ("hinic", "19e5:375e", "firmware-passed-vf"),
        ("iavf", "8086:1889", "firmware-passed-vf"),
        ("mlx5_core", "15b3:1021", "firmware-no-sriov"),
        ("bnxt_en", "14e4:1750", "firmware-no-sriov"),
        ("ionic", "1dd8:1002", "firmware-no-sriov"),
        ("e1000e", "8086:10d3", None),
        ("ena", "1d0f:ec20", None),
    ],
)
def test_advice_is_by_the_function_and_not_by_its_driver(driver: str, vendor: str, kind: str | None) -> None:
    function = PlainFunction(pci="0000:03:00.0", driver=driver, vendor=vendor)
    facts = HardwareFacts(hardware=Hardware(()), plain=(function,))
    assert [finding.id for finding in check_firmware(facts)] == ([kind] if kind else [])


def test_bluefield_without_sriov_says_on_which_side_it_is_turned_on() -> None:
    """Its PCI ID is the same on both sides, and in NIC mode no representor distinguishes them."""
    function = PlainFunction(pci="0000:03:00.0", driver="mlx5_core", vendor="15b3:a2dc")
    facts = HardwareFacts(hardware=Hardware(()), plain=(function,))
    [found] = check_firmware(facts)
    assert found.fix.startswith("on the host, not on the card's own processor: mlxconfig")
    [other] = check_firmware(replace(facts, plain=(replace(function, vendor="15b3:1021"),)))
    assert other.fix.startswith("mlxconfig")


def test_pf_that_has_vfs_and_lacks_its_netdev_is_advised_by_its_reason() -> None:
    """An InfiniBand host whose ib_ipoib was unloaded: its PF counts as unreadable as long as it has VFs."""
    facts = facts_of("infiniband-without-ipoib")
    [unreadable] = findings(facts)["hardware-unreadable"]
    assert "ib_ipoib makes it for mlx5_0 and is not loaded" in unreadable.found
    assert unreadable.fix.startswith("modprobe ib_ipoib")
