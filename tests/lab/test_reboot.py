"""A node is shut down, or its power cut, while pods have interfaces or get them; its ledger is on a disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab.cluster import until
from tests.lab.home import PFS, vfs_of
from tests.lab.lone_node import LoneNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.machine import Machine

pytestmark = pytest.mark.long

CAP = {"max_tx_rate": 50}
STATE = "/disk/k8s-rdma"
VFS = 4


@pytest.fixture
def node(lone_machine: Machine) -> Iterator[LoneNode]:
    node = LoneNode(lone_machine, vfs=VFS, state_dir=STATE)
    node.set_up()
    yield node
    node.stop()


def leases(node: LoneNode) -> list[str]:
    return node.sh(f"ls {node.leases_dir}/rdma | grep '^[0-9]' || true").split()


def boot_again(node: LoneNode, *, orderly: bool = False) -> None:
    """Everything but the disk is new: configuration, VFs, run_dir. The agent has the disk's information.

    orderly: by a shutdown, which leaves pods and their sandboxes as they are, too; else by a power cut.
    """
    node.machine.reboot() if orderly else node.machine.crash()
    node.agent = node.server = None
    node.write_configuration()


@pytest.mark.parametrize("orderly", [False, True], ids=["power cut", "shutdown"])
def test_pods_of_the_former_boot_hold_no_vf_and_their_addresses_are_given_back(
    node: LoneNode, orderly: bool
) -> None:
    first, _ = node.add("a", CAP, {"min_tx_rate": 600}), node.add("b", {"min_tx_rate": 700, "vlan": 7})
    assert len(leases(node)) == 3
    if not orderly:
        node.sh("sync")  # the ledger has been, by the agent; leases are host-local's
    boot_again(node, orderly=orderly)
    assert len(leases(node)) == 3
    node.init()
    assert vfs_of(node.machine) == node.before
    node.start_agent()
    node.start_server()
    assert node.leftovers() == {}
    assert leases(node) == []
    node.detach(first)  # kubelet ends the sandboxes that it remembers
    again = [node.add("a", CAP, {"min_tx_rate": 600}), node.add("b", {"min_tx_rate": 700, "vlan": 7})]
    for sandbox in again:
        node.delete(sandbox)
    assert node.leftovers() == {}


def test_add_that_a_power_cut_ended_leaves_no_state(node: LoneNode) -> None:
    sandbox = node.sandbox("a", *[CAP] * 2 * VFS)
    node.begin("ADD", sandbox)
    until("the first VF is in the pod", lambda: node.inside(sandbox), pause_s=0.05)
    boot_again(node)
    node.init()
    node.start_agent()
    node.start_server()
    assert node.leftovers() == {}
    node.detach(sandbox)
    again = node.add("a", *[CAP] * 2 * VFS)
    assert len(node.inside(again)) == 2 * VFS
    node.delete(again)
    assert node.leftovers() == {}


def vfs_by_hand(node: LoneNode) -> None:
    """VFs without given names or addresses: the driver thinks of others at each boot."""
    for pf in PFS:
        node.sh(f"echo 0 > /sys/class/net/{pf}/device/sriov_numvfs")
    node.machine.run("lab-sriov", str(VFS))
    node.before = vfs_of(node.machine)


def test_vf_keeps_the_address_of_its_boot_though_the_ledger_has_that_of_the_boot_before(
    node: LoneNode,
) -> None:
    node.stop()
    vfs_by_hand(node)
    before = node.before
    node.start_agent()
    node.start_server()
    node.add("a", CAP, CAP)
    boot_again(node)
    vfs_by_hand(node)
    macs, names = ({vf: (each.mac, each.netdev) for vf, each in vfs.items()} for vfs in (before, node.before))
    assert {mac for mac, _ in macs.values()}.isdisjoint(mac for mac, _ in names.values())
    assert [name for _, name in macs.values()] == [name for _, name in names.values()]
    node.start_agent()
    node.start_server()
    assert node.leftovers() == {}
