"""A recording of one link: its numbers, and its document."""

from __future__ import annotations

import pytest

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma_demo.over_time import OverTime, Throughput, machine

GOLD = Throughput(
    name="gold", measured=((0.5, 0.0), (1.0, 100.04), (1.5, 300.0)), reserved=((0.0, 50), (1.234, 80))
)


def test_steady_is_the_mean_after_the_first_moment_up_to_the_second() -> None:
    assert GOLD.steady(0.5, 1.5) == 200.02
    assert GOLD.steady(0.5, 1.0) == 100.04


def test_steady_is_refused_without_a_sample() -> None:
    with pytest.raises(K8sRdmaError, match=r"gold: nothing was measured between 2.0 and 3.0 s"):
        GOLD.steady(2.0, 3.0)


def test_reservation_is_that_in_force_at_the_moment() -> None:
    assert [GOLD.reserved_at(at_s) for at_s in (0.0, 1.0, 1.234, 9.0)] == [50, 50, 80, 80]


def test_document_has_rounded_numbers() -> None:
    recorded = OverTime(link_mbps=1000, pods=(GOLD,), events=((1.2345, "x"),), machine="m", date="2026-11-28")
    assert recorded.document() == {
        "machine": "m",
        "date": "2026-11-28",
        "linkMbps": 1000,
        "events": [[1.23, "x"]],
        "pods": [
            {
                "name": "gold",
                "reserved": [[0.0, 50], [1.23, 80]],
                "measured": [[0.5, 0.0], [1.0, 100.0], [1.5, 300.0]],
            }
        ],
    }


def test_machine_is_described_by_its_versions() -> None:
    described = machine()
    assert "processor" in described
    assert "Linux " in described
    assert "Python 3." in described
