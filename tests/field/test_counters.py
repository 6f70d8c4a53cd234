"""Counters and metrics as exporters and drivers of others gave them."""

from __future__ import annotations

import pytest

from k8s_rdma.core.recommendation import MeasuredInterface, Trust, WorkloadName, advise
from k8s_rdma.core.traffic import ByteCounts, CounterSample, MeanRates, Meter, VfHolder
from k8s_rdma.core.usage import CounterSeries, HeldInterface, Reading, intervals, use_of
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.node_metrics import CounterReader

HOLDER = VfHolder(pf="p", pci="0000:d8:00.0", vf=0, namespace="n", pod="a", interface="rdma0")


def meter(*sent: int) -> Meter:
    """A meter of a counter that is read every 15 s."""
    found = Meter()
    for index, count in enumerate(sent):
        counts = {HOLDER: ByteCounts(count, 0)}
        found.add(CounterSample(sampled_at=15.0 * index, counts=counts, programmed={}))
    return found


@pytest.mark.parametrize(
    ("sent", "rates"),
    [
        ((10_000_000_000, 0, 10_001_875_000), {}),
        ((10_000_000_000, 0, 10_001_875_000, 10_003_750_000), {HOLDER: MeanRates(1.0, 0.0)}),
        ((10_000_000_000, 0, 1_875_000), {HOLDER: MeanRates(1.0, 0.0)}),
    ],
    ids=["back at once", "then as before", "began anew"],
)
def test_counter_that_is_0_now_and_then_is_no_burst(sent: tuple[int, ...], rates: dict[VfHolder, MeanRates]):
    """VFs' bytes are 0 or missing in some scrapes, and right in the next ones.

    Source: https://github.com/k8snetworkplumbingwg/sriov-network-metrics-exporter/issues/20
    """
    assert meter(*sent).rates() == rates


@pytest.mark.parametrize(
    ("interface", "name"),
    [
        # https://github.com/prometheus-community/windows_exporter/issues/919
        (r"MSC20\AUCTI", None),
        # https://github.com/timescale/pg_prometheus/pull/53
        (r"F:\\", "F:\\"),
        # https://github.com/cnieg/gitlab-tokens-exporter/issues/221
        ('14" registry R/W', None),
    ],
)
def test_labels_that_exporters_wrote_are_read_or_refused_and_never_cut(interface: str, name: str | None):
    labels = f'interface="{interface}",namespace="n",pci="0000:d8:00.0",pf="p",pod="a",vf="0"'
    reader = CounterReader(max_vfs=1)
    for metric in ("transmitted", "received"):
        reader.feed(f"k8s_rdma_vf_{metric}_bytes_total{{{labels}}} 1\n".encode())
    reader.feed(b'k8s_rdma_sample_age_seconds{node="w1"} 1\n')
    if name is None:
        with pytest.raises(MalformedError, match="no sample"):
            reader.sample(10.0)
        return
    found = reader.sample(10.0)
    assert found is not None
    assert [holder.interface for holder in found.counts] == [name]


HELD = HeldInterface("w1", "p", "0000:d8:00.0", 0, "n", "a", "rdma0")


def rates(counts: list[tuple[int, int]], link_mbps: int | None) -> list[int | None]:
    """Rates in Mb/s by times in seconds and counts of bytes."""
    series = CounterSeries(holder=HELD, readings=[Reading(*each) for each in counts], link_mbps=link_mbps)
    found = [each.sent_mbps for each in intervals(series)]
    return [None if mbps is None else round(mbps) for mbps in found]


OVERFLOW = [(70, 4_258_368_365), (72, 44_815_312), (74, 227_007_324), (75, 319_415_755)]


@pytest.mark.parametrize(
    ("link_mbps", "found"), [(1_000, [326, 729, 739]), (100_000, [None, 729, 739]), (None, [None, 729, 739])]
)
def test_counter_that_overflowed_is_followed_only_if_it_can_have_done_so_once(
    link_mbps: int | None, found: list[int | None]
):
    """A counter of 32 bits, read every second or two; others showed a negative rate.

    Source: https://github.com/openwrt/luci/issues/2659
    """
    assert rates(OVERFLOW, link_mbps) == found


def test_counter_that_goes_back_a_little_has_neither_overflowed_nor_begun_anew():
    """Prometheus' increase() shows 3.7 GB of traffic in a minute with almost no traffic.

    Source: https://github.com/pdreker/fritz_exporter/issues/208
    """
    counts = [3_717_324_887, 3_717_616_438, 3_717_611_343, 3_717_798_920, 3_718_060_786]
    series = CounterSeries(
        holder=HELD,
        readings=[Reading(60.0 * index, count) for index, count in enumerate(counts)],
        link_mbps=1_000,
    )
    found = intervals(series)
    assert [each.sent_mbps is None for each in found] == [False, True, True, False]
    assert max(each.sent_mbps or 0 for each in found) < 0.1
    assert not any(each.is_restart for each in found)


def test_counter_that_is_0_once_is_no_peak_of_its_whole_width():
    """Bytes of an interface are 0 in one reading now and then; one who adds 2^32 then sees a huge peak.

    Source: https://github.com/netdata/netdata/issues/6077
    """
    counts = [(0, 4_000_000_000), (1, 4_000_500_000), (2, 0), (3, 4_001_500_000), (4, 4_002_000_000)]
    assert rates(counts, 1_000) == [4, None, None, 4]


def test_counter_that_begins_anew_has_not_sent_petabytes():
    """A collector added 2^64 whenever a counter was less than before.

    Source: https://github.com/python-diamond/Diamond/issues/663
    """
    assert rates([(0, 9_000_000_000), (10, 1_250_000), (20, 2_500_000)], None) == [None, 1]


def test_silent_counters_of_a_driver_that_may_not_count_verbs_give_no_recommendation():
    """RDMA traffic of some drivers is not in any counter that a program reads, and shows as 0.

    Sources: https://github.com/uccl-project/rdmatop/pull/13, https://github.com/wentbackward/nv-monitor/pull/41
    """
    readings = [Reading(30.0 * index, 0, 0, 0, 0, 40_000, 0) for index in range(20_000)]
    use = use_of([CounterSeries(holder=HELD, readings=readings)], 0.0, 600_000.0)
    pod = WorkloadName("n", "Pod", "a")
    found = advise(MeasuredInterface(workload=pod, use=use, driver="bnxt_en")).suggestion
    assert (found.min_tx_rate_mbps, found.trust) == (None, Trust.NONE)
