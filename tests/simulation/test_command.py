"""`k8s-rdma simulate` as a user runs it."""

from __future__ import annotations

import csv
import json
import os
import pty
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

PROGRAM = Path(sys.executable).parent / "k8s-rdma"
TRACE = Path(__file__).parents[2] / "examples" / "scenarios" / "trace.yaml"
ENDLESS = """\
name: endless
duration: 1000000000
nodes: [{count: 10, pfs: [{linkMbps: 100000, vfs: 8}]}]
arrivals: {exponential: 1}
pods: [{name: a, interfaces: [{min_tx_rate: 1000}], lifetime: {exponential: 10}}]
"""


def simulate(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, "simulate", *arguments], capture_output=True, text=True, check=False)


def test_simulate_prints_a_row_per_policy_and_writes_files(tmp_path: Path) -> None:
    files = ["--json", tmp_path / "out.json", "--csv", tmp_path / "out.csv"]
    ran = simulate(TRACE, "--policy", "binpack", "--policy", "spread", "--runs", "2", *files)
    assert (ran.returncode, ran.stderr) == (0, "")
    heading, *rows = ran.stdout.splitlines()
    assert heading.split()[:3] == ["POLICY", "RUNS", "RESERVED"]
    assert [row.split()[:2] for row in rows] == [["binpack", "2"], ["spread", "2"]]
    document = json.loads((tmp_path / "out.json").read_bytes())
    runs = [(run["policy"], run["seed"], run["complete"]) for run in document["runs"]]
    assert runs == [(policy, seed, True) for policy in ("binpack", "spread") for seed in (1, 2)]
    with (tmp_path / "out.csv").open(newline="") as file:
        table = [*csv.DictReader(file)]
    assert [row["shape"] for row in table] == ["training", "service"] * 4
    assert table[0]["bound"] == "6"


def test_document_on_standard_output_is_that_of_the_file(tmp_path: Path) -> None:
    ran = simulate(TRACE, "--policy", "binpack", "-o", "json", "--json", tmp_path / "out.json")
    assert ran.stdout == (tmp_path / "out.json").read_text()
    assert simulate(TRACE, "--policy", "binpack", "-o", "name").stdout == "policy/binpack\n"


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.yaml"], "k8s-rdma: missing.yaml: No such file or directory\n"),
        ([TRACE, "--policy", "best"], "k8s-rdma: policy best: wanted one of binpack"),
        ([TRACE, "--json", "/no/such/file"], "k8s-rdma: --json /no/such/file: No such file or directory\n"),
        ([TRACE, "--csv", "/"], "k8s-rdma: --csv /: Is a directory\n"),
    ],
)
def test_simulate_reports_a_fault_in_a_line(arguments: list[str | Path], message: str) -> None:
    ran = simulate(*arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(message)


def test_interrupted_simulation_prints_partial_results_that_say_so(tmp_path: Path) -> None:
    scenario, output = tmp_path / "endless.yaml", tmp_path / "out.json"
    scenario.write_text(ENDLESS)
    terminal, stderr = pty.openpty()
    with subprocess.Popen(
        [PROGRAM, "simulate", scenario, "--policy", "binpack", "--policy", "spread", "--json", output],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=os.environ | {"TERM": "xterm"},  # a bar is drawn where lines can be drawn again
        text=True,
    ) as process:
        os.close(stderr)
        shown = b""
        while b"binpack, seed 1" not in shown:  # the bar of the first run
            shown += os.read(terminal, 4_096)
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=60)
    os.close(terminal)
    assert process.returncode == 130
    assert "Partial results: interrupted in run 1 of 2 (binpack, seed 1), after" in stdout
    [run] = json.loads(output.read_bytes())["runs"]
    assert run["complete"] is False
    assert run["events"] >= 1_000
