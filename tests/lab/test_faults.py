"""Changes of a node's hardware while pods use it: the node reports them, and loses no state.

Everything is done behind the agent's back, by the kernel's own files, `ip` and the cable.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.cluster import until
from tests.lab.guest_runtime import TRY_AGAIN, CniFailed
from tests.lab.home import differences, vfs_of
from tests.lab.lone_node import LoneNode, foreign, problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lab.machine import Machine

CAP = {"max_tx_rate": 50}
STRANGE_MAC = "02:00:00:00:aa:01"
REFUSED = 102
LEDGER_FAILURE = 112


class Nodes:
    """The node that tests share; it is made anew after a test that left something on it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._node: LoneNode | None = None

    def get(self) -> LoneNode:
        if self._node is None:
            self._node = LoneNode(self._machine)
            self._node.set_up()
        return self._node

    def close(self) -> None:
        if self._node is not None:
            self._node.stop()
        self._node = None


@pytest.fixture(scope="module")
def nodes(lone_machine: Machine) -> Iterator[Nodes]:
    made = Nodes(lone_machine)
    yield made
    made.close()


@pytest.fixture
def node(nodes: Nodes) -> Iterator[LoneNode]:
    yield (node := nodes.get())
    try:
        assert node.leftovers() == {}
    except BaseException:
        nodes.close()
        raise


def pci(node: LoneNode, pf: str, vf: int) -> str:
    return node.before[pf, vf].pci


def pull(node: LoneNode, pf: str) -> None:
    node.machine.cable(pf, False)
    node.until("no link", lambda told: link_mbps(told, pf) is None)


def plug(node: LoneNode, pf: str) -> None:
    node.machine.cable(pf, True)
    node.until("the link", lambda told: link_mbps(told, pf))


def link_mbps(report: dict[str, Any], pf: str) -> int | None:
    return next(each["link_mbps"] for each in report["pfs"] if each["name"] == pf)


