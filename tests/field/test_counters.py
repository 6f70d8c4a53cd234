"""Counters and metrics as exporters and drivers of others gave them."""

from __future__ import annotations

import pytest

from k8s_rdma.core.traffic import ByteCounts, CounterSample, Meter, Rates, VfHolder
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.node_metrics import CounterReader

HOLDER = VfHolder(pf="p", pci="0000:d8:00.0", vf=0, namespace="n", pod="a", interface="rdma0")


def meter(*sent: int) -> Meter:
    """A meter of a counter that is read every 15 s."""
    found = Meter()
    for index, count in enumerate(sent):
        counts = {HOLDER: ByteCounts(count, 0)}
        found.add(CounterSample(sampled_at=15.0 * index, counts=counts, promises={}))
    return found


@pytest.mark.parametrize(
    ("sent", "rates"),
    [
        ((10_000_000_000, 0, 10_001_875_000), {}),
        ((10_000_000_000, 0, 10_001_875_000, 10_003_750_000), {HOLDER: Rates(1.0, 0.0)}),
        ((10_000_000_000, 0, 1_875_000), {HOLDER: Rates(1.0, 0.0)}),
    ],
    ids=["back at once", "then as before", "began anew"],
)
def test_counter_that_is_0_now_and_then_is_no_burst(sent: tuple[int, ...], rates: dict[VfHolder, Rates]):
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
