"""Leases of nodes: the generations that one covers, and the silence of an agent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf

import pytest

from k8s_rdma.wire.node_lease import MAX_LEASE_S, UNRENEWED, NodeLease, covers, silence


@pytest.mark.parametrize("named", ["e." + "9" * 5000, "e.٣", "e.-1", "e." + "0" * 30, "", "."])
def test_lease_with_a_malformed_name_covers_no_generation_and_raises_no_error(named: str) -> None:
    assert covers("e.7", named) is False
    assert covers(named, "e.7") is False


@pytest.mark.parametrize(
    ("known", "named", "covered"),
    [
        ("e.2", "e.2", True),
        ("e.10", "e.9", True),
        ("e.9", "e.10", False),
        ("e.2", "f.1", False),
        ("", "", False),
        ("", "e.1", False),
        ("odd", "odd", True),
        ("odd", "other", False),
    ],
)
def test_report_covers_generations_named_before_it(known, named, covered):
    assert covers(known, named) is covered


@pytest.mark.parametrize(
    ("age_s", "stale_s", "lease_s", "said"),
    [
        (60, 60, 40, ""),
        (61, 60, 40, "its agent has not reported for 60 s"),
        (61, 60, 90, ""),
        (99, 60, 90, "its agent has not reported for 90 s"),
        (MAX_LEASE_S + 1, 60, inf, f"its agent has not reported for {MAX_LEASE_S} s"),
        (inf, 60, 90, UNRENEWED),
    ],
)
def test_agent_is_silent_after_the_longer_of_both_times(
    age_s: float, stale_s: float, lease_s: float, said: str
):
    assert silence(age_s, stale_s, lease_s) == said


def test_lease_confirms_the_generations_that_it_covers():
    """Its renewal is dated by the node's clock, which may be ahead."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    lease = NodeLease(
        holder_identity="e.7", lease_duration_seconds=40, renew_time=now - timedelta(seconds=50)
    )
    assert lease.silence("e.7", 60, now, 0) == lease.silence("e.8", 60, now, 10) == ""
    assert lease.silence("e.7", 60, now, 11) == "its agent has not reported for 60 s"
    assert lease.silence("e.6", 60, now, 0) == NodeLease().silence("e.7", 60, now, 0) == UNRENEWED
