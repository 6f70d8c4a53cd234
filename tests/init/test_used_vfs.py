"""VFs that somebody uses are not touched."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import pytest

from init.conftest import IGB, IGB2, World
from init.receipts import BOOT_ID, receipt_of
from k8s_rdma.core.types import ContainerId
from k8s_rdma.init.pf_setup import PfResult, all_well
from k8s_rdma.linux.receipts import Receipts

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.core.ledger import Receipt

    Make = Callable[..., World]

FIVE = {"pfs": [{"numVfs": 5}]}


def receipt(pod: str, *vfs: int, boot_id: str = BOOT_ID) -> Receipt:
    return receipt_of(pod, IGB.pci, *vfs, boot_id=boot_id)


def write_ledger(world: World, *receipts: Receipt) -> None:
    ledger = Receipts(world.state_dir / "ledger.db")
    for each in receipts:
        ledger.put(each)
    ledger.close()


def test_count_is_not_changed_while_pods_have_vfs_and_they_are_named(world: Make) -> None:
    w = world(IGB, IGB2)
    w.init()
    write_ledger(w, receipt("b", 3), receipt("a", 0, 2))
    w.machine.written.clear()
    planned = w.init(hardware=FIVE, dry_run=True)["enp1s0f0"]
    outcomes = w.init(hardware=FIVE)
    outcome = outcomes["enp1s0f0"]
    assert planned == outcome
    assert (outcome.result, outcome.previous, outcome.current) == (PfResult.REFUSED, 7, 7)
    assert outcome.message.endswith("used: pod default/a (VF 0, 2), pod default/b (VF 3)")
    assert "drain the node" in outcome.advice
    assert outcomes["enp2s0f0"].result is PfResult.CHANGED
    assert not [path for path, _ in w.machine.written if str(IGB.pci) in path]


def test_kept_vfs_are_a_failure_unless_the_configuration_says_otherwise(world: Make) -> None:
    w = world()
    w.init()
    write_ledger(w, receipt("a", 0))
    outcomes = w.init(hardware=FIVE).values()
    assert not all_well(outcomes, keep_used_vfs=False)
    assert all_well(outcomes, keep_used_vfs=True)


def test_receipts_of_another_boot_hold_no_vf(world: Make) -> None:
    w = world()
    w.init()
    write_ledger(w, receipt("a", 0, boot_id="the boot before"))
    assert w.init(hardware=FIVE)["enp1s0f0"].result is PfResult.CHANGED


def test_ledger_stays_as_it_was(world: Make) -> None:
    w = world()
    w.init()
    assert not w.state_dir.exists()
    write_ledger(w, receipt("a", 0))
    w.init()
    ledger = Receipts(w.state_dir / "ledger.db")
    assert ledger.load().of_container(ContainerId("a")) == (receipt("a", 0),)
    ledger.close()


def test_running_agent_prevents_changes_and_creation_of_vfs(world: Make) -> None:
    w = world(IGB, IGB2)
    w.init(hardware={"pfs": [{"names": ["enp1s0f0"]}]})
    agent = Receipts(w.state_dir / "ledger.db")
    w.machine.written.clear()
    outcomes = w.init(hardware=FIVE)
    agent.close()
    assert outcomes["enp1s0f0"].result is PfResult.REFUSED
    assert "perhaps a pod (VF 0, 1, 2, 3, 4, 5, 6)" in outcomes["enp1s0f0"].message
    assert outcomes["enp2s0f0"].result is PfResult.CHANGED


@pytest.mark.parametrize("spoilt", [b"no database" * 100, b""])
def test_ledger_that_cannot_be_understood_is_no_empty_one(world: Make, spoilt: bytes) -> None:
    w = world()
    w.init()
    w.state_dir.mkdir()
    (w.state_dir / "ledger.db").write_bytes(spoilt)
    result = w.init(hardware=FIVE)["enp1s0f0"].result
    assert result is (PfResult.REFUSED if spoilt else PfResult.CHANGED)


def test_vf_in_another_namespace_is_used(world: Make) -> None:
    w = world()
    w.init()
    w.machine.move_away(IGB.pci, 4)
    outcome = w.init(hardware=FIVE)["enp1s0f0"]
    assert (outcome.result, outcome.current) == (PfResult.REFUSED, 7)
    assert "another network namespace (VF 4)" in outcome.message


def test_vf_of_a_program_or_guest_is_used(world: Make) -> None:
    w = world()
    w.init()
    vf = w.card().vfs[6]
    w.machine.write(f"bus/pci/devices/{vf.pci}/driver/unbind", vf.pci)
    w.machine.tree.bind(vf.pci, "vfio-pci")
    assert "driver vfio-pci (VF 6)" in w.init(hardware=FIVE)["enp1s0f0"].message


def test_vf_that_the_host_itself_uses_is_used(world: Make) -> None:
    w = world()
    w.init()
    w.card().vfs[1].master = 77
    w.card().vfs[2].addresses = (
        ipaddress.ip_interface("fe80::1/64"),
        ipaddress.ip_interface("10.0.0.7/24"),
    )
    w.card().vfs[3].addresses = (ipaddress.ip_interface("fe80::2/64"),)
    w.card().vfs[4].has_vlan = True
    said = w.init(hardware=FIVE)["enp1s0f0"].message
    assert "netdev enp1s0f0v4 with a VLAN, macvlan or macvtap on it (VF 4)" in said
    assert "netdev enp1s0f0v1 in a bond or bridge (VF 1)" in said
    assert "netdev enp1s0f0v2 with an IP address (VF 2)" in said
    assert "VF 3" not in said


def test_vf_that_the_host_uses_counts_as_used_without_netlink(world: Make) -> None:
    """As Linux before 5.14."""
    w = world()
    w.init()
    w.card().vfs[2].addresses = (ipaddress.ip_interface("10.0.0.7/24"),)
    w.machine.tells_devices = False
    said = w.init(hardware=FIVE)["enp1s0f0"].message
    assert "netdev enp1s0f0v2 with an IP address (VF 2)" in said


def test_used_vfs_are_left_and_reported_while_others_are_made_ready(world: Make) -> None:
    w = world()
    w.init()
    write_ledger(w, receipt("a", 0))
    for vf in w.card().vfs.values():
        vf.mac = "02:00:00:00:00:99"
    outcome = w.init(hardware={"pfs": [{"trust": True}]})["enp1s0f0"]
    assert outcome.result is PfResult.CHANGED
    assert outcome.message == "12 settings; used, and left as they are: pod default/a (VF 0)"
    assert w.card().vfs[0].mac == "02:00:00:00:00:99"
    assert not w.card().vfs[0].trust
