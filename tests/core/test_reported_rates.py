"""Rates that a node reports as programmed, and the interfaces that count beside them."""

from __future__ import annotations

from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.reported_rates import ReportedRates
from k8s_rdma.core.types import PodUid
from packing_oracle import NODE, pci

POD, OTHER_POD = PodUid("p"), PodUid("q")


def on(pf: int, mbps: int, previous: int | None = None) -> PlacedInterface:
    return PlacedInterface(pf=pci(pf), min_tx_rate_mbps=mbps, previous_min_tx_rate_mbps=previous)


def promise(*interfaces: PlacedInterface, generation: int) -> Placement:
    return Placement(node=NODE, interfaces=interfaces, generation=generation)


def test_pod_that_is_missing_from_a_report_keeps_the_generation_of_an_earlier_one() -> None:
    rates = ReportedRates(reported={POD: (on(0, 1),)}, generations={POD: 3}, earlier={POD: 2, OTHER_POD: 5})
    assert [rates.programmed(uid) for uid in (POD, OTHER_POD, PodUid("r"))] == [3, 5, 0]


def test_reported_pod_is_settled_once_its_last_change_is_programmed() -> None:
    reported = {POD: (on(0, 100),), OTHER_POD: (on(0, 200),)}
    rates = ReportedRates(reported=reported, generations={POD: 1, OTHER_POD: 1})
    promises = {POD: promise(on(0, 100), generation=1), OTHER_POD: promise(on(0, 50, 200), generation=2)}
    assert rates.settled(promises) == {POD: reported[POD]}
    assert rates.settled({POD: promises[POD]}) == reported


def test_promise_counts_with_the_largest_reservation_until_it_is_programmed() -> None:
    changed = promise(on(0, 100, 300), generation=1)
    assert ReportedRates().counted({POD: changed}) == {POD: (on(0, 300),)}
    programmed = ReportedRates(reported={POD: (on(0, 100),)}, generations={POD: 1})
    assert programmed.counted({POD: changed}) == {POD: changed.interfaces}


def test_changing_pod_counts_also_on_the_pfs_that_its_agent_chose_instead() -> None:
    """The promised PF had no room when the agent placed the pod."""
    rates = ReportedRates(reported={POD: (on(0, 100), on(1, 100))})
    changed = promise(on(0, 400, 100), on(2, 400, 100), generation=1)
    assert rates.counted({POD: changed}) == {POD: (on(0, 400), on(2, 400), on(1, 100))}
