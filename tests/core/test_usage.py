"""Use of interfaces by constructed series whose answers are known."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.traffic import Losses
from k8s_rdma.core.usage import (
    CounterSeries,
    Distribution,
    HeldInterface,
    InterfaceUse,
    Reading,
    UnmetKind,
    intervals,
    use_of,
)

HELD = HeldInterface("w1", "enp3s0f0", "0000:03:00.0", 1, "default", "p", "rdma0")
STEP_S = 30.0
BYTES_A_MBPS = int(STEP_S * 125_000)
"""Bytes of 1 Mb/s in a step."""

DAY = 2880
"""Steps of a day."""


def series(counts: list[int], holder: HeldInterface = HELD, link_mbps: int | None = 100_000) -> CounterSeries:
    readings = [Reading(STEP_S * index, count, count, 0, 0, 300, 0) for index, count in enumerate(counts)]
    return CounterSeries(holder=holder, readings=readings, link_mbps=link_mbps)


def counters(mbps: list[int], start: int = 0) -> list[int]:
    return list(accumulate((BYTES_A_MBPS * rate for rate in mbps), initial=start))


def used(*found: CounterSeries, until_s: float | None = None) -> InterfaceUse:
    end_s = max(one.readings[-1].at_s for one in found) if until_s is None else until_s
    return use_of(found, 0.0, end_s)


def sent(found: CounterSeries) -> list[float | None]:
    return [each.sent_mbps for each in intervals(found)]


def test_constant_rate_is_every_quantile():
    found = used(series(counters([100] * 20)))
    assert set(found.sent or ()) == {100.0}
    assert (found.coverage.measured_s, found.coverage.gaps, found.coverage.restarts) == (600.0, 0, 0)
    assert (found.coverage.resolution_s, found.coverage.intervals) == (30.0, 20)


def test_bursts_are_in_the_maximum_and_not_in_the_median():
    found = used(series(counters([10] * 96 + [9_000] * 4)))
    assert found.sent is not None
    assert (found.sent.p50, found.sent.p95, found.sent.p99, found.sent.maximum) == (10, 10, 9_000, 9_000)


def test_diurnal_load_has_the_quantiles_of_its_hours():
    day = [2_000] * (DAY // 2) + [20_000] * (DAY // 3) + [40_000] * (DAY // 6)
    found = used(series(counters(day * 7)))
    assert found.sent is not None
    assert (found.sent.p50, found.sent.p95, found.sent.p99) == (2_000, 40_000, 40_000)
    assert found.distribution.share_up_to(20_000) == pytest.approx(5 / 6)
    assert found.coverage.measured_s == 7 * 86_400


def test_quantiles_count_time_and_not_readings():
    found = Distribution.ordered([(1.0, 1.0)] * 50 + [(9.0, 100.0)]).quantiles()
    assert found is not None
    assert found.p50 == 9.0


def test_time_without_readings_is_a_gap_and_not_idle():
    whole = series(counters([100] * 40))
    cut = CounterSeries(holder=HELD, readings=[*whole.readings[:10], *whole.readings[30:]], link_mbps=100_000)
    found = used(cut)
    assert set(found.sent or ()) == {100.0}
    assert (found.coverage.gaps, found.coverage.gap_s) == (1, 21 * STEP_S)
    assert found.coverage.measured_s + found.coverage.gap_s == found.coverage.span_s == 40 * STEP_S


def test_maximum_is_no_less_than_the_mean_of_a_gap():
    whole = series(counters([100] * 10 + [5_000] * 20 + [100] * 10))
    cut = CounterSeries(holder=HELD, readings=[*whole.readings[:11], *whole.readings[30:]], link_mbps=100_000)
    found = used(cut).sent
    assert found is not None
    assert (found.p999, found.maximum) == (100.0, 5_000.0)


def test_time_after_the_last_reading_is_a_gap_and_time_before_the_first_is_not():
    found = used(series(counters([100] * 10)), until_s=600.0).coverage
    assert (found.gaps, found.gap_s, found.span_s) == (1, 300.0, 600.0)
    late = CounterSeries(holder=HELD, readings=series(counters([100] * 10)).readings[4:])
    assert (used(late).coverage.gaps, used(late).coverage.span_s) == (0, 180.0)


def test_counter_that_begins_anew_is_a_restart_whose_interval_is_unknown():
    found = series([*counters([100] * 3, start=10**12), *counters([200] * 3)])
    assert sent(found) == [100, 100, 100, None, 200, 200, 200]
    coverage = used(found).coverage
    assert (coverage.restarts, coverage.unknown_s, coverage.measured_s) == (1, 30.0, 180.0)


def test_pod_made_anew_on_another_vf_continues_under_its_name():
    first = series(counters([100] * 5))
    moved = HELD._replace(node="w2", vf=7)
    second = CounterSeries(
        holder=moved,
        readings=[each._replace(at_s=each.at_s + 180.0) for each in series(counters([300] * 5)).readings],
    )
    found = used(second, first)
    assert found.holder == moved
    assert found.sent is not None
    assert (found.sent.p50, found.sent.maximum, found.coverage.restarts) == (100, 300, 1)
    assert (found.coverage.measured_s, found.coverage.gap_s) == (300.0, 30.0)


def test_counter_of_32_bits_is_followed_if_its_link_fills_it_once_at_most():
    at = 2**32 - 2 * BYTES_A_MBPS * 100
    wrapped = [count % 2**32 for count in counters([100] * 6, start=at)]
    assert sent(series(wrapped, link_mbps=1_000)) == [100] * 6
    assert used(series(wrapped, link_mbps=1_000)).coverage.restarts == 0
    assert sent(series(wrapped, link_mbps=100_000)) == [100, None, 100, 100, 100, 100]
    assert sent(series(wrapped, link_mbps=None)).count(None) == 1


def test_counter_of_64_bits_is_followed():
    wrapped = [count % 2**64 for count in counters([100] * 4, start=2**64 - BYTES_A_MBPS * 150)]
    assert sent(series(wrapped)) == [100] * 4


def test_counter_of_32_bits_on_a_fast_link_is_not_believed():
    wrapped = [count % 2**32 for count in counters([7_300] * 40)]
    found = used(series(wrapped))
    assert (found.sent, found.coverage.is_narrow, found.coverage.measured_s) == (None, True, 0.0)


def test_rate_that_the_link_has_not_is_unknown():
    assert sent(series([0, 1000, 2**62, 2**62 + 1000], link_mbps=10_000))[1] is None


def test_readings_of_one_time_are_one():
    readings = [Reading(0.0, 0), Reading(0.0, 0), Reading(10.0, 1_250_000), Reading(10.0, 1_250_000)]
    [found] = intervals(CounterSeries(holder=HELD, readings=readings))
    assert (found.seconds, found.sent_mbps) == (10.0, 1.0)


def test_one_reading_or_none_gives_no_usage():
    for readings in ([], [Reading(5.0, 7)]):
        found = use_of([CounterSeries(holder=HELD, readings=readings)], 0.0, 60.0)
        assert (found.sent, found.received, found.coverage.measured_s) == (None, None, 0.0)
        assert found.losses == Losses(None, None)


def capped(mbps: list[int], losses: list[int | None], reserved: int = 300, cap: int = 500) -> CounterSeries:
    sums: list[int | None] = [None if losses[0] is None else 0]
    for count in losses:
        before = sums[-1]
        sums.append(None if count is None or before is None else before + count)
    return CounterSeries(
        holder=HELD,
        readings=[
            Reading(STEP_S * index, count, None, dropped, None, reserved, cap)
            for index, (count, dropped) in enumerate(zip(counters(mbps), sums, strict=True))
        ],
    )


def test_usage_reports_time_at_the_cap_and_losses_in_it():
    found = used(capped([100, 480, 490, 100], [1, 20, 30, 4]))
    assert (found.at_cap_s, found.losses.dropped, found.losses_at_cap.dropped) == (60.0, 55, 50)
    assert found.unmet == ()
    assert found.counts_losses


def test_cap_that_binds_all_the_time_is_unmet_demand():
    found = used(capped([490] * 20, [None] * 20))
    [period] = found.unmet
    assert (period.kind, period.node, period.pf, period.from_s, period.to_s) == (
        UnmetKind.CAP,
        "w1",
        "enp3s0f0",
        0.0,
        600.0,
    )
    assert (period.sent_mbps, period.wanted_mbps, period.dropped) == (490.0, 500, None)
    assert found.unmet_s == {UnmetKind.CAP: 600.0, UnmetKind.RESERVATION: 0.0}
    assert not found.counts_losses


def test_reservation_is_not_met_while_packets_are_lost_below_it():
    found = used(capped([280] * 4 + [120] * 4 + [280] * 4, [0] * 4 + [50] * 4 + [0] * 4))
    [period] = found.unmet
    assert (period.kind, period.from_s, period.to_s) == (UnmetKind.RESERVATION, 120.0, 240.0)
    assert (period.sent_mbps, period.wanted_mbps, period.dropped) == (120.0, 300, 200)


def test_losses_in_one_long_interval_are_no_unmet_demand():
    found = capped([120] * 6, [0, 0, 50, 0, 0, 0])
    slow = [reading._replace(at_s=10 * reading.at_s) for reading in found.readings]
    assert used(CounterSeries(holder=HELD, readings=slow)).unmet == ()


@pytest.mark.parametrize(
    "losses",
    [[0] * 12, [None] * 12, [0] * 5 + [50] + [0] * 6],
    ids=["none", "not counted", "in one interval"],
)
def test_pod_that_sends_little_by_itself_has_no_unmet_demand(losses: list[int | None]):
    assert used(capped([120] * 12, losses)).unmet == ()


@given(
    rates=st.lists(st.integers(0, 900), min_size=2, max_size=60),
    starts=st.lists(st.integers(0, 2**40), min_size=1, max_size=4),
    missing=st.sets(st.integers(0, 200), max_size=30),
)
def test_known_rates_are_true_whatever_the_counters_did(
    rates: list[int], starts: list[int], missing: set[int]
):
    """Resets to any value between the parts, gaps anywhere: each known rate is within the true ones."""
    counts: list[int] = []
    truth: list[int | None] = []
    for start in starts:
        truth += [None] if counts else []
        counts += counters(rates, start)
        truth += rates
    readings = [Reading(STEP_S * index, count) for index, count in enumerate(counts) if index not in missing]
    found = CounterSeries(holder=HELD, readings=readings, link_mbps=1_000)
    for each in intervals(found):
        within = truth[int(each.from_s / STEP_S) : int(each.to_s / STEP_S)]
        if each.sent_mbps is not None and None not in within:
            assert each.sent_mbps == pytest.approx(sum(filter(None, within)) / len(within), abs=1e-6)
    coverage = use_of([found], 0.0, STEP_S * len(counts)).coverage
    parts = coverage.measured_s + coverage.unknown_s + coverage.gap_s
    assert parts == pytest.approx(coverage.span_s)
