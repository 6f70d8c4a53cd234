"""Each check is seen to find what it is for, and to find nothing where all is well."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from doctor import cluster_cases, node_cases
from documents import ROOT
from k8s_rdma.cli.doctor import CHECKS as REGISTERED
from k8s_rdma.cli.doctor import KINDS, SUBJECTS
from k8s_rdma.config.devices import ExactResource
from k8s_rdma.doctor.finding import Severity, worst
from k8s_rdma.doctor.node.hardware import check_hardware
from named_commands import wrong
from syntax import syntax_tree

CASES = node_cases.CASES | cluster_cases.CASES
GOOD = node_cases.GOOD | cluster_cases.GOOD
KIND = {kind.id: kind for kind in KINDS}


def test_every_kind_has_facts_that_make_it():
    missing = sorted(set(KIND) - set(CASES) - {"not-looked-at"})
    assert not missing, f"add facts that make these findings to tests/doctor/*_cases.py: {missing}"
    assert set(CASES) <= set(KIND), "no check makes these findings any more: remove their facts"


DOCTOR = ROOT / "src" / "k8s_rdma" / "doctor"
CHECKS = [
    path
    for folder in ("node", "cluster")
    for path in sorted((DOCTOR / folder).glob("*.py"))
    if path.name != "__init__.py"
]
MAKERS = frozenset({"ok", "note", "warning", "error", "Subject", "Kind", "Finding"})
"""The functions that make a kind, or a finding without one."""


def unregistered(tree: ast.Module) -> list[int]:
    """The lines of calls that make a kind or a finding elsewhere than as a constant of the module."""
    constants = {
        id(statement.value)
        for statement in tree.body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    }
    return [
        call.lineno
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and id(call) not in constants and _function(call) in MAKERS
    ]


def _function(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@pytest.mark.parametrize("path", CHECKS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_kinds_are_constants_of_their_module_which_have_cases_and_rows(path: Path):
    """A kind that a function makes would have no case, no row of the page and no title."""
    assert not unregistered(syntax_tree(path))


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("X = CNI.error('a')", []),
        ("def f():\n    yield CNI.error('a')('x')", [2]),
        ("class A:\n    x = Kind('a', s, 'b')", [2]),
        ("def f():\n    return Finding(id='a')", [2]),
        ("TABLE = {'a': CNI.note('a')}", [1]),
    ],
)
def test_kind_that_is_no_constant_is_seen(code: str, lines: list[int]):
    assert unregistered(ast.parse(code)) == lines


def test_modules_of_checks_are_all_registered():
    assert {Path(str(module.__file__)) for module in REGISTERED} == set(CHECKS)


def test_every_check_is_run():
    """By a collector, or by the command; tests alone do not count."""
    command = ROOT / "src" / "k8s_rdma" / "cli" / "doctor.py"
    trees = map(syntax_tree, (*(DOCTOR / "collectors").glob("*.py"), command))
    used = {each.id for tree in trees for each in ast.walk(tree) if isinstance(each, ast.Name)}
    checks = {name for path in CHECKS for name in checks_of(syntax_tree(path))}
    assert len(checks) > 20
    unused = sorted(checks - used)
    assert not unused, f"call these in `findings` of NodeCollector or ClusterCollector: {unused}"


def checks_of(tree: ast.Module) -> list[str]:
    """The public functions that return findings, whatever they are called."""
    return [
        function.name
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
        and not function.name.startswith("_")
        and function.returns is not None
        and "Finding" in ast.unparse(function.returns)
    ]


def test_check_is_seen_by_its_findings():
    code = "def look(facts) -> Iterator[Finding]: ...\ndef _part() -> Finding: ...\ndef name(x) -> str: ..."
    assert checks_of(ast.parse(code)) == ["look"]


def test_subject_has_facts_that_are_in_order():
    """Else it would not be seen that a check finds faults where there are none."""
    makers = {kind.subject for kind in KINDS if kind.severity is Severity.OK}
    missing = sorted(makers - set(GOOD))
    assert not missing, f"add facts that are in order to GOOD of tests/doctor/*_cases.py: {missing}"


@pytest.mark.parametrize("name", CASES)
def test_check_finds_it_and_says_what_to_do(name):
    found = [each for each in CASES[name] if each.id == name]
    assert found
    for each in found:
        assert each.severity is KIND[name].severity
        assert each.subject in SUBJECTS
        assert each.found
        if each.severity.rank >= Severity.WARNING.rank:
            assert each.expected
            assert each.fix
            assert each.source


def commands(fix):
    """Ours in it, each up to what ends it."""
    return [
        found.strip() for found in re.findall(r"(?<!-n )(?<![\w/-])(k8s-rdma(?![\w-])(?: [\w/.=-]+)*)", fix)
    ]


@pytest.mark.parametrize("name", CASES)
def test_fix_is_a_command_that_there_is(name):
    assert not [each for found in CASES[name] for each in commands(found.fix) if wrong(each)]


def test_commands_are_seen_in_a_fix():
    assert commands("kubectl -n k8s-rdma logs x; k8s-rdma explain pod a/b, or k8s-rdma doctor --x") == [
        "k8s-rdma explain pod a/b",
        "k8s-rdma doctor --x",
    ]


@pytest.mark.parametrize("subject", GOOD)
def test_check_finds_nothing_wrong_where_all_is_well(subject):
    assert {each.subject for each in GOOD[subject]} == {subject}
    assert worst(GOOD[subject]).rank <= Severity.NOTE.rank


def test_machine_without_a_card_is_not_told_of_settings_that_cannot_help():
    [found] = node_cases.run(check_hardware, node_cases.NOTHING_SEEN)
    assert found.id == "hardware-no-pf"
    assert found.found.startswith("no network card of this machine can have VFs: SR-IOV off in the BIOS")
    assert "requireRdma" not in found.fix


def test_problems_of_pfs_in_the_agents_report_are_shown_once():
    facts = node_cases.hardware("igb-link-down", node_cases.WITHOUT_RDMA)
    observed = [problem for pf in facts.hardware.pfs for problem in pf.problems]
    reserved = "PF eth0: 2000 Mb/s are reserved, and its link speed is unknown now"
    pf = next(each for each in facts.hardware.pfs if each.problems)
    reported = node_cases.report_of_pf(name=pf.name, pci=pf.pci, problems=(*pf.problems, reserved))
    found = [each.found for each in check_hardware(facts, reported) if each.id == "hardware-problem"]
    assert found == [*observed, reserved]
    virtual = replace(node_cases.NOTHING_SEEN, virtual=True)
    assert reserved in [each.found for each in check_hardware(virtual, reported)]


def test_key_for_placements_is_not_missed_in_a_file_that_is_not_there():
    told = node_cases.isolation(ExactResource(), signed=False, agent_file=None)
    assert "isolation-unsigned-placements" not in {each.id for each in told}


@pytest.mark.parametrize(
    ("version", "credentials", "told"),
    [
        ("1.28.11", None, "runtime-asked-annotations"),
        ("1.29.0", False, "runtime-ok"),
        ("1.36.3", False, "runtime-ok"),
        ("1.27.9", False, "runtime-too-old"),
    ],
)
def test_runtime_that_delivers_no_annotations_is_told_by_what_it_costs(version, credentials, told):
    assert [each.id for each in node_cases.crio(version, credentials=credentials)] == [told]


def test_kinds_have_one_id_each():
    assert len(KIND) == len(KINDS)


@pytest.mark.parametrize(
    ("change", "calls_check"),
    [
        ({}, False),
        ({"disableCheck": True}, True),
        ({"cniVersion": "0.3.1"}, True),
        ({"plugins": [{"type": "flannel"}, *node_cases.CHAIN["plugins"][1:]]}, True),
    ],
    ids=["containerd", "not to be checked", "no CHECK yet", "checks nothing"],
)
def test_list_may_be_where_nobody_fails_its_check(change, calls_check):
    file = ("00-k8s-rdma.conflist", json.dumps(node_cases.CHAIN | change))
    found = node_cases.cni(file, node_cases.PLAIN, calls_check=calls_check)
    assert "cni-checked" not in {each.id for each in found}


def test_capability_is_no_cure_for_locked_memory_of_who_is_not_root():
    [finding] = CASES["memlock-low"]
    assert "except for root with IPC_LOCK" in finding.found
    assert finding.fix.endswith("IPC_LOCK helps root alone")


def test_limit_of_the_runtime_is_no_fault_where_slots_raise_it():
    [finding] = node_cases.memlock(8 << 20, amount="64Gi")
    assert finding.id == "memlock-ok"
    assert finding.found == "containers with a slot may lock 64Gi, others 8388608 bytes"


def test_limit_that_a_runtime_sets_is_no_fault_where_it_is_none():
    ulimits = (("crio", "-1:-1"),)
    assert [each.id for each in node_cases.memlock(None, amount="64Gi", ulimits=ulimits)] == ["memlock-ok"]
    assert "memlock=8388608:-1" in CASES["memlock-overrides"][0].found


def test_fix_of_locked_memory_can_be_typed_where_the_service_has_no_files_yet(tmp_path: Path):
    [finding] = CASES["memlock-low"]
    (tmp_path / "systemd" / "system").mkdir(parents=True)
    typed = finding.fix.partition(", then ")[0].replace("/etc", str(tmp_path))
    subprocess.run(["bash", "-eu", "-c", typed], check=True)
    [written] = tmp_path.rglob("memlock.conf")
    assert written.read_text() == "[Service]\nLimitMEMLOCK=infinity\n"
