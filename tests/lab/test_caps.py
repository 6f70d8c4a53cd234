"""Caps in a guest, by the agent and the CNI executable: who keeps them, and that software's hold.

QEMU keeps the rates that are programmed on VFs without effect, so that throughput is measured under
software's caps alone: payload, compared as the frames that it takes (`lab.report.frames`).
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from lab.errors import CommandFailed
from lab.report.flows import Endpoint, make_rdma, mtu, tcp, verbs
from lab.report.frames import tcp_share, write_share
from lab.report.node import READY_WITHIN_S, Attached, LabNode
from lab.report.steady import least, most, until_carried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lab.machine import Machine

SECONDS = 5
HARDWARE: dict[str, object] = {"pfs": [{"names": ["eth0", "eth1"], "numVfs": 2}]}
ELSEWHERE = {"pf": "eth1"}


@pytest.fixture(scope="module")
def node(machine: Machine) -> LabNode:
    made = LabNode(machine, "w1", HARDWARE)
    made.start()
    return made


class Pods:
    """Those of a test; gone when it ends."""

    def __init__(self, node: LabNode) -> None:
        self.node = node
        self._made: list[tuple[str, dict[str, object]]] = []

    def add(self, name: str, **interface: object) -> Attached:
        """With one interface."""
        self._made.append((name, interface))
        return self.node.add(name, interface)

    def flow(self, **interface: object) -> tuple[Endpoint, Endpoint]:
        """From such an interface on eth0 to one on eth1, each with a soft-RoCE device."""
        pods = self.add("from", pf="eth0", **interface), self.add("to", pf="eth1")
        source, destination = (self.node.endpoint(pod) for pod in pods)
        make_rdma(source)
        make_rdma(destination)
        return source, destination

    def close(self) -> None:
        while self._made:
            name, interface = self._made.pop()
            self.node.delete(name, interface)


@pytest.fixture
def pods(node: LabNode) -> Iterator[Pods]:
    made = Pods(node)
    yield made
    made.close()


def qdisc(node: LabNode, pod: Attached) -> str:
    """The root one of its interface, as `tc` shows it."""
    shown = node.endpoint(pod).run("tc", "qdisc", "show", "dev", "eth0")
    return next((line for line in shown.splitlines() if " root " in line), "")


def programmed(node: LabNode, pod: str) -> tuple[int, int]:
    """Rates of the VF of a pod's interface as the PF's driver shows them, Mb/s."""
    (interface,) = node.interfaces(pod)
    netdev = f"/sys/bus/pci/devices/{interface['pf']}/net"
    pf = node.machine.run("ls", netdev).stdout.strip()
    shown = node.machine.run("ip", "-details", "-json", "link", "show", "dev", pf).stdout
    (vf,) = [each for each in json.loads(shown)[0]["vfinfo_list"] if each["vf"] == interface["vf"]]
    return vf["rate"]["min_tx"], vf["rate"]["max_tx"]


def enforced_max(node: LabNode, pod: str) -> str | None:
    (interface,) = node.interfaces(pod)
    return interface["enforced"]["max"]


def assert_holds(cap: int, frames: Callable[[], float]) -> None:
    """A busy machine may carry less than a cap, so that too little is measured again; too much never is."""
    found = until_carried(frames, least(cap))
    assert all(rate <= most(cap) for rate in found), found
    assert found[-1] >= least(cap), found


def tcp_frames(source: Endpoint, destination: Endpoint) -> float:
    return tcp(source, destination, SECONDS) / tcp_share(mtu(source))


def verbs_frames(source: Endpoint, destination: Endpoint) -> float:
    found = verbs(source, destination, SECONDS)
    return found.mbps / write_share(found.message, found.path_mtu)


# Measured caps


@pytest.mark.parametrize(
    "cap", [pytest.param(4, marks=pytest.mark.long), 8, pytest.param(16, marks=pytest.mark.long)]
)
def test_software_cap_holds_for_tcp_and_for_rdma_writes(pods: Pods, cap: int) -> None:
    source, destination = pods.flow(max_tx_rate=cap, enforce="software")
    assert_holds(cap, lambda: tcp_frames(source, destination))
    assert_holds(cap, lambda: verbs_frames(source, destination))


@pytest.mark.long
def test_cap_that_was_removed_holds_again_when_the_agent_has_looked(pods: Pods) -> None:
    cap = 4
    source, destination = pods.flow(max_tx_rate=cap, enforce="software")
    remove_cap(source)
    assert tcp_frames(source, destination) > most(cap)
    await_cap(source)
    assert_holds(cap, lambda: tcp_frames(source, destination))


# Set caps


def test_cap_that_is_removed_in_the_pod_is_restored_and_reported(pods: Pods, node: LabNode) -> None:
    pod = pods.add("a", max_tx_rate=8, enforce="software")
    before = qdisc(node, pod)
    remove_cap(node.endpoint(pod))
    await_cap(node.endpoint(pod))
    assert qdisc(node, pod) == before
    assert '"event": "cap_restored"' in node.agent_log()


def test_software_programs_no_rate_of_the_vf(pods: Pods, node: LabNode) -> None:
    pod = pods.add("a", max_tx_rate=8, enforce="software")
    assert "rate 8Mbit" in qdisc(node, pod)
    assert programmed(node, "a") == (0, 0)
    assert enforced_max(node, "a") == "software"


@pytest.mark.parametrize("enforce", ["hardware", "auto"])
def test_driver_that_takes_caps_is_given_them(pods: Pods, node: LabNode, enforce: str) -> None:
    pod = pods.add("a", max_tx_rate=8, enforce=enforce)
    assert programmed(node, "a") == (0, 8)
    assert "tbf" not in qdisc(node, pod)
    assert enforced_max(node, "a") == "hardware"


def test_auto_caps_by_software_while_the_driver_takes_no_rates(pods: Pods, node: LabNode) -> None:
    node.machine.cable("eth1", plugged=False)
    try:
        await_link(node, "eth1", up=False)
        pod = pods.add("a", max_tx_rate=8, **ELSEWHERE)
        assert "rate 8Mbit" in qdisc(node, pod)
        assert enforced_max(node, "a") == "software"
    finally:
        node.machine.cable("eth1", plugged=True)
        await_link(node, "eth1", up=True)
    assert programmed(node, "a") == (0, 0)
    assert "rate 8Mbit" in qdisc(node, pod)


def test_interface_without_a_cap_has_no_queueing_discipline_of_ours(pods: Pods, node: LabNode) -> None:
    assert "tbf" not in qdisc(node, pods.add("a"))
    assert enforced_max(node, "a") is None


def test_reservation_that_hardware_must_keep_is_refused(pods: Pods) -> None:
    with pytest.raises(CommandFailed, match="igb takes no minimum rates"):
        pods.add("a", min_tx_rate=10, enforce="hardware")


@pytest.mark.parametrize("enforce", ["auto", "software"])
def test_reservation_is_accounted_beside_a_cap(pods: Pods, node: LabNode, enforce: str) -> None:
    pods.add("a", min_tx_rate=4, max_tx_rate=8, enforce=enforce)
    (interface,) = node.interfaces("a")
    assert interface["enforced"]["min"] == "accounted"
    assert interface["set_min_tx_rate"] == 0


def test_vf_comes_home_without_its_cap(pods: Pods, node: LabNode) -> None:
    pods.add("a", max_tx_rate=8, enforce="software")
    pods.close()
    assert "tbf" not in node.machine.run("tc", "qdisc", "show").stdout


def await_link(node: LabNode, pf: str, *, up: bool) -> None:
    """Until the node says so."""
    end = time.monotonic() + READY_WITHIN_S
    while (link_mbps(node, pf) is not None) != up:
        assert time.monotonic() < end


def link_mbps(node: LabNode, pf: str) -> int | None:
    return next(each["link_mbps"] for each in node.report()["pfs"] if each["name"] == pf)


def remove_cap(endpoint: Endpoint) -> None:
    endpoint.run("tc", "qdisc", "delete", "dev", endpoint.ifname, "root")


def await_cap(endpoint: Endpoint) -> None:
    """Until the agent has looked."""
    endpoint.run(
        "bash", "-c", f"until tc qdisc show dev {endpoint.ifname} | grep -q '^qdisc tbf'; do sleep 0.5; done"
    )
