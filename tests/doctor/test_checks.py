"""Each check is seen to find what it is for, and to find nothing where all is well."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from doctor.cases.cni import CHAIN, PLAIN, cni
from doctor.cases.hardware import NOTHING_SEEN, WITHOUT_RDMA, hardware
from doctor.cases.isolation import isolation
from doctor.cases.memlock import memlock
from doctor.cases.processes import report_of_pf
from doctor.cases.runtime import crio
from doctor.known_cases import KINDS, findings_of, in_order
from k8s_rdma.config.devices import ExactResource
from k8s_rdma.doctor import cluster, node
from k8s_rdma.doctor.checks import subjects, subjects_of
from k8s_rdma.doctor.collectors.cluster import ClusterCollector
from k8s_rdma.doctor.collectors.node import NodeCollector
from k8s_rdma.doctor.finding import NOT_LOOKED_AT, Severity, worst
from k8s_rdma.doctor.node.hardware import check_hardware
from k8s_rdma.doctor.subject import Subject
from named_commands import wrong
from syntax import syntax_tree

SUBJECTS = {subject.name: subject for subject in subjects()}
KIND = {kind.id: kind for kind in KINDS}
MODULES = [
    import_module(f"{package.__name__}.{module.name}")
    for package in (node, cluster)
    for module in iter_modules(package.__path__)
]


def test_every_check_is_run_by_a_collector():
    run = {
        subject for collector in (NodeCollector, ClusterCollector) for _, subject in subjects_of(collector)
    }
    unrun = sorted(f"{each.facts.__name__} for {each.name}" for each in set(subjects()) - run)
    assert not unrun, f"NodeCollector or ClusterCollector needs a @collected method that returns {unrun}"


def test_kinds_and_subjects_have_one_id_each():
    assert len(KIND) == len(KINDS)
    assert len(SUBJECTS) == len(subjects())


@pytest.mark.parametrize(
    "module", MODULES, ids=lambda module: module.__name__.removeprefix("k8s_rdma.doctor.")
)
def test_check_makes_its_findings_by_kinds_alone(module):
    """A finding or a kind that is made otherwise would have no case and no row of the page."""
    calls = (each for each in ast.walk(syntax_tree(Path(module.__file__))) if isinstance(each, ast.Call))
    makers = [each.func.id for each in calls if isinstance(each.func, ast.Name)]
    assert not {"Finding", "Kind"}.intersection(makers), (
        "make a constant by Subject.ok, note, warning or error"
    )


def test_subject_has_one_check_above_which_its_kinds_are():
    subject = Subject("x", "X")
    with pytest.raises(RuntimeError, match="x has no check: decorate"):
        subject.findings(())
    subject.check(tuple)(iter)
    with pytest.raises(RuntimeError, match="x has a check: make another subject"):
        subject.check(tuple)
    with pytest.raises(RuntimeError, match="x-late: make it a constant of the module, above the check"):
        subject.error("late")


@pytest.mark.parametrize("kind_id", sorted(KIND.keys() - {NOT_LOOKED_AT.id}))
def test_check_finds_the_fault_and_gives_advice(kind_id):
    found = [each for each in findings_of(kind_id) if each.id == kind_id]
    assert found
    for each in found:
        assert each.severity is KIND[kind_id].severity
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


@pytest.mark.parametrize("kind_id", KIND)
def test_fix_is_a_command_that_there_is(kind_id):
    assert not [each for found in findings_of(kind_id) for each in commands(found.fix) if wrong(each)]


def test_commands_are_seen_in_a_fix():
    assert commands("kubectl -n k8s-rdma logs x; k8s-rdma explain pod a/b, or k8s-rdma doctor --x") == [
        "k8s-rdma explain pod a/b",
        "k8s-rdma doctor --x",
    ]


@pytest.mark.parametrize("name", SUBJECTS)
def test_check_finds_no_fault_if_all_is_in_order(name):
    found = in_order(SUBJECTS[name])
    assert {each.subject for each in found} == {name}
    assert worst(found).rank <= Severity.NOTE.rank


def test_machine_without_a_card_gets_no_advice_about_useless_settings():
    [found] = check_hardware(NOTHING_SEEN)
    assert found.id == "hardware-no-pf"
    assert found.found.startswith("no network card of this machine can have VFs: SR-IOV off in the BIOS")
    assert "requireRdma" not in found.fix


def test_problems_of_pfs_in_the_agents_report_are_shown_once():
    facts = hardware("igb-link-down", WITHOUT_RDMA)
    observed = [problem for pf in facts.hardware.pfs for problem in pf.problems]
    reserved = "PF eth0: 2000 Mb/s are reserved, and its link speed is unknown now"
    pf = next(each for each in facts.hardware.pfs if each.problems)
    reported = report_of_pf(name=pf.name, pci=pf.pci, problems=(*pf.problems, reserved))
    found = [
        each.found
        for each in check_hardware(replace(facts, report=reported))
        if each.id == "hardware-problem"
    ]
    assert found == [*observed, reserved]
    virtual = replace(NOTHING_SEEN, virtual=True)
    assert reserved in [each.found for each in check_hardware(replace(virtual, report=reported))]


def test_key_for_placements_is_not_missed_in_a_file_that_is_not_there():
    told = isolation(ExactResource(), signed=False, agent_file=None)
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
def test_runtime_that_delivers_no_annotations_is_reported_by_its_consequence(version, credentials, told):
    assert [each.id for each in crio(version, credentials=credentials)] == [told]


@pytest.mark.parametrize(
    ("change", "calls_check"),
    [
        ({}, False),
        ({"disableCheck": True}, True),
        ({"cniVersion": "0.3.1"}, True),
        ({"plugins": [{"type": "flannel"}, *CHAIN["plugins"][1:]]}, True),
    ],
    ids=["containerd", "not to be checked", "no CHECK yet", "checks nothing"],
)
def test_list_is_in_order_if_no_plugin_fails_its_check(change, calls_check):
    file = ("00-k8s-rdma.conflist", json.dumps(CHAIN | change))
    found = cni(file, PLAIN, calls_check=calls_check)
    assert "cni-checked" not in {each.id for each in found}


def test_capability_is_no_cure_for_locked_memory_of_who_is_not_root():
    [finding] = findings_of("memlock-low")
    assert "except for root with IPC_LOCK" in finding.found
    assert finding.fix.endswith("IPC_LOCK helps root alone")


def test_limit_of_the_runtime_is_no_fault_if_slots_raise_it():
    [finding] = memlock(8 << 20, amount="64Gi")
    assert finding.id == "memlock-ok"
    assert finding.found == "containers with a slot may lock 64Gi, others 8388608 bytes"


def test_limit_that_a_runtime_sets_is_no_fault_if_it_is_unlimited():
    ulimits = (("crio", "-1:-1"),)
    assert [each.id for each in memlock(None, amount="64Gi", ulimits=ulimits)] == ["memlock-ok"]
    assert "memlock=8388608:-1" in findings_of("memlock-overrides")[0].found


def test_fix_of_locked_memory_can_be_typed_if_the_service_has_no_files_yet(tmp_path: Path):
    [finding] = findings_of("memlock-low")
    (tmp_path / "systemd" / "system").mkdir(parents=True)
    typed = finding.fix.partition(", then ")[0].replace("/etc", str(tmp_path))
    subprocess.run(["bash", "-eu", "-c", typed], check=True)
    [written] = tmp_path.rglob("memlock.conf")
    assert written.read_text() == "[Service]\nLimitMEMLOCK=infinity\n"
