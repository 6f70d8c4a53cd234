"""`k8s-rdma verify node` on igb: QEMU's card takes caps without effect, software's caps hold.

Both are shown by one node: eth0's rule demands software's caps, eth1's leaves them to the driver.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lab.report.node import LabNode

if TYPE_CHECKING:
    from lab.machine import Machine

CAP = 8
"""Low enough for RDMA writes of an emulated machine, which carries some 50 Mb/s of them."""

PFS = [{"names": ["eth0"], "numVfs": 4, "enforce": "software"}, {"names": ["eth1"], "numVfs": 4}]


@pytest.fixture(scope="module")
def node(machine: Machine) -> LabNode:
    made = LabNode(machine, "w1", {"pfs": PFS})
    made.start_without_server()
    return made


def verify(node: LabNode, pf: str, peer: str, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit status, and the checks of the report."""
    report = node.machine.shared / f"verified-{pf}.json"
    command = ("k8s-rdma", "verify", "node", "--pf", pf, "--receiver-pf", peer, "--cap", str(CAP), *options)
    ended = node.machine.run(*command, "--report", f"/lab/{report.name}", check=False, timeout_s=600)
    assert report.exists(), ended.stdout + ended.stderr
    [card] = json.loads(report.read_text())["cards"]
    assert (card["driver"], card["device"]) == ("igb", "8086:10c9")
    return ended.returncode, card["checks"]


def test_verify_passes_if_software_keeps_caps_of_tcp_and_of_verbs(node: LabNode) -> None:
    status, checks = verify(node, "eth0", "eth1", "--soft-roce")
    results = [(check["traffic"], check["check"], check["enforced"], check["result"]) for check in checks]
    assert results == [
        *[("tcp", "reservation", "accounted", "unclaimed")] * 3,
        ("tcp", "cap", "software", "pass"),
        ("tcp", "received under a cap", None, "unclaimed"),
        ("verbs", "cap", "software", "pass"),
        ("verbs", "received under a cap", None, "unclaimed"),
    ], checks
    assert status == 0


def test_verify_fails_if_the_card_shows_a_cap_and_does_not_keep_it(node: LabNode) -> None:
    status, checks = verify(node, "eth1", "eth0")
    [cap] = [check for check in checks if check["check"] == "cap"]
    assert (cap["enforced"], cap["result"], cap["why"]) == ("hardware", "fail", "more than the cap"), cap
    assert status == 1