def metric(node: LoneNode, name: str, **labels: str) -> float | None:
    """Return a value of a node's metrics, if there is such a series."""
    for line in node.metrics().splitlines():
        if line.startswith(f"{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            return float(line.rpartition(" ")[2])
    return None


def test_pf_without_cable_takes_no_reservation_until_it_is_plugged_and_pods_keep_their_rates(
    node: LoneNode,
) -> None:
    running = node.add("a", CAP)
    pull(node, "eth0")
    report = node.until("why", lambda told: "its link has no carrier" in problems(told, "eth0"))
    assert report["allocations"]
    assert metric(node, "k8s_rdma_pf_link_bits_per_second", pf="eth0") is None
    elsewhere = node.add("b", {"min_tx_rate": 600})
    waiting = node.sandbox("c", {"min_tx_rate": 600})
    with pytest.raises(CniFailed, match="link speed of eth0 is unknown") as refused:
        node.attach(waiting)
    assert refused.value.code == REFUSED
    plug(node, "eth0")
    node.attach(waiting)
    assert metric(node, "k8s_rdma_pf_link_bits_per_second", pf="eth0") == 1e9
    assert vfs_of(node.machine)["eth0", 0].max_tx_rate == 50
    for sandbox in (running, elsewhere, waiting):
        node.delete(sandbox)


def test_vf_whose_driver_leaves_while_a_pod_has_it_is_reported_alone(node: LoneNode) -> None:
    address = pci(node, "eth0", 0)
    sandbox = node.add("a", CAP)
    node.sh(f"echo {address} > /sys/bus/pci/drivers/igbvf/unbind")
    lost = "VF 0 of PF eth0, which pod default/a was given as eth0, is lost to it: "
    node.until("lost", lambda told: f"{lost}no driver is bound to it" in problems(told, "eth0"))
    with pytest.raises(CniFailed, match="interface eth0 is not in the pod"):
        node.cni("CHECK", sandbox)
    node.sh(f"echo {address} > /sys/bus/pci/drivers/igbvf/bind")
    node.until("at home", lambda told: f"{lost}its netdev is in the host's" in problems(told, "eth0"))
    other = node.add("b", CAP)
    assert vfs_of(node.machine)["eth0", 0].netdev is not None
    for each in (sandbox, other):
        node.delete(each)
    node.until("no problem", lambda told: not problems(told, "eth0"))


def test_vf_without_driver_is_foreign_when_its_pod_has_ended_and_used_when_it_has_one(node: LoneNode) -> None:
    address = pci(node, "eth0", 0)
    sandbox = node.add("a", CAP)
    node.sh(f"echo {address} > /sys/bus/pci/drivers/igbvf/unbind")
    node.delete(sandbox)
    node.until("foreign", lambda told: foreign(told, "eth0") == {0: "no driver is bound to it"})
    node.sh(f"echo {address} > /sys/bus/pci/drivers/igbvf/bind; sleep 1")
    node.until("free", lambda told: not foreign(told, "eth0"))
    node.sh(f"ip link set $(ls /sys/bus/pci/devices/{address}/net) name {node.before['eth0', 0].netdev}")
    node.until("seen", lambda _: not node.leftovers(within_s=0))


def first_macs(report: dict[str, Any]) -> list[str]:
    return [each["first"] for each in report["macs"]]


def test_mac_that_the_pf_gives_a_pods_vf_meanwhile_does_not_keep_the_pod(node: LoneNode) -> None:
    home = node.before["eth0", 0]
    sandbox = node.add("a", CAP)
    node.sh(f"ip link set eth0 vf 0 mac {STRANGE_MAC}")
    node.delete(sandbox)
    now = vfs_of(node.machine)["eth0", 0]
    assert (now.netdev, now.mac, now.pf_mac, now.max_tx_rate) == (home.netdev, STRANGE_MAC, STRANGE_MAC, 0)
    assert node.log("vf_home_mac_replaced")[-1]["by"] == STRANGE_MAC
    node.until("the strange MAC", lambda report: STRANGE_MAC in first_macs(report))
    node.sh(
        f"ip link set eth0 vf 0 mac {home.mac}; ip link set {home.netdev} up; ip link set {home.netdev} down"
    )
    node.until("its own MAC", lambda report: STRANGE_MAC not in first_macs(report))


def test_free_vf_that_was_moved_away_is_foreign_until_it_is_back(node: LoneNode) -> None:
    node.sh(f"ip netns add other; ip link set {node.before['eth1', 1].netdev} netns other")
    node.until("foreign", lambda told: "another network namespace" in foreign(told, "eth1").get(1, ""))
    assert metric(node, "k8s_rdma_pf_vfs_used", pf="eth1") == 1
    node.sh("ip netns delete other")
    node.until("free", lambda told: not foreign(told, "eth1"))


def test_vf_that_was_taken_from_its_pod_comes_home_once_released(node: LoneNode) -> None:
    sandbox = node.add("a", CAP)
    node.sh(f"ip netns add other; ip -n {sandbox.netns} link set eth0 netns other")
    with pytest.raises(CniFailed, match="did not return within 10 s"):
        node.detach(sandbox)
    assert [each["phase"] for each in node.until("report", bool)["allocations"]] == ["releasing"]
    node.sh("ip netns delete other")
    node.until("ended", lambda told: not told["allocations"])
    node.end_namespace(sandbox)


def test_pf_and_vfs_that_are_renamed_are_the_same_ones(node: LoneNode) -> None:
    held = node.add("a", CAP)
    inside = f"ip -n {held.netns} link set"
    node.sh(
        f"{inside} eth0 down; {inside} eth0 name mine; ip link set eth0 down; ip link set eth0 name wire0 up"
    )
    free = node.before["eth0", 1].netdev
    node.sh(f"ip link set {free} name odd")
    report = node.until("the new name", lambda told: any(pf["name"] == "wire0" for pf in told["pfs"]))
    assert [each["phase"] for each in report["allocations"]] == ["attached"]
    node.until("the link", lambda told: link_mbps(told, "wire0"))
    other = node.add("b", CAP)
    node.delete(other)
    node.delete(held)
    assert "odd" in node.sh("ls /sys/class/net")
    node.sh(f"ip link set odd name {free}; ip link set wire0 down; ip link set wire0 name eth0 up")
    node.until("the link", lambda told: any(pf["name"] == "eth0" and pf["link_mbps"] for pf in told["pfs"]))


@pytest.mark.long
def test_foreign_change_of_the_number_of_vfs_takes_them_from_pods_and_loses_no_receipt(
    node: LoneNode,
) -> None:
    file = "/sys/class/net/eth0/device/sriov_numvfs"
    sandbox = node.add("a", CAP, CAP)
    assert node.machine.run("bash", "-c", f"echo 2 > {file}", check=False).returncode  # the kernel's refusal
    node.sh(f"echo 0 > {file}")
    report = node.until("no VFs", lambda told: "it has no VFs, of 7" in problems(told, "eth0"))
    assert problems(report, "eth0").count("is lost to it: the PF has 0 VFs now") == 2
    other = node.add("b", CAP)
    assert [vf for vf, each in vfs_of(node.machine).items() if each.netdev is None] == [("eth1", 0)]
    node.sh(f"echo 1 > {file}")
    report = node.until("one VF", lambda told: "the PF has 1 VFs now" in problems(told, "eth0"))
    assert len(report["allocations"]) == 2
    node.delete(sandbox)
    node.delete(other)
    made_anew(node)


def made_anew(node: LoneNode) -> None:
    """As an operator does: the agent stopped, `init`, the agent started."""
    node.kill_agent()
    node.init()
    node.start_agent()
    assert differences(node.before, vfs_of(node.machine)) == {}


@pytest.mark.long
def test_pods_end_while_their_pfs_driver_is_away_and_new_ones_wait_for_it(node: LoneNode) -> None:
    ends, stays = node.add("a", CAP, {"min_tx_rate": 600}), node.add("b", {"min_tx_rate": 700})
    node.sh("rmmod igb")
    until("it is told", lambda: "no driver is bound to it" in node.unreadable())
    assert metric(node, "k8s_rdma_unreadable") == 2
    waiting = node.sandbox("c", CAP)
    with pytest.raises(CniFailed, match="no driver is bound to it") as refused:
        node.attach(waiting)
    assert refused.value.code == TRY_AGAIN
    node.delete(ends)
    node.sh("modprobe igb")
    report = node.until("the PFs", lambda told: "it has no VFs" in problems(told, "eth1"))
    assert [each["pod"]["name"] for each in report["allocations"]] == ["b"]
    node.delete(stays)
    node.sh("ip link set eth0 up; ip link set eth1 up")
    made_anew(node)
    node.attach(waiting)
    node.delete(waiting)


@pytest.mark.long
def test_moment_without_sysfs_has_no_effect(node: LoneNode) -> None:
    sandbox, waiting = node.add("a", CAP), node.sandbox("b", {"min_tx_rate": 100})
    failed = node.count("observe_failed")
    node.sh("mount -t tmpfs tmpfs /sys")
    try:
        node.sh("ip link set eth0 mtu 1400; sleep 1; ip link set eth0 mtu 1500")  # so that somebody looks
        until("it is told", lambda: node.count("observe_failed") > failed)
        with pytest.raises(CniFailed) as refused:
            node.attach(waiting)
        assert refused.value.code == TRY_AGAIN
        with pytest.raises(CniFailed):
            node.detach(sandbox)
    finally:
        node.sh("umount /sys")
    node.until("it looks again", lambda told: told["pfs"])
    node.attach(waiting)
    node.delete(waiting)
    node.delete(sandbox)


@contextmanager
def full_disk(node: LoneNode) -> Iterator[None]:
    """Without room for a byte more."""
    node.sh("for size in 64k 1; do dd if=/dev/zero of=/disk/filler$size bs=$size 2>/dev/null; done; true")
    try:
        yield
    finally:
        node.sh("rm /disk/filler*")


@contextmanager
def broken_disk(node: LoneNode) -> Iterator[None]:
    """Read-only since an error, as ext4 makes it: until it is mounted again, when it is out of use."""
    node.sh("mount -o remount,errors=remount-ro /disk; echo broken > /sys/fs/ext4/vda/trigger_fs_error")
    until("read-only", lambda: node.machine.run("touch", "/disk/probe", check=False).returncode)
    try:
        yield
    finally:
        node.kill_agent()
        node.sh("umount /disk; e2fsck -fy /dev/vda >&2 || (($? == 1)); mount /dev/vda /disk")
        node.start_agent()


@pytest.mark.long
@pytest.mark.parametrize(("spoilt", "notes_ends"), [(full_disk, False), (broken_disk, True)])
def test_node_whose_ledger_cannot_be_written_gives_no_vf_and_takes_all_back(
    nodes: Nodes,
    lone_machine: Machine,
    spoilt: Callable[[LoneNode], AbstractContextManager[None]],
    notes_ends: bool,
) -> None:
    """notes_ends: in memory, where the kernel takes it and no disk ever has it: ends need no sync."""
    nodes.close()
    node = LoneNode(lone_machine, state_dir="/disk/k8s-rdma")
    node.leases_dir = "/run/leases"
    try:
        node.set_up()
        sandbox, other = node.add("a", CAP), node.sandbox("b", CAP)
        with spoilt(node):
            with pytest.raises(CniFailed) as refused:
                node.attach(other)
            assert refused.value.code == LEDGER_FAILURE
            with nullcontext() if notes_ends else pytest.raises(CniFailed):
                node.detach(sandbox)
            assert differences(node.before, vfs_of(node.machine)) == {}
        node.delete(sandbox)
        node.attach(other)
        node.delete(other)
        assert node.leftovers() == {}
    finally:
        node.stop()


@pytest.mark.long
def test_removed_rdma_device_is_missed_if_it_is_demanded(nodes: Nodes, lone_machine: Machine) -> None:
    nodes.close()
    lone_machine.run("bash", "-c", "modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0")
    node = LoneNode(lone_machine, pfs=("eth0",), require_rdma=True)
    try:
        node.set_up()
        report = node.until("a PF", lambda told: told["pfs"])
        assert [(pf["name"], pf["rdma_device"]) for pf in report["pfs"]] == [("eth0", "rxe0")]
        sandbox = node.add("a", CAP)
        node.sh("rdma link delete rxe0")
        why = "it has no RDMA device, which hardware.requireRdma demands; as it was in use before, it is"
        report = node.until("why", lambda told: why in problems(told, "eth0"))
        assert report["pfs"][0].get("rdma_device") is None
        node.sh("rdma link add rxe0 type rxe netdev eth0")
        node.until("no problem", lambda told: not problems(told, "eth0"))
        node.delete(sandbox)
    finally:
        node.stop()
        node.sh("rdma link delete rxe0")
