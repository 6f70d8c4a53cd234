"""Plots of simulations."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from simulation.test_command import ENDLESS, PROGRAM, TRACE, simulate

if TYPE_CHECKING:
    from pathlib import Path


def test_plots_are_the_same_bytes_for_equal_seeds_and_name_policies_and_shapes(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        "{name: one $ or $two$, duration: 1000, arrivals: {exponential: 5}, "
        "nodes: [{count: 2, pfs: [{linkMbps: 100000, vfs: 8}]}], "
        "pods: [{name: $a$b, interfaces: [{min_tx_rate: 40000}], lifetime: {exponential: 50}}]}"
    )
    names = [f"{plot}.{suffix}" for plot in ("by-shape", "over-time") for suffix in ("png", "svg")]
    for directory in ("first", "second"):
        policies = ["--policy", "binpack", "--policy", "random", "--runs", "2"]
        ran = simulate(scenario, *policies, "--plots", tmp_path / directory / "plots")
        assert ran.returncode == 0, ran.stderr
        assert sorted(path.name for path in (tmp_path / directory / "plots").iterdir()) == names
    for name in names:
        first, second = (tmp_path / directory / "plots" / name for directory in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()
    texts = {}
    for name in ("by-shape.svg", "over-time.svg"):
        drawing = ElementTree.parse(tmp_path / "first" / "plots" / name)  # noqa: S314 - of our own
        texts[name] = {text.strip() for text in drawing.getroot().itertext()}
    for found in texts.values():
        assert {"one $ or $two$, mean of 2 runs", "binpack", "random"} <= found
    assert {"$a$b", "Conflicts (binds refused)", "Waits (95th percentile, seconds)"} <= texts["by-shape.svg"]
    assert {"Reserved bandwidth (% of all links)", "time (seconds)"} <= texts["over-time.svg"]


def test_ticks_of_plots_are_labelled_with_their_values(tmp_path: Path) -> None:
    ran = simulate(TRACE.with_name("testbed.yaml"), "--policy", "spread", "--plots", tmp_path)
    assert ran.returncode == 0, ran.stderr
    drawing = ElementTree.parse(tmp_path / "over-time.svg")  # noqa: S314 - of our own
    for number in (2, 4, 6, 8):  # the y axes
        [axis] = [group for group in drawing.iter() if group.get("id") == f"matplotlib.axis_{number}"]
        labels = [int(text) for text in axis.itertext() if text.strip().isdigit()]
        assert len(labels) > 2
        assert len({after - before for before, after in pairwise(labels)}) == 1, labels


def test_plots_without_samples_are_drawn(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(ENDLESS.replace("exponential: 10}", "fixed: 1000}") + "stopAtFirstRefusal: true\n")
    ran = simulate(scenario, "--policy", "binpack", "--plots", tmp_path / "plots")
    assert ran.returncode == 0, ran.stderr
    assert len([*(tmp_path / "plots").iterdir()]) == 4


def test_plots_without_matplotlib_are_refused_with_the_command_that_installs_it(tmp_path: Path) -> None:
    absent = "raise ModuleNotFoundError(\"No module named 'matplotlib'\", name='matplotlib')\n"
    (tmp_path / "matplotlib.py").write_text(absent)
    ran = subprocess.run(
        [PROGRAM, "simulate", TRACE, "--policy", "binpack", "--plots", tmp_path / "plots"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    message = "k8s-rdma: --plots: matplotlib is not installed; pip install 'k8s-rdma[plots]'\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", message)
    assert not (tmp_path / "plots").exists()
