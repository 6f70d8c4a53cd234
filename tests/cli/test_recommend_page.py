"""Recommendations on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cli.on_terminal import on_terminals
from cli.played_usage import PlayedPrometheus, answering, pod, recommended, stored
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.anyio
async def test_recommendation_fits_80_columns(tmp_path: Path):
    played = PlayedPrometheus()
    with answering(played.answer) as url, serving_objects(stored(pod("p")), tmp_path) as kubeconfig:
        words = ("recommend", "--kubeconfig", kubeconfig, "--prometheus", url, "--window", "1h")
        ran = await on_terminals([60, 80, 200], *words)
    for width, each in ran.items():
        assert each.status == 0, each.out
        assert max(len(line) for line in each.out.splitlines() if "127.0.0.1" not in line) <= width
        assert "130Mb/s" in each.out
    heading = next(line for line in ran[80].out.splitlines() if line.startswith("WORKLOAD"))
    assert heading.split()[:2] == ["WORKLOAD", "INTERFACE"]


@pytest.mark.anyio
async def test_labels_cannot_order_the_terminal(tmp_path: Path):
    ran = await recommended(
        PlayedPrometheus(labels={"interface": "x\x1b[2J"}).answer, tmp_path, "--window", "1h"
    )
    assert ran.status == 0
    assert "\x1b" not in ran.out
    assert "x\\x1b[2J" in ran.out
