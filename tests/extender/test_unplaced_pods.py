"""Bound pods without a placement: the interfaces that are guessed for them, and for how long."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from msgspec.structs import replace

from extender.node_server import PF0, PF1, pf, report
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.node_source import facts_of
from k8s_rdma.extender.pod_requests import PodRequestCache
from k8s_rdma.extender.unplaced_pods import UnplacedPods
from k8s_rdma.kube.api import PodView
from k8s_rdma.wire.annotation import ANNOTATION
from k8s_rdma.wire.report_builder import PfReport

W1 = NodeName("w1")
PFS = (pf(PF0), pf(PF1, mbps=5_000))


def pod(name: str, *rates: int, asks: str | None = None) -> PodView:
    text = asks if asks is not None else json.dumps([{"min_tx_rate": rate} for rate in rates])
    return PodView(
        namespace="default",
        name=name,
        uid=PodUid(name),
        node=W1,
        finished=False,
        annotations={ANNOTATION: text},
    )


@dataclass
class Followed:
    now: float = 0.0
    guess_s: float = 0.0
    spent_s: float = 0.0
    pfs: tuple[PfReport, ...] = PFS
    state: ClusterState = field(init=False)
    unplaced: UnplacedPods = field(init=False)
    readings: int = 0

    def __post_init__(self) -> None:
        self.state = ClusterState(on_change=lambda node, _before, _after: self.unplaced.changed(node))
        self.unplaced = UnplacedPods(
            state=self.state, requests=PodRequestCache(), clock=lambda: self.now, processor=self.processor
        )

    def processor(self) -> float:
        """It is read before and after a guess."""
        self.readings += 1
        self.spent_s += self.guess_s * (self.readings % 2 == 0)
        return self.spent_s

    def told(self, **held: int) -> None:
        self.now += 1.0
        self.state.observe(W1, facts_of(report("w1", *self.pfs, held=held), W1), self.now)

    def holds(self, name: str) -> list[tuple[str, int]] | None:
        held = self.state.reservation(W1, PodUid(name))
        return None if held is None else [(each.pf, each.min_tx_rate_mbps) for each in held.interfaces]

    def used(self) -> int:
        return sum(used.mbps for used in self.state.snapshots[W1].used.values())


def test_bound_pod_without_a_placement_counts_its_request_once_it_is_seen():
    w = Followed()
    w.told()
    w.unplaced.on_bound(pod("p", 4_000), W1)
    w.unplaced.on_bound(pod("q", 9_000), W1)
    assert (w.holds("p"), w.holds("q")) == ([(PF1, 4_000)], [(PF0, 9_000)])


def test_bound_pod_in_the_network_of_its_node_is_not_counted():
    w = Followed()
    w.told()
    w.unplaced.on_bound(replace(pod("p", 4_000), host_network=True), W1)
    assert w.holds("p") is None
    assert w.used() == 0


def test_pods_seen_before_their_node_are_placed_with_its_first_report_in_their_order():
    w = Followed()
    for name, rate in (("p", 6_000), ("q", 4_000), ("r", 6_000)):
        w.unplaced.on_bound(pod(name, rate), W1)
    assert w.holds("p") is None
    w.told()
    assert (w.holds("p"), w.holds("q"), w.holds("r")) == ([(PF0, 6_000)], [(PF0, 4_000)], None)


def test_bound_pod_that_does_not_fit_is_not_counted_until_there_is_room():
    w = Followed()
    w.told(other=9_000)
    w.unplaced.on_bound(pod("p", 8_000), W1)
    assert w.holds("p") is None
    w.told()
    assert w.holds("p") == [(PF0, 8_000)]


def test_reported_interfaces_of_a_bound_pod_stay_counted_when_its_sandbox_dies():
    w = Followed()
    w.told()
    w.unplaced.on_bound(pod("p", 4_000), W1)
    w.told(p=4_000)  # on the first PF, not on the guessed one
    assert w.used() == 4_000
    w.told()
    assert w.holds("p") == [(PF0, 4_000)]
    assert w.used() == 4_000


def test_reported_part_of_a_request_does_not_count_as_the_whole():
    w = Followed()
    w.told()
    w.unplaced.on_bound(pod("p", 1_000, 2_000), W1)
    w.told(p=1_000)
    assert len(w.holds("p")) == 2


def test_reported_surplus_over_a_request_does_not_become_the_reservation_of_the_pod():
    w = Followed()
    w.told()
    w.unplaced.on_bound(pod("p", 4_000), W1)
    w.told(p=9_000)
    assert w.used() == 9_000
    assert w.holds("p") == [(PF0, 4_000)]


def test_reservation_of_an_unplaced_pod_ends_by_the_rule_of_all_reservations():
    w = Followed()
    w.told()
    w.unplaced.on_bound(pod("p", 4_000), W1)
    w.told(p=4_000)
    w.unplaced.on_delete(PodUid("p"))
    w.state.on_delete(PodUid("p"), w.now)
    assert w.used() == 4_000
    w.told(p=4_000)
    assert w.used() == 4_000
    w.told()
    assert w.used() == 0
    assert w.holds("p") is None


def test_pod_that_is_gone_before_it_fitted_never_holds_anything():
    w = Followed()
    w.told(other=9_000)
    w.unplaced.on_bound(pod("p", 8_000), W1)
    w.unplaced.retain([])
    w.told()
    assert w.holds("p") is None


def test_bound_pod_with_an_empty_or_malformed_request_is_not_counted():
    w = Followed()
    w.told()
    w.unplaced.on_bound(pod("p", asks=""), W1)
    w.unplaced.on_bound(pod("q", asks="["), W1)
    assert w.used() == 0


def test_as_many_as_a_node_can_have_are_placed_with_its_first_report():
    w = Followed(pfs=(pf(PF0, vfs=300, mbps=100_000),))
    for number in range(250):
        w.unplaced.on_bound(pod(f"p{number}", 10), W1)
    w.told()
    assert w.used() == 2_500


def test_pod_that_fits_holds_its_place_however_many_before_it_do_not():
    w = Followed()
    for number in range(20):
        w.unplaced.on_bound(pod(f"large-{number}", 90_000), W1)
    w.unplaced.on_bound(pod("first", 1_000), W1)
    for number in range(3):
        w.told(other=number)
    assert w.holds("first")
    w.unplaced.on_bound(pod("second", 1_000), W1)
    assert w.holds("second")


def test_guesses_on_a_node_take_no_more_than_their_budget_however_often_pods_come_and_go():
    w = Followed(guess_s=0.02)
    w.told()
    for number in range(100):
        w.unplaced.on_bound(pod(f"large-{number}", 90_000), W1)
        w.unplaced.on_delete(PodUid(f"large-{number}"))
    assert 0.5 <= w.spent_s <= 0.53
    w.unplaced.on_bound(pod("small", 1_000), W1)
    assert w.holds("small") is None
    w.now += 10.0
    w.told(other=1)
    assert w.holds("small")


def test_pods_beyond_the_possible_number_of_a_node_are_not_kept():
    w = Followed()
    for number in range(100):
        w.unplaced.on_bound(pod(f"large-{number}", asks='[{"count": 1024}]'), W1)
    w.unplaced.on_delete(PodUid("large-0"))
    w.unplaced.on_bound(pod("small", 1_000), W1)
    w.told()
    assert w.holds("small")
