"""Running pods when the container runtime, or a process that it runs, is killed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.cluster import Cluster, Pod, until
from tests.lab.pods_image import pod
from tests.lab.seen import held, programmed

pytestmark = pytest.mark.long

WISHES = ({"min_tx_rate": 200, "max_tx_rate": 300}, {"max_tx_rate": 100})
PROGRAMMED = {"rdma0": (0, 300), "rdma1": (0, 100)}


def rates(pod: Pod) -> list[tuple[str, int, int]]:
    """Return a pod's interfaces in the agent's report."""
    return [(each["pf"], each["min_tx_rate"], each["max_tx_rate"]) for each in held(pod)]


def assert_whole(pod: Pod) -> None:
    """It has its requested interfaces once, programmed, with an address of its own for each interface."""
    assert programmed(pod) == PROGRAMMED
    addresses = pod.addresses()
    assert set(addresses) == {"eth0", *PROGRAMMED}
    leases = pod.node.leases("pods-rdma")
    assert sorted(leases) == sorted(addresses[name] for name in PROGRAMMED)


def test_sandbox_that_was_killed_is_made_anew_with_the_same_placement(cluster: Cluster) -> None:
    (first,) = cluster.start(pod("killed", *WISHES))
    before = rates(first)
    first.node.ctr("tasks", "kill", "--signal", "KILL", first.sandbox)
    second = cluster.await_running("killed", other_than=first.sandbox)
    assert second.node is first.node
    assert rates(second) == before
    assert_whole(second)


def test_namespace_that_was_killed_gives_its_vfs_back_and_the_pod_gets_others(cluster: Cluster) -> None:
    (first,) = cluster.start(pod("unspaced", *WISHES))
    machine = first.node.machine
    for task in (first.container, first.sandbox):
        first.node.ctr("tasks", "kill", "--signal", "KILL", task)
    machine.run("bash", "-c", f"umount --lazy {first.netns}; rm -f {first.netns}")
    second = cluster.await_running("unspaced", other_than=first.sandbox)
    assert second.netns != first.netns
    assert_whole(second)


def test_containerd_that_is_killed_takes_no_vfs_along(cluster: Cluster) -> None:
    (before,) = cluster.start(pod("stays", *WISHES))
    node = before.node
    node.processes["containerd"].kill()
    assert_whole(before)
    node.start_containerd()
    after = cluster.await_running("stays")
    assert (after.sandbox, after.container) == (before.sandbox, before.container)
    (other,) = cluster.start(pod("later", {"max_tx_rate": 50}, node=node.name))
    answered = other.run(
        "ping", "-c", "1", "-W", "10", "-I", "rdma0", before.addresses()["rdma0"], check=False
    )
    assert answered.returncode == 0, answered.stdout + answered.stderr
    cluster.end("stays", "later")
    until("containerd has let go of both", lambda: not sandboxes(node))


def sandboxes(node: Any) -> list[str]:
    """Of which anything runs."""
    return node.ctr("tasks", "list", "--quiet").stdout.split()
