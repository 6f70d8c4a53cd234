"""Counters of VFs out of a node's metrics, and metrics that a node may not send."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.core.traffic import ByteCounts, ProgrammedRates, VfHolder
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
    assert found.programmed == {HOLDER: ProgrammedRates(300, 500)}


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
def test_text_that_is_no_metrics_is_refused(text: str):
    with pytest.raises(MalformedError, match="/metrics of a node"):
        read(text)


def labelled(interface: str, value: str = "1") -> str:
    return metrics(value, value).replace("rdma0", interface)


@pytest.mark.parametrize(
    ("text", "interface"),
    [
        (labelled(r"a\"b"), 'a"b'),
        (labelled(r"F:\\"), "F:\\"),
        (labelled(r"a\nb"), "a\nb"),
        (labelled("x} 1"), "x} 1"),
        (labelled("é"), "é"),
        (metrics("1 1700000000000", "1"), "rdma0"),
        (metrics('1 # {trace_id="a"} 1', "1"), "rdma0"),
    ],
    ids=["quote", "backslash at the end", "newline", "brace", "UTF-8", "time", "exemplar"],
)
def test_labels_and_values_are_those_of_the_text_format(text: str, interface: str):
    found = read(text)
    assert found is not None
    assert found.counts == {HOLDER._replace(interface=interface): ByteCounts(1, 1)}


@pytest.mark.parametrize(
    "text",
    [
        labelled('14" R/W'),
        labelled('a,b="c'),
        metrics("0x10", 1),
        metrics("1_000", 1),
        metrics("", 1),
        metrics(1, 1).replace('vf="1"', 'vf="1",vf="2"'),
        metrics(1, 1).replace('vf="1"', "vf=1"),
        metrics(1, 1).replace("}", ""),
    ],
    ids=["quote", "label", "hexadecimal", "underscore", "no value", "label twice", "no quotes", "no brace"],
)
def test_lines_that_other_exporters_got_wrong_are_refused(text: str):
    with pytest.raises(MalformedError, match="/metrics of a node"):
        read(text)


def read_s(interface: str) -> float:
    """The processor time that many lines of this interface take."""
    reader = CounterReader(max_vfs=1024)
    line = labelled(interface).splitlines(keepends=True)[2].encode()
    began_s = time.process_time()
    for _ in range(4000):
        reader.feed(line)
    reader.feed(b'k8s_rdma_sample_age_seconds{node="w1"} 1\n')
    assert reader.sample(100.0) is not None
    return time.process_time() - began_s


def test_lines_of_backslashes_cost_as_much_as_others():
    assert read_s("\\" * 250) < 10 * read_s("x" * 500)


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
