"""Suggestions for rates, by uses whose right answer is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.test_usage import DAY, HELD, STEP_S, capped, counters
from k8s_rdma.core.recommendation import (
    FreedBandwidth,
    MeasuredInterface,
    Suggestion,
    Trust,
    Verdict,
    WorkloadName,
    advise,
    advise_workloads,
    duration_text,
    freed_by_pf,
    rate_text,
    rounded_up,
    share_text,
)
from k8s_rdma.core.usage import CounterSeries, HeldInterface, Reading, use_of

TRAIN = WorkloadName("default", "StatefulSet", "train")


def measured(
    mbps: list[int],
    *,
    reserved: int = 300,
    cap: int = 0,
    driver: str = "mlx5_core",
    holder: HeldInterface = HELD,
    link: int | None = 100_000,
) -> MeasuredInterface:
    readings = [
        Reading(STEP_S * index, count, 0, 0, 0, reserved, cap) for index, count in enumerate(counters(mbps))
    ]
    found = use_of([CounterSeries(holder=holder, readings=readings, link_mbps=link)], 0.0, STEP_S * len(mbps))
    return MeasuredInterface(workload=TRAIN, use=found, driver=driver)


def suggestion(mbps: list[int], **options: object) -> Suggestion:
    return advise(measured(mbps, **options)).suggestion  # type: ignore[arg-type]


def test_week_far_below_a_reservation_suggests_less_and_says_why():
    week = ([2_000] * (DAY - 10) + [9_100] * 10) * 7
    found = suggestion(week, reserved=40_000)
    assert (found.verdict, found.min_tx_rate_mbps, found.max_tx_rate_mbps) == (Verdict.LOWER, 12_000, 0)
    assert found.reason == (
        "sent at most 9.1 Gb/s of 40 Gb/s in 7 days: 12 Gb/s would have covered 100 % of the time; 28 Gb/s "
        "are held back from others"
    )
    assert (found.trust, found.trust_reasons) == (Trust.HIGH, ())


def test_pod_that_reserves_300_and_sends_100_gets_130_within_a_minute():
    found = suggestion([100] * 3, driver="virtual")
    assert (found.verdict, found.min_tx_rate_mbps, found.trust) == (Verdict.LOWER, 130, Trust.LOW)
    assert found.trust_reasons == ("measured for 90 s only",)


def test_spike_of_less_than_a_thousandth_is_not_reserved_for_and_its_share_is_said():
    found = suggestion([1_000] * 9_999 + [30_000], reserved=10_000)
    assert (found.min_tx_rate_mbps, found.covered) == (1_300, 0.9999)
    assert "sent at most 30 Gb/s of 10 Gb/s" in found.reason
    assert "would have covered 99.9 % of the time" in found.reason


def test_pod_that_sends_once_in_a_while_is_not_silent():
    found = suggestion([0] * (2 * DAY) + [200])
    assert (found.min_tx_rate_mbps, found.verdict) == (10, Verdict.LOWER)
    assert found.reason.startswith(
        "sent at most 200 Mb/s of 300 Mb/s in 2 days: 10 Mb/s would have covered 99.9 %"
    )


def test_pod_that_sends_more_than_it_reserves_gets_more():
    found = suggestion([100] * 50 + [900] * 50)
    assert (found.verdict, found.min_tx_rate_mbps) == (Verdict.RAISE, 1_200)
    assert found.reason.startswith("sent more than its 300 Mb/s for 50 % of 50 minutes, up to 900 Mb/s: ")
    bare = suggestion([100] * 50, reserved=0)
    assert (bare.verdict, bare.min_tx_rate_mbps) == (Verdict.RAISE, 130)
    assert bare.reason.startswith("sent without a reservation for 100 %")


def test_reservation_that_fits_stays():
    found = suggestion([240] * 100)
    assert (found.verdict, found.min_tx_rate_mbps) == (Verdict.FITS, 300)
    assert found.reason.endswith("the reservation fits")
    idle = suggestion([0] * 100, reserved=0)
    assert (idle.verdict, idle.min_tx_rate_mbps) == (Verdict.FITS, 0)
    assert idle.reason == "sent at most 0 Mb/s in 50 minutes: it needs no reservation"


def test_suggestion_is_no_more_than_link_and_cap():
    assert suggestion([9_500] * 50, reserved=1_000, link=10_000).min_tx_rate_mbps == 10_000
    assert suggestion([380] * 50, reserved=100, cap=450).min_tx_rate_mbps == 450


def test_cap_that_binds_is_doubled_or_dropped_and_the_demand_is_said_to_be_unknown():
    found = suggestion([100] * 50 + [490] * 50, reserved=100, cap=500)
    assert found.max_tx_rate_mbps == 1_000
    assert "it was at its cap of 500 Mb/s for 50 % of the time" in found.reason
    assert suggestion([490] * 50, reserved=100, cap=500, link=1_000).max_tx_rate_mbps == 0
    assert suggestion([100] * 50, reserved=100, cap=500).max_tx_rate_mbps == 500


@pytest.mark.parametrize(
    ("count", "measured"), [(0, "never"), (1, "for 30 s in 1 interval"), (2, "for 60 s in 2 intervals")]
)
def test_too_little_data_is_no_suggestion(count: int, measured: str):
    found = suggestion([100] * count)
    assert (found.verdict, found.min_tx_rate_mbps, found.trust) == (Verdict.UNKNOWN, None, Trust.NONE)
    assert f"measured {measured}; at least 3 intervals and 30 s are needed" in found.reason


def test_reservation_that_was_not_met_is_not_lowered():
    use = use_of([capped([120] * 20, [50] * 20)], 0.0, 600.0)
    found = advise(MeasuredInterface(workload=TRAIN, use=use, driver="mlx5_core")).suggestion
    assert (found.verdict, found.min_tx_rate_mbps) == (Verdict.UNMET, 300)
    assert found.reason.startswith("got less than its 300 Mb/s for 10 minutes while packets were dropped")


@pytest.mark.parametrize(
    ("driver", "doubt"), [("", "whether its driver counts"), ("bnxt_en", "whether bnxt_en counts")]
)
def test_driver_that_may_not_count_verbs_is_a_doubt(driver: str, doubt: str):
    found = suggestion([100] * DAY * 7, driver=driver)
    assert (found.min_tx_rate_mbps, found.trust) == (130, Trust.LOW)
    assert found.trust_reasons == (f"{doubt} RDMA is not known",)
    silent = suggestion([0] * DAY, driver=driver)
    assert (silent.min_tx_rate_mbps, silent.verdict) == (None, Verdict.UNKNOWN)
    assert silent.reason.endswith("it may send by verbs alone")


def test_idle_pod_holds_its_whole_reservation_back():
    found = suggestion([0] * DAY)
    assert (found.verdict, found.min_tx_rate_mbps) == (Verdict.LOWER, 0)
    assert found.reason == "sent nothing in 1 day: 300 Mb/s are held back from others"
    brief = suggestion([0] * 100)
    assert (brief.verdict, brief.min_tx_rate_mbps) == (Verdict.UNKNOWN, None)
    assert brief.reason.endswith("it sent nothing, which says little of less than a day")


@pytest.mark.parametrize(
    ("days", "trust"), [(0.5, Trust.LOW), (1, Trust.MEDIUM), (3, Trust.MEDIUM), (7, Trust.HIGH)]
)
def test_confidence_is_by_time(days: float, trust: Trust):
    assert suggestion([100] * int(DAY * days)).trust is trust


def test_gaps_and_restarts_are_said():
    whole = [100] * (DAY * 8)
    found = measured(whole)
    readings = [
        Reading(STEP_S * index, count - (index >= 4 * DAY) * 10**12, 0, 0, 0, 300, 0)
        for index, count in enumerate(counters(whole))
        if not DAY < index < 3 * DAY
    ]
    use = use_of([CounterSeries(holder=HELD, readings=readings)], 0.0, STEP_S * len(whole))
    doubtful = advise(replace(found, use=use)).suggestion
    assert doubtful.trust is Trust.MEDIUM
    assert doubtful.trust_reasons == (
        "measured for 6 days only",
        "25.1 % of the time is not known (1 gap)",
        "counters began anew once",
    )


def test_workload_gets_the_rate_of_its_largest_pod():
    pods = [
        measured([rate] * 100, reserved=1_000, holder=HELD._replace(pod=f"train-{number}", node=f"w{number}"))
        for number, rate in enumerate((100, 400, 50))
    ]
    [found] = advise_workloads(pods)
    assert found.suggestion.min_tx_rate_mbps == 520
    assert found.suggestion.reason.startswith("train-1, which needs most of 3 pods, sent at most 400 Mb/s of")
    assert (found.reserved_mbps, found.freed_mbps) == (3_000, 3 * 480)
    assert found.freed == tuple(FreedBandwidth(f"w{n}", "enp3s0f0", "0000:03:00.0", 480) for n in range(3))
    assert found.sent is not None
    assert (found.sent.p50, found.sent.maximum) == (100, 400)


def test_pod_of_a_workload_that_could_not_be_judged_lowers_the_confidence():
    pods = [measured([100] * DAY * 7), measured([], holder=HELD._replace(pod="q"))]
    [found] = advise_workloads(pods)
    assert found.suggestion.min_tx_rate_mbps == 130
    assert found.suggestion.trust is Trust.LOW
    assert found.suggestion.trust_reasons == ("1 of 2 pods could not be judged",)
    assert found.freed_mbps == 2 * 170


def test_workloads_that_hold_most_back_come_first_and_free_it_by_pf():
    web = WorkloadName("a", "Deployment", "web")
    big = replace(measured([100] * 50, reserved=5_000, holder=HELD._replace(pod="w")), workload=web)
    advice = advise_workloads([measured([100] * 50), big])
    assert [each.workload.name for each in advice] == ["web", "train"]
    assert freed_by_pf(advice) == (FreedBandwidth("w1", "enp3s0f0", "0000:03:00.0", 4_870 + 170),)


@given(
    mbps=st.lists(st.integers(1, 90_000), min_size=3, max_size=40),
    reserved=st.integers(0, 100_000),
    cap=st.integers(0, 100_000),
)
def test_suggestion_covers_sent_traffic_and_stays_within_link_and_cap(
    mbps: list[int], reserved: int, cap: int
):
    found = suggestion(mbps, reserved=reserved, cap=max(cap, reserved) if cap else 0)
    assert found.min_tx_rate_mbps is not None
    minimum, maximum = found.min_tx_rate_mbps, found.max_tx_rate_mbps
    assert maximum is not None
    assert not maximum or minimum <= maximum
    assert minimum <= max(100_000, reserved)
    if found.verdict in (Verdict.LOWER, Verdict.RAISE) and not maximum:
        assert found.covered is not None
        assert found.covered >= 0.999 - 1e-9


@pytest.mark.parametrize(
    ("mbps", "rounded"), [(0, 0), (0.7, 10), (130, 130), (131, 140), (1_001, 1_100), (11_830, 12_000)]
)
def test_rates_are_rounded_up(mbps: float, rounded: int):
    assert rounded_up(mbps) == rounded


def test_figures_in_sentences():
    assert [rate_text(rate) for rate in (0, 0.4, 99.6, 300, 9_100, 40_000)] == [
        "0 Mb/s",
        "0.4 Mb/s",
        "100 Mb/s",
        "300 Mb/s",
        "9.1 Gb/s",
        "40 Gb/s",
    ]
    assert [share_text(share) for share in (0, 0.00001, 0.5, 0.99999, 1)] == [
        "0 %",
        "0.1 %",
        "50 %",
        "99.9 %",
        "100 %",
    ]
    assert [duration_text(each) for each in (45, 90, 600, 3_600, 86_400, 604_800)] == [
        "45 s",
        "90 s",
        "10 minutes",
        "1 hour",
        "1 day",
        "7 days",
    ]
