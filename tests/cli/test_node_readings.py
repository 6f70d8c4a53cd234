"""Readings of nodes' servers: their times, gaps, and nodes that are not believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.played_usage import PlayedNode, sampled
from k8s_rdma.core.usage import use_of

if TYPE_CHECKING:
    from pathlib import Path


def test_nodes_are_sampled_every_15_s_until_the_time_is_over(tmp_path: Path):
    node = PlayedNode({"p": 100, "of-others": 7})
    with sampled(node, tmp_path, 60, "p") as sampling:
        [series] = sampling.series()
    assert [reading.at_s - 1_000_000 for reading in series.readings] == [0, 15, 30, 45, 60]
    use = use_of([series], 1_000_000, 1_000_060)
    assert use.sent is not None
    assert (use.sent.p50, use.sent.maximum) == (100, 100)
    assert (use.holder.pod, use.reserved_mbps, use.cap_mbps, use.link_mbps) == ("p", 300, 0, 1000)
    assert (use.losses.dropped, use.losses.retransmitted) == (0, 0)
    assert series.readings[0].retransmitted == 3


def test_node_that_is_away_for_a_while_is_a_gap(tmp_path: Path):
    node = PlayedNode({"p": 100}, failing={1_000_000.0 + 15 * number for number in (4, 5, 6)})
    with sampled(node, tmp_path, 150, "p") as sampling:
        [series] = sampling.series()
        assert sampling.reader.notes == {}
    coverage = use_of([series], 1_000_000, 1_000_150).coverage
    assert (coverage.gaps, coverage.gap_s, coverage.measured_s) == (1, 60, 90)


def test_node_that_names_another_one_is_not_believed(tmp_path: Path):
    with sampled(PlayedNode({"p": 100}, node="w2"), tmp_path, 15, "p") as sampling:
        assert sampling.series() == []
    assert "not of 'w1'" in sampling.reader.notes["w1"]


def test_node_that_drops_below_a_reservation_has_unmet_demand(tmp_path: Path):
    with sampled(PlayedNode({"p": 100}, dropped_per_s=5), tmp_path, 90, "p") as sampling:
        use = use_of(sampling.series(), 1_000_000, 1_000_090)
    [period] = use.unmet
    assert (period.from_s, period.to_s, period.dropped) == (1_000_000, 1_000_090, 450)


def test_readings_until_ctrl_c_are_kept(tmp_path: Path):
    node = PlayedNode({"p": 100})
    naps = iter([15.0, 15.0])

    def sleep(_: float) -> None:
        node.now_s += next(naps, 0.0) or interrupt()

    def interrupt() -> float:
        raise KeyboardInterrupt

    with sampled(node, tmp_path, 600, "p", sleep=sleep) as sampling:
        [series] = sampling.series()
    assert len(series.readings) == 3
