"""Readings of Prometheus: the queries, and the series that count."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from cli.played_usage import PCI, PlayedPrometheus, recommended
from k8s_rdma.cli.prometheus_readings import MAX_POINTS, MAX_SERIES, POINTS_OF_AN_ANSWER, ReadWindow

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.anyio
async def test_series_of_pods_that_the_api_server_does_not_list_are_not_shown(tmp_path: Path):
    for labels in ({"namespace": "secret"}, {"pod": "q"}, {"vf": "x"}, {"pf": "p" * 600}):
        ran = await recommended(PlayedPrometheus(labels=labels).answer, tmp_path, "--window", "1h")
        assert ran.status == 2
        assert "no interface of these pods has readings of Prometheus" in ran.err
        assert "secret" not in ran.out + ran.err


@pytest.mark.anyio
async def test_reader_of_a_namespace_asks_for_no_more_than_that(tmp_path: Path):
    played = PlayedPrometheus()
    ran = await recommended(played.answer, tmp_path, "--window", "1h", "-A")
    assert ran.status == 2  # all pods may not be listed: there is no such path
    ran = await recommended(played.answer, tmp_path, "--window", "1h")
    assert ran.status == 0
    queries = [text for asked in played.asked for text in asked.get("query", []) if "k8s_rdma_vf" in text]
    assert queries
    assert all('namespace="default", pod=~"p"' in text for text in queries)


def test_step_is_as_fine_as_the_bounds_allow():
    assert ReadWindow.stepped(0, 3600, 1).step_s == 15
    assert ReadWindow.stepped(0, 604_800, 1).step_s == 30
    many = ReadWindow.stepped(0, 604_800, 10_000)
    assert 604_800 / many.step_s * 10_000 <= MAX_POINTS
    for window in (ReadWindow.stepped(0, 604_800, 1), many):
        parts = list(window.parts())
        assert parts[0][0] == 0
        assert parts[-1][1] == 604_800
        assert all((end - begin) / window.step_s < POINTS_OF_AN_ANSWER for begin, end in parts)
        assert all(after[0] - before[1] == window.step_s for before, after in pairwise(parts))


@pytest.mark.anyio
async def test_interfaces_without_end_are_refused(tmp_path: Path):
    labels = {"node": "w1", "pf": "p", "pci": PCI, "namespace": "default", "pod": "p", "interface": "rdma0"}
    series = [{**labels, "vf": str(number)} for number in range(MAX_SERIES + 1)]
    body = json.dumps({"data": series}).encode()
    ran = await recommended(lambda _: (200, body), tmp_path, "--window", "1h")
    assert (ran.status, "more than 10000 interfaces" in ran.err) == (2, True)
