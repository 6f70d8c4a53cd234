from __future__ import annotations

from fractions import Fraction

import pytest

from k8s_rdma.core.preemption import covers
from k8s_rdma.wire.pod_spec import quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1", 1),
        ("500m", Fraction(1, 2)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("2Gi", 2 * 1024**3),
        ("10k", 10_000),
        ("3E", 3 * 10**18),
        ("3e2", 300),
        ("5E-1", Fraction(1, 2)),
        ("7n", Fraction(7, 10**9)),
        ("1u", Fraction(1, 10**6)),
    ],
)
def test_quantity_is_read_as_kubernetes_reads_it(text, amount):
    assert quantity(text) == amount


@pytest.mark.parametrize("text", ["", "x", "1Q", "1ki", "--1", "1 Gi", "1e9999", "²"])
def test_quantity_refuses_a_text_that_is_no_quantity(text):
    with pytest.raises(ValueError, match="quantity"):
        quantity(text)


def demand(**amounts: int):
    return tuple((name, Fraction(amount)) for name, amount in sorted(amounts.items()))


@pytest.mark.parametrize(
    ("evicted", "kept", "expected"),
    [
        ([demand(cpu=2)], [demand(cpu=2)], True),
        ([demand(cpu=1, memory=9)], [demand(cpu=2)], False),
        ([demand(cpu=1), demand(cpu=1)], [demand(cpu=2)], True),
        ([demand(cpu=4)], [demand(cpu=1), demand(cpu=1)], False),  # each pod takes a place of the node's, too
        ([demand(cpu=4)], [demand(cpu=1, vf=1)], False),
        ([demand()], [demand()], True),
        ([], [], True),
    ],
)
def test_eviction_covers_another_when_it_frees_as_much_of_everything(evicted, kept, expected):
    assert covers(evicted, kept) is expected
