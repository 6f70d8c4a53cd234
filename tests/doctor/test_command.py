"""The command's output and exit status on a machine on which no process of ours runs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from doctor_documents import decode_doctor
from warm_program import run

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Doctor = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    """With an agent's file that names directories of the test's own."""
    config = tmp_path / "agent.yaml"
    config.write_text(
        json.dumps({"node": "w1", "kernel": "virtual", "runDir": str(tmp_path), "stateDir": str(tmp_path)})
    )
    fixed = ["--config", str(config), "--server", "", "--cni-conf-dir", str(tmp_path / "nowhere")]

    def doctor(*options: str) -> subprocess.CompletedProcess[str]:
        return run(["doctor", "node", *fixed, *options])

    return doctor


def test_doctor_prints_every_finding_with_its_fix(doctor, tmp_path):
    done = doctor()
    lines = done.stdout.splitlines()
    [found] = [index for index, line in enumerate(lines) if line.endswith("[cni-no-file]")]
    assert lines[found] == f"  error    {tmp_path}/nowhere: there is no network configuration [cni-no-file]"
    assert [line.split()[0] for line in lines[found + 1 : found + 4]] == ["seen", "wanted", "fix"]
    assert done.returncode == 1


def test_doctor_prints_the_same_in_a_document(doctor):
    done = doctor("--json")
    document = decode_doctor(done.stdout)
    assert (document.format, document.of, document.worst) == (1, "node", "error")
    assert {"cni-no-file", "processes-agent-down", "ledger-none"} <= {each.id for each in document.findings}
    assert done.returncode == 1


def test_doctor_knows_the_node_by_the_variable_that_pods_have(tmp_path):
    """The chart's file is every node's, and names no node."""
    config = tmp_path / "agent.yaml"
    config.write_text(json.dumps({"kernel": "virtual", "runDir": str(tmp_path), "stateDir": str(tmp_path)}))
    command = ["doctor", "node", "--config", str(config), "--server", "", "--json"]
    done = run(command)
    assert done.returncode == 2
    assert "node" in done.stderr
    done = run(command, os.environ | {"NODE_NAME": "w1"})
    assert decode_doctor(done.stdout).of == "node"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host-root", "/nowhere"), "wanted a node's root file system"),
        (("--config", "/nowhere/agent.yaml"), "/nowhere/agent.yaml: No such file or directory"),
    ],
)
def test_doctor_ends_with_status_2_if_it_cannot_look(doctor, options, said):
    done = doctor(*options)
    assert done.returncode == 2
    assert said in done.stderr
    assert not done.stdout
