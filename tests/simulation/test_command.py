"""`k8s-rdma simulate` as a user runs it."""

from __future__ import annotations

import csv
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from warm_program import run

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
    return run(["simulate", *map(str, arguments)])


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
        env=os.environ | {"TERM": "xterm"},  # a bar is drawn if lines can be drawn again
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
