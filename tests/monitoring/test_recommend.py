"""Recommendations by a real Prometheus, of histories whose answers are known."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from cli.asking import k8s_rdma
from cli.played_usage import pod, stored
from kube.stored_objects import serving_objects
from monitoring.test_scrape import PROMETHEUS, PROMTOOL, prometheus

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus: needs Debian's package of this name"),
]

SCRAPE_S = 30
STEPS = 2 * 120
"""Two hours."""


def lines(name: str, mbps: Callable[[int], int], now_s: float, **changes: Any) -> dict[str, list[str]]:
    """Samples of a pod's metrics, by metric. changes: `resets`, `missing` steps, and rates."""
    function = 'node="w1",pf="enp3s0f0",pci="0000:03:00.0",vf="1"'
    labels = f'{function},namespace="default",pod="{name}",interface="rdma0"'
    found: dict[str, list[str]] = {}
    sent = changes.get("start", 0)
    for step in range(STEPS + 1):
        at_s = now_s - SCRAPE_S * (STEPS - step)
        sent = 0 if step in changes.get("resets", ()) else sent + mbps(step) * SCRAPE_S * 125_000
        if step in changes.get("missing", ()):
            continue
        values = {
            "k8s_rdma_vf_transmitted_bytes_total": sent % changes.get("width", 2**64),
            "k8s_rdma_vf_received_bytes_total": 0,
            "k8s_rdma_vf_transmitted_dropped_total": changes.get("dropped", 0) * step,
            "k8s_rdma_vf_reserved_bits_per_second": changes.get("reserved", 300) * 1_000_000,
        }
        if cap := changes.get("cap"):
            values["k8s_rdma_vf_cap_bits_per_second"] = cap * 1_000_000
        for metric, value in values.items():
            found.setdefault(metric, []).append(f"{metric}{{{labels}}} {value} {at_s:.3f}")
    return found


def write_history(directory: Path, *histories: dict[str, list[str]], now_s: float) -> None:
    """Write histories, with the age of the agent's samples, and the link of the node's PF."""
    node: dict[str, list[str]] = {}
    for step in range(STEPS + 1):
        at_s = now_s - SCRAPE_S * (STEPS - step)
        for metric, value in (
            ('k8s_rdma_sample_age_seconds{node="w1"}', 0),
            ('k8s_rdma_pf_link_bits_per_second{node="w1",pci="0000:03:00.0",pf="enp3s0f0"}', 1_000_000_000),
        ):
            node.setdefault(metric.partition("{")[0], []).append(f"{metric} {value} {at_s:.3f}")
    text = []
    for metric in sorted({name for history in (*histories, node) for name in history}):
        family = metric.removesuffix("_total")
        text.append(f"# TYPE {family} {'counter' if metric.endswith('_total') else 'gauge'}")
        for history in (*histories, node):
            text += history.get(metric, [])
    history_file = directory / "history.txt"
    history_file.write_text("\n".join([*text, "# EOF", ""]))
    create = (str(PROMTOOL), "tsdb", "create-blocks-from", "openmetrics", history_file, directory / "data")
    subprocess.run(create, check=True, capture_output=True)


async def recommendations(directory: Path, *names: str, **histories: dict[str, list[str]]) -> dict[str, Any]:
    """The command's answer for each pod."""
    async with prometheus(directory, []) as client:
        with serving_objects(stored(*map(pod, names)), directory) as kubeconfig:
            options = ("--kubeconfig", kubeconfig, "--prometheus", str(client.base_url))
            ran = await k8s_rdma("recommend", *options, "--window", "3h", "-o", "json")
    assert ran.status in (0, 1), ran.err
    document = json.loads(ran.out)
    assert document["resolution_s"] == SCRAPE_S
    return {found["name"]: found for found in document["workloads"]}


async def test_histories_have_their_known_answers(tmp_path: Path):
    now_s = float(int(time.time()))
    histories = {
        "constant": lines("constant", lambda _: 100, now_s),
        "bursts": lines("bursts", lambda step: 250 if step % 40 == 0 else 10, now_s),
        "diurnal": lines("diurnal", lambda step: 50 if step < 160 else 200, now_s),
        "restarts": lines("restarts", lambda _: 100, now_s, resets={60, 120, 180}, start=10**12),
        "overflows": lines("overflows", lambda _: 100, now_s, width=2**32),
        "gap": lines("gap", lambda _: 100, now_s, missing=range(60, 120)),
        "capped": lines("capped", lambda _: 490, now_s, cap=500),
        "starved": lines("starved", lambda _: 120, now_s, dropped=50),
    }
    write_history(tmp_path, *histories.values(), now_s=now_s)
    found = await recommendations(tmp_path, *histories)
    assert set(found) == set(histories)
    assert {name: each["min_tx_rate"] for name, each in found.items()} == {
        "constant": 130,
        "bursts": 300,
        "diurnal": 260,
        "restarts": 130,
        "overflows": 130,
        "gap": 130,
        "capped": 640,
        "starved": 300,
    }
    assert found["bursts"]["sent"]["p50"] == 10
    assert found["bursts"]["sent"]["maximum"] == 250
    assert found["diurnal"]["sent"] == {"p50": 50, "p95": 200, "p99": 200, "maximum": 200}
    assert found["restarts"]["pods"][0]["restarts"] == 3
    assert found["overflows"]["pods"][0]["restarts"] == 0
    gap = found["gap"]["pods"][0]
    assert gap["gaps"] >= 1
    assert 0 <= gap["gap_s"] - 61 * SCRAPE_S <= time.time() - now_s
    assert found["capped"]["max_tx_rate"] == 0
    assert {period["limit"] for period in found["capped"]["unmet"]} == {"cap"}
    [period] = found["starved"]["unmet"]
    assert (period["limit"], period["wanted_mbps"], period["node"], period["pf"]) == (
        "reservation",
        300,
        "w1",
        "enp3s0f0",
    )
    assert found["starved"]["verdict"] == "unmet"
