"""Room for more pods with other reservations, on clusters small enough to know it without the code."""

from __future__ import annotations

from extender.node_server import PF0
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.planning.right_sizing import ResizedInterface, room_after
from k8s_rdma.planning.whatif import Difference
from planning.small_clusters import TWO_NODES, holder, manifest, planned, read_workloads

SHAPE = read_workloads(manifest(4_000))


def resized(now: int, then: int, uid: str = "a", node: str = "w2") -> ResizedInterface:
    return ResizedInterface(PodUid(uid), NodeName(node), PF0, now, then)


def test_lower_reservation_makes_room_for_more_pods():
    cluster = planned(*TWO_NODES, pods=(holder("a", "w2", 6_000),))
    [found] = room_after(cluster, [resized(6_000, 2_000)], SHAPE)
    assert (found.now, found.then) == (3, 4)
    assert [room_after(cluster, [], SHAPE)] == [(Difference(shape=found.shape, now=3, then=3),)]


def test_higher_reservation_takes_room():
    cluster = planned(*TWO_NODES, pods=(holder("a", "w2", 6_000),))
    [found] = room_after(cluster, [resized(6_000, 7_000)], SHAPE)
    assert (found.now, found.then) == (3, 2)


def test_interfaces_that_the_cluster_lacks_do_not_count():
    cluster = planned(*TWO_NODES, pods=(holder("a", "w2", 6_000),))
    strangers = [resized(6_000, 0, uid="b"), resized(6_000, 0, node="w9"), resized(5_000, 0)]
    [found] = room_after(cluster, strangers, SHAPE)
    assert found.then == found.now == 3
