"""The cluster in memory decides as `place` does on every node, and counts as the ledger's rule does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from core.test_offers import loaded
from k8s_rdma.core.pf_use import NOTHING_USED, total
from k8s_rdma.core.placement import Placement, Rejection, place, score
from k8s_rdma.core.request import PfPolicy, Request
from k8s_rdma.core.types import NodeName, PodUid, Strategy
from k8s_rdma.planning.cluster import Cluster, Fit, PlannedNode
from packing_oracle import inventory, request
from placement_oracle import REQUESTS, nodes

if TYPE_CHECKING:
    from placement_oracle import Situation

W1, W2 = NodeName("w1"), NodeName("w2")


def one_node(situation: Situation, strategy: Strategy = Strategy.BINPACK) -> Cluster:
    hardware, foreign = situation
    cluster = Cluster(strategy)
    cluster.add_node(W1, PlannedNode(hardware, foreign))
    return cluster


def two_nodes(*pfs: tuple[int | None, int], strategy: Strategy = Strategy.BINPACK) -> Cluster:
    cluster = Cluster(strategy)
    for name in (W1, W2):
        cluster.add_node(name, PlannedNode(replace(inventory(*pfs), node=name)))
    return cluster


def bound(cluster: Cluster, uid: str, wanted: Request, name: NodeName) -> Placement:
    placement = cluster.place(wanted, name)
    assert isinstance(placement, Placement), placement
    cluster.bind(PodUid(uid), placement)
    return placement


@given(REQUESTS, nodes(), st.sampled_from(PfPolicy), st.sampled_from(Strategy))
def test_judgement_is_that_of_place_and_score(
    wanted: Request, situation: Situation, policy: PfPolicy, strategy: Strategy
) -> None:
    wanted = replace(wanted, policy=policy)
    cluster = one_node(situation, strategy)
    hardware, used = situation
    found = place(wanted, hardware, used, strategy=strategy)
    fit = cluster.fit(wanted, cluster.state(W1))
    assert cluster.place(wanted, W1) == found
    if isinstance(found, Rejection):
        assert fit is None
    else:
        assert fit == Fit(score(found, hardware, used, strategy))


@given(REQUESTS, nodes(), st.sampled_from(Strategy))
def test_room_is_the_number_of_pods_that_can_be_bound(
    wanted: Request, situation: Situation, strategy: Strategy
) -> None:
    cluster = one_node(situation, strategy)
    room = cluster.room_for(wanted, cluster.state(W1), 100)
    for number in range(room):
        bound(cluster, f"p{number}", wanted, W1)
    assert isinstance(cluster.place(wanted, W1), Rejection)


def test_room_on_loaded_nodes_is_the_number_of_pods_that_can_be_bound() -> None:
    """Also if minimum rates are weights, as on mlx5."""
    compared = 0
    for seed in range(150):
        wanted, situation = loaded(seed)
        cluster = one_node(situation)
        room = cluster.room_for(wanted, cluster.state(W1), 200)
        count = 0
        while count < 200 and isinstance(found := cluster.place(wanted, W1), Placement):
            cluster.bind(PodUid(f"p{count}"), found)
            count += 1
        assert room == count
        compared += bool(room)
    assert compared > 50


@given(st.lists(REQUESTS, max_size=4), nodes())
def test_use_after_binds_and_releases_is_the_sum_of_the_pods_there(
    requests: list[Request], situation: Situation
) -> None:
    cluster = one_node(situation)
    _, foreign = situation
    empty = cluster.state(W1)
    placed = {}
    for number, wanted in enumerate(requests):
        found = cluster.place(wanted, W1)
        if isinstance(found, Placement):
            cluster.bind(PodUid(str(number)), found)
            placed[PodUid(str(number))] = found
    expected = total(foreign, *(found.usage(cluster.node(W1).inventory) for found in placed.values()))
    used = cluster.state(W1).used
    assert {pci: used.get(pci, NOTHING_USED) for pci in expected} == expected
    for uid in placed:
        cluster.release(uid, W1)
    assert cluster.state(W1) is empty


def test_equal_nodes_share_one_state() -> None:
    cluster = two_nodes((100, 4))
    assert cluster.state(W1) is cluster.state(W2)
    bound(cluster, "a", request(40), W1)
    assert cluster.state(W1) is not cluster.state(W2)
    bound(cluster, "b", request(40), W2)
    assert cluster.state(W1) is cluster.state(W2)


def test_best_node_is_the_fuller_one_under_binpack_and_the_emptier_one_under_spread() -> None:
    for strategy, best in ((Strategy.BINPACK, W2), (Strategy.SPREAD, W1)):
        cluster = two_nodes((100, 4), strategy=strategy)
        bound(cluster, "a", request(40), W2)
        assert cluster.best(request(40)) == best
        assert cluster.best(request(40), [W1]) == W1
        assert cluster.best(request(200)) is None


def test_copy_is_changed_apart_from_its_original() -> None:
    cluster = two_nodes((100, 4))
    bound(cluster, "a", request(40), W1)
    copied = cluster.copy()
    bound(copied, "b", request(40), W1)
    copied.remove_node(W2)
    assert cluster.pods() == {PodUid("a"): W1}
    assert copied.pods() == {PodUid("a"): W1, PodUid("b"): W1}
    assert list(cluster) == [W1, W2]
    assert isinstance(cluster.place(request(60), W1), Placement)
    assert isinstance(copied.place(request(60), W1), Rejection)


def test_copy_for_another_strategy_decides_by_that() -> None:
    cluster = two_nodes((100, 4))
    bound(cluster, "a", request(40), W2)
    assert cluster.best(request(40)) == W2
    assert cluster.copy(Strategy.SPREAD).best(request(40)) == W1
