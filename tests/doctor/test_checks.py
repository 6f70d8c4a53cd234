"""Each check is seen to find its problems, and to find no problem if all is well."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from doctor.known_cases import KINDS, findings_of, in_order
from k8s_rdma.doctor import cluster, node
from k8s_rdma.doctor.checks import subjects, subjects_of
from k8s_rdma.doctor.collectors.cluster import ClusterCollector
from k8s_rdma.doctor.collectors.node import NodeCollector
from k8s_rdma.doctor.finding import NOT_LOOKED_AT, Severity, worst
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
    """Return our commands in it, each up to its end."""
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
