"""Answers about clusters small enough to know them without the code."""

from __future__ import annotations

import json

import pytest

from extender.node_server import PF0, PF1, pf
from k8s_rdma.core.types import Strategy
from k8s_rdma.errors import MalformedError
from k8s_rdma.planning.whatif import ClusterChanges, Move, PlannedFailures, fit, headroom, lose, with_changes
from planning.small_clusters import TWO_NODES, asks, holder, manifest, node, planned, read_workloads


def test_pods_that_fit_go_to_the_fuller_node_first():
    answer = fit(planned(*TWO_NODES), read_workloads(manifest(4_000, replicas=3)))
    assert answer.fits
    assert answer.workloads[0].nodes == {"w2": 1, "w1": 2}


def test_pods_beyond_the_cluster_are_counted_with_the_obstacles():
    [found] = fit(planned(*TWO_NODES), read_workloads(manifest(4_000, replicas=3), count=5)).workloads
    assert (found.count, found.placed, found.fits) == (5, 3, False)
    assert sum(found.obstacles.values()) == 2
    assert all("Mb/s" in why for why in found.obstacles)


def test_gang_gets_all_its_places_or_none():
    gang = {"scheduling.x-k8s.io/pod-group": "g"}
    cluster = planned(*TWO_NODES)
    text = "\n---\n".join((manifest(4_000, replicas=4, labels=gang), manifest(10_000)))
    first, second = fit(cluster, read_workloads(text)).workloads
    assert (first.placed, first.nodes) == (0, {})
    assert second.nodes == {"w1": 1}
    assert fit(cluster, read_workloads(manifest(4_000, replicas=3, labels=gang))).fits


def groups(number: int, leader: int, worker: int) -> str:
    """A LeaderWorkerSet of groups of three that is bound group by group. leader, worker: Mb/s of each."""
    pods = {
        f"{role}Template": {"metadata": {"annotations": asks(rate)}, "spec": {}}
        for role, rate in (("leader", leader), ("worker", worker))
    }
    spec = {"replicas": number, "scheduling": {}, "leaderWorkerTemplate": {"size": 3, **pods}}
    document = {"kind": "LeaderWorkerSet", "metadata": {"name": "serve", "namespace": "team"}, "spec": spec}
    return json.dumps(document)


def test_every_gang_of_several_gets_all_its_places_or_none():
    """Of 14 Gb/s, 10 on one node, two groups take 10; the third lacks room for its second worker."""
    cluster = planned(*TWO_NODES)
    leader, worker = fit(cluster, read_workloads(groups(3, 1_000, 2_000))).workloads
    assert (leader.count, leader.placed, worker.count, worker.placed) == (3, 2, 6, 4)
    assert sum(leader.nodes.values()) == 2
    assert sum(worker.nodes.values()) == 4
    assert leader.obstacles
    assert worker.obstacles
    assert fit(cluster, read_workloads(groups(2, 1_000, 2_000))).fits


def test_group_that_fits_follows_one_that_does_not():
    text = "\n---\n".join((groups(2, 1_000, 6_000), manifest(10_000)))
    leader, worker, single = fit(planned(*TWO_NODES), read_workloads(text)).workloads
    assert (leader.placed, worker.placed, single.placed) == (0, 0, 1)


def test_workloads_of_one_manifest_take_room_from_each_other():
    text = "\n---\n".join((manifest(10_000), manifest(10_000)))
    answer = fit(planned(*TWO_NODES), read_workloads(text))
    assert [found.placed for found in answer.workloads] == [1, 0]
    assert not answer.fits


def test_headroom_is_by_node_and_stranded_capacity_by_pf():
    cluster = planned(
        node("w1", pf(PF0, vfs=2), pf(PF1, vfs=4, mbps=5_000)),
        node("w2", pf(PF0, vfs=1), held={"a": 3_000}),
        node("w3", pf(PF0, vfs=3), held={"b": 10_000}),
    )
    answer = headroom(cluster, read_workloads(manifest(2_000)))
    [room] = answer.shapes
    assert (room.pods, room.nodes, room.most_on_a_node) == (4, 1, 4)
    assert {(entry.node, entry.mbps, entry.vfs) for entry in answer.stranded} == {
        ("w2", 7_000, 0),
        ("w3", 0, 2),
    }


def test_pods_of_a_lost_node_go_elsewhere_the_important_ones_first():
    cluster = planned(
        node("w1", held={"low": 4_000, "high": 4_000}),
        node("w2", pf(vfs=1)),
        pods=(holder("low", "w1", 4_000), holder("high", "w1", 4_000, priority=5)),
    )
    answer = lose(cluster, PlannedFailures(nodes=("w1",)))
    assert not answer.fits
    first, second = answer.moves
    assert (first.pod, first.node, first.to) == ("team/high", "w1", "w2")
    assert (second.pod, second.to) == ("team/low", "")
    assert "VFs" in second.why


def test_a_lost_pf_moves_its_pods_and_a_lost_link_those_that_reserve():
    cluster = planned(
        node("w1", pf(PF0), pf(PF1), held={"reserves": 4_000, "plain": 0}),
        pods=(holder("reserves", "w1", 4_000), holder("plain", "w1", 0)),
    )
    moved = lose(cluster, PlannedFailures(pfs=("w1/enp3s0f0",))).moves
    assert moved == (
        Move(pod="team/reserves", node="w1", to="w1"),
        Move(pod="team/plain", node="w1", to="w1"),
    )
    assert [move.pod for move in lose(cluster, PlannedFailures(links=(f"w1/{PF0}",))).moves] == [
        "team/reserves"
    ]
    assert lose(cluster, PlannedFailures(pfs=("w1/enp3s0f1",))).moves == ()


@pytest.mark.parametrize(
    "losses", [PlannedFailures(nodes=("w9",)), PlannedFailures(pfs=("w1",)), PlannedFailures(links=("w1/x",))]
)
def test_losses_must_exist(losses: PlannedFailures):
    with pytest.raises(MalformedError, match=r"w9|w1"):
        lose(planned(*TWO_NODES), losses)


@pytest.mark.parametrize(
    ("changes", "then"),
    [
        (ClusterChanges(), 7),
        (ClusterChanges(vfs=1), 1),
        (ClusterChanges(vfs=16), 14),
        (ClusterChanges(headroom_percent=50), 4),
        (ClusterChanges(nodes=2, like="w2"), 15),
        (ClusterChanges(strategy=Strategy.SPREAD), 7),
    ],
)
def test_changes_are_compared_side_by_side(changes: ClusterChanges, then: int):
    answer = with_changes(planned(*TWO_NODES), changes, read_workloads(manifest(1_000)))
    [found] = answer.shapes
    assert (found.now, found.then) == (7, then)


def test_capacity_below_the_usage_of_pods_is_reported():
    answer = with_changes(planned(*TWO_NODES), ClusterChanges(headroom_percent=50), ())
    assert not answer.fits
    assert answer.overcommitted == ("w2/enp3s0f0: 6000 of 5000 Mb/s in use",)


def test_new_nodes_take_the_name_of_no_other():
    nodes = (node("w1"), node("w1-new-1"), node("w1-new-2", unschedulable=True))
    answer = with_changes(
        planned(*nodes), ClusterChanges(nodes=3, like="w1"), read_workloads(manifest(1_000))
    )
    [found] = answer.shapes
    assert (found.now, found.then) == (8, 20)


def test_new_nodes_need_a_model():
    with pytest.raises(MalformedError, match="there is none of that name"):
        with_changes(planned(*TWO_NODES), ClusterChanges(nodes=1), ())
