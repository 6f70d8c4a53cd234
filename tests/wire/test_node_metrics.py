"""Counters of VFs out of a node's metrics, and what a node may not send."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from k8s_rdma.core.traffic import ByteCounts, Promise, VfHolder
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.node_metrics import MAX_LINE, CounterReader

if TYPE_CHECKING:
    from k8s_rdma.core.traffic import CounterSample

PCI = "0000:03:00.0"
HOLDER = VfHolder(pf="enp3s0f0", pci=PCI, vf=1, namespace="default", pod="a", interface="rdma0")


def metrics(sent: object, received: object, age_s: object = 2.0, vf: object = 1, node: str = "w1") -> str:
    labels = (
        f'interface="rdma0",namespace="default",node="{node}",pci="{PCI}",pf="enp3s0f0",pod="a",vf="{vf}"'
    )
    return (
        "# HELP k8s_rdma_vf_transmitted_bytes_total Bytes by a virtual function's holder.\n"
        "# TYPE k8s_rdma_vf_transmitted_bytes_total counter\n"
        f"k8s_rdma_vf_transmitted_bytes_total{{{labels}}} {sent}\n"
        f"k8s_rdma_vf_received_bytes_total{{{labels}}} {received}\n"
        f'k8s_rdma_vf_rdma_counter_total{{{labels},counter="np_cnp_sent"}} 7.0\n'
        f"k8s_rdma_vf_reserved_bits_per_second{{{labels}}} 3e+08\n"
        f"k8s_rdma_vf_cap_bits_per_second{{{labels}}} 5e+08\n"
        f'k8s_rdma_sample_age_seconds{{node="{node}"}} {age_s}\n'
    )


def read(
    text: str, *, size: int = 1 << 16, node: str | None = None, max_vfs: int = 8
) -> CounterSample | None:
    reader = CounterReader(max_vfs=max_vfs, node=node)
    data = text.encode()
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
    return reader.sample(100.0)


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_counters_and_rates_are_read_however_the_text_is_cut(size: int):
    found = read(metrics("1.2345e+06", 500.0), size=size)
    assert found is not None
    assert found.sampled_at == 98.0
    assert found.counts == {HOLDER: ByteCounts(1_234_500, 500)}
    assert found.promises == {HOLDER: Promise(300, 500)}


@pytest.mark.parametrize("age_s", ["NaN", "-1.0", "+Inf"])
def test_metrics_without_a_usable_age_are_no_sample(age_s: str):
    assert read(metrics(1, 1, age_s)) is None


@pytest.mark.parametrize(
    "text",
    [
        metrics(1, 1, vf="x"),
        "k8s_rdma_vf_transmitted_bytes_total{\n",
        metrics(1, 1, "old"),
        metrics(-1, 1),
        metrics(1, "NaN"),
        metrics("+Inf", 1),
        metrics(1, 2**64),
        metrics(1, 1).replace(f'pci="{PCI}",', ""),
        "k8s_rdma_sample_age_seconds{" + "\\" * (MAX_LINE + 1),
        "x" * (MAX_LINE + 1),
    ],
    ids=["vf", "cut", "age", "negative", "NaN", "infinite", "too large", "no PF", "long", "no line's end"],
)
def test_metrics_that_are_none_are_refused(text: str):
    with pytest.raises(MalformedError, match="/metrics of a node"):
        read(text)


def test_samples_of_another_node_are_refused():
    assert read(metrics(1, 1), node="w1") is not None
    with pytest.raises(MalformedError, match="is of node 'w2', not of 'w1'"):
        read(metrics(1, 1, node="w2"), node="w1")


def test_more_vfs_than_the_limit_are_refused():
    age = 'k8s_rdma_sample_age_seconds{node="w1"} 2.0\n'
    many = "".join(metrics(1, 1, vf=vf).replace(age, "") for vf in range(3)) + age
    assert read(many, max_vfs=3) is not None
    with pytest.raises(MalformedError, match="more than 9 samples"):
        read(many, max_vfs=2)
