"""The command `k8s-rdma init`: its configuration, its table, its exit status, its end by a signal."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from fakes.sriov_machine import Tree
from k8s_rdma.cli.console import Page
from k8s_rdma.cli.init import NO_CARD, show
from k8s_rdma.cli.main import app
from k8s_rdma.config.init import InitConfig
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.init.pf_setup import PfOutcome, PfResult, all_well
from warm_program import run

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


def init(directory: Path, text: str) -> subprocess.CompletedProcess[str]:
    path = directory / "init.yaml"
    path.write_text(text)
    return run(["init", "--config", str(path)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("numVfs: 3", ["numVfs: unknown key"]),
        ("hardware: {numVfs: 3}", ["hardware.numVfs: unknown key"]),
        (
            "hardware: {pfs: [{numVfs: many}]}",
            ["hardware.pfs[0].numVfs: many; wanted a whole number of at least 0 or all"],
        ),
        ("hardware: {pfs: [{numVfs: -1}]}", ["hardware.pfs[0].numVfs: -1; wanted"]),
        (
            "hardware: {pfs: [{enforce: firmware}]}",
            ["hardware.pfs[0].enforce: firmware; wanted hardware, software or auto"],
        ),
        ("hardware: {pfs: []}", ["hardware.pfs: is empty", "all: false to use none"]),
        ("tries: 0", ["tries: 0; wanted a whole number from 1 to 100"]),
        ("backoffS: -1", ["backoffS: -1; wanted a number of at least 0"]),
        ("stateDir: state", ["stateDir: state; wanted an absolute path"]),
        ("keepUsedVfs: maybe", ["keepUsedVfs: is text; wanted true or false"]),
    ],
)
def test_configuration_that_cannot_be_is_refused_in_one_line_that_names_the_key(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    path = tmp_path / "init.yaml"
    path.write_text(text)
    refused = CliRunner().invoke(app, ["init", "--config", str(path)]).exception
    assert isinstance(refused, K8sRdmaError)
    assert "\n" not in str(refused)
    assert refused.details == ""
    assert all(word in str(refused) for word in words), refused


def test_refusal_is_one_line(tmp_path: Path) -> None:
    ended = init(tmp_path, "numVfs: 3")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("k8s-rdma: ")
    assert ended.stderr.count("\n") == 1


def test_machine_without_network_cards_is_well(tmp_path: Path) -> None:
    Tree(tmp_path / "sys")
    ended = init(tmp_path, f"{{sysRoot: {tmp_path}/sys, stateDir: {tmp_path}/state}}")
    assert ended.returncode == 0, ended.stderr
    assert " ".join(ended.stdout.split()) == NO_CARD
    last = json.loads(ended.stderr.splitlines()[-1])
    assert (last["event"], last["process"], last["failed"]) == ("init_ended", "init", 0)


def test_plan_of_a_configuration_on_standard_input_succeeds_whatever_it_finds(tmp_path: Path) -> None:
    Tree(tmp_path / "sys")
    text = f"{{sysRoot: {tmp_path}/sys, stateDir: {tmp_path}/state, hardware: {{pfs: [{{names: [eth9]}}]}}}}"
    ended = run(["init", "--plan", "--config", "/dev/stdin"], stdin=text)
    assert ended.returncode == 0, ended.stderr
    assert "hardware.pfs names eth9" in ended.stdout


def test_pf_that_is_named_on_a_machine_without_any_is_reported(tmp_path: Path) -> None:
    Tree(tmp_path / "sys")
    paths = f"sysRoot: {tmp_path}/sys, stateDir: {tmp_path}/state"
    ended = init(tmp_path, f"{{{paths}, hardware: {{pfs: [{{names: [eth9]}}]}}}}")
    assert ended.returncode == 0, ended.stderr
    assert " ".join(ended.stdout.split()).startswith(NO_CARD)
    assert "not there" in ended.stdout
    assert "hardware.pfs names eth9" in ended.stdout


def test_sysfs_that_is_not_there_is_a_failure_and_no_empty_machine(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    ended = init(tmp_path, f"{{sysRoot: {tmp_path}/sys, stateDir: {tmp_path}/state}}")
    assert ended.returncode == 2
    assert "is it mounted" in ended.stderr


def test_table_has_requested_made_and_pending_changes_of_every_pf() -> None:
    outcomes = [
        PfOutcome(
            pf="ens1f0", result=PfResult.CHANGED, message="8 made", requested=None, previous=0, current=8
        ),
        PfOutcome(
            pf="ens1f1",
            result=PfResult.REFUSED,
            message="[VF 3] is used",
            advice="drain",
            requested=4,
            previous=8,
            current=8,
        ),
        PfOutcome(pf="0000:05:00.0", result=PfResult.FAILED, message="no driver"),
        PfOutcome(pf="", result=PfResult.NOT_THERE, message="eth9 is not there"),
    ]
    page = Page(markup=False)
    with page.capture() as captured:
        show(outcomes, page)
    assert [re.split("  +", line) for line in captured.get().splitlines()] == [
        ["PF", "ASKED", "BEFORE", "NOW", "RESULT", "MESSAGE", "WHAT TO DO"],
        ["ens1f0", "all", "0", "8", "changed", "8 made"],
        ["ens1f1", "4", "8", "8", "refused", "[VF 3] is used", "drain"],
        ["0000:05:00.0", "<none>", "<none>", "<none>", "failed", "no driver"],
        ["<none>", "<none>", "<none>", "<none>", "not there", "eth9 is not there"],
    ]


@pytest.mark.parametrize("result", PfResult)
def test_process_succeeds_unless_a_pf_differs_from_its_configuration(result: PfResult) -> None:
    outcomes = [
        PfOutcome(pf="a", result=PfResult.READY, message=""),
        PfOutcome(pf="b", result=result, message=""),
    ]
    assert all_well(outcomes, keep_used_vfs=False) == (result not in {PfResult.REFUSED, PfResult.FAILED})
    assert all_well(outcomes, keep_used_vfs=True) == (result is not PfResult.FAILED)


def test_defaults_are_those_of_the_document() -> None:
    config = InitConfig()
    assert (config.tries, config.state_dir, config.keep_used_vfs) == (3, "/var/lib/k8s-rdma", False)
    assert msgspec.convert({}, InitConfig) == config
