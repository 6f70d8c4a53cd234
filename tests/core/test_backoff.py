"""Exponential backoff."""

from __future__ import annotations

from k8s_rdma.core.backoff import Backoff


def test_delays_are_longer_each_time_until_something_succeeds() -> None:
    backoff = Backoff(0.5, 2.0)
    assert backoff.left_s(0.0) == 0.0
    for now, pause in ((10.0, 0.5), (20.0, 1.0), (30.0, 2.0), (40.0, 2.0)):
        backoff.fail(now)
        assert backoff.left_s(now) == pause
        assert backoff.left_s(now + pause) == 0.0
    backoff.reset()
    assert backoff.left_s(40.0) == 0.0
    backoff.fail(50.0)
    assert backoff.left_s(50.25) == 0.25


def test_backoff_fails_from_the_first_failure_to_the_next_success() -> None:
    backoff = Backoff(0.5, 2.0)
    assert not backoff.failing
    assert [backoff.fail() for _ in range(4)] == [0.5, 1.0, 2.0, 2.0]
    assert backoff.failing
    backoff.reset()
    assert not backoff.failing
    assert backoff.fail() == 0.5
