"""Rates between two samples of a node's counters."""

from __future__ import annotations

import pytest

from k8s_rdma.core.traffic import ByteCounts, CounterSample, MeanRates, Meter, VfHolder

A = VfHolder(pf="enp3s0f0", pci="0000:03:00.0", vf=1, namespace="default", pod="a", interface="rdma0")
B = A._replace(pod="b")


def sample(sampled_at: float, sent: int, received: int, holder: VfHolder = A) -> CounterSample:
    counts = {holder: ByteCounts(sent, received)}
    return CounterSample(sampled_at=sampled_at, counts=counts, programmed={})


def test_rates_are_those_between_two_samples():
    assert sample(110.0, 3_500_000, 500).rates(sample(100.0, 1_000_000, 500)) == {A: MeanRates(2.0, 0.0)}


@pytest.mark.parametrize(("sent", "received"), [(0, 900), (2_000, 0)])
def test_rate_of_a_counter_that_began_anew_is_unknown(sent: int, received: int):
    assert sample(110.0, sent, received).rates(sample(100.0, 1_000, 500)) == {}


def test_counters_of_a_vf_with_a_new_holder_do_not_count_for_the_former_pod():
    assert sample(110.0, 9_000, 9_000, B).rates(sample(100.0, 1_000, 500, A)) == {}


def test_rate_that_no_link_has_is_unknown():
    assert sample(101.0, 2**64 - 1, 0).rates(sample(100.0, 0, 0)) == {}


def test_meter_takes_samples_of_one_time_for_one():
    meter = Meter()
    meter.add(sample(100.0, 0, 0))
    assert meter.rates() == {}
    meter.add(sample(100.4, 1_000_000, 0))
    assert meter.rates() == {}
    meter.add(sample(110.0, 2_500_000, 0))
    assert meter.rates() == {A: MeanRates(2.0, 0.0)}


def test_meter_begins_anew_after_a_sample_that_is_missing():
    meter = Meter()
    for each in (sample(100.0, 0, 0), sample(115.0, 1, 0), None, sample(130.0, 2, 0)):
        meter.add(each)
    assert meter.rates() == {}
