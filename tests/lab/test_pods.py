"""Pods of the real containerd: placed on one of two nodes by our extender, given VFs there by our plugin."""

from __future__ import annotations

import json

import pytest

from tests.lab.cluster import Cluster, until
from tests.lab.pods_image import pod
from tests.lab.seen import held, programmed

pytestmark = pytest.mark.long

PLACEMENT = "k8s-rdma.io/placement"


def test_pods_get_their_interfaces_on_the_pfs_of_their_placement(cluster: Cluster) -> None:
    none, one, three = cluster.start(
        pod("none"),
        pod("one", {"min_tx_rate": 300, "max_tx_rate": 500}),
        pod("three", {"min_tx_rate": 400, "max_tx_rate": 450}, {"max_tx_rate": 100}, {"min_tx_rate": 700}),
    )
    assert set(none.links()) == {"eth0"}
    assert set(one.links()) == {"eth0", "rdma0"}
    assert set(three.links()) == {"eth0", "rdma0", "rdma1", "rdma2"}
    assert programmed(one) == {"rdma0": (0, 500)}
    assert programmed(three) == {"rdma0": (0, 450), "rdma1": (0, 100), "rdma2": (0, 0)}
    for each in (one, three):
        ours = {name: ip for name, ip in each.addresses().items() if name != "eth0"}
        assert all(ip.startswith(f"10.56.{each.node.site.number}.") for ip in ours.values())
        assert len(set(ours.values())) == len(ours) == len(each.links()) - 1
        interfaces = held(each)
        assert {given["enforced"]["min"] for given in interfaces if given["min_tx_rate"]} == {"accounted"}
        placed = json.loads(cluster.get(each.name)["metadata"]["annotations"][PLACEMENT])
        assert placed["node"] == each.node.name
        assert [given["pf"] for given in interfaces] == [want["pf"] for want in placed["interfaces"]]


def test_pod_that_fits_nowhere_waits_and_starts_when_there_is_room(cluster: Cluster) -> None:
    halves = [pod(f"half-{number}", {"min_tx_rate": 600}, {"min_tx_rate": 600}) for number in (1, 2)]
    cluster.start(*halves)
    cluster.create(pod("late", {"min_tx_rate": 500}))
    told = until("late is refused", lambda: cluster.events("late").get("FailedScheduling"))
    assert "0/2 nodes are available" in told
    assert "needs 1 interface of 500 Mb/s" in told
    cluster.end("half-1")
    late = cluster.await_running("late")
    assert list(programmed(late)) == ["rdma0"]
