"""Severities, and the exit status that they make."""

from __future__ import annotations

import os
from errno import EACCES, ENOENT

import pytest
from rich.console import Console

from k8s_rdma.cli.doctor import document, page
from k8s_rdma.doctor.checks import run_check
from k8s_rdma.doctor.finding import Severity, exit_status, not_looked_at, worst
from k8s_rdma.doctor.subject import Subject
from k8s_rdma.errors import KernelError
from k8s_rdma.wire.doctor import encode_doctor
from k8s_rdma.wire.nesting import load

SUBJECT = Subject("x", "X")
NOTE, WARNING, ERROR = (
    kind("of a kind", source="here") for kind in (SUBJECT.note("a"), SUBJECT.warning("b"), SUBJECT.error("c"))
)


@pytest.mark.parametrize(
    ("findings", "lenient", "strict"),
    [((), 0, 0), ((NOTE,), 0, 0), ((NOTE, WARNING), 0, 1), ((WARNING, ERROR), 1, 1)],
)
def test_exit_status_is_of_the_worst(findings, lenient, strict):
    assert exit_status(findings, strict=False) == lenient
    assert exit_status(findings, strict=True) == strict


def test_worst_of_no_findings_is_ok():
    assert worst(()) is Severity.OK


def test_unreadable_part_is_a_warning_of_its_subject():
    found = not_looked_at("cni", "EPERM", denied=True)
    assert (found.id, found.subject, found.severity) == ("not-looked-at", "cni", Severity.WARNING)
    assert found.fix.startswith("run it as root")
    other = not_looked_at("modules", "/lib/modules/6.1/modules.dep: is not there", denied=False)
    assert "run it as root" not in other.fix


def denied():
    raise PermissionError(EACCES, "Permission denied", "/proc/1/exe")


def denied_below():
    try:
        denied()
    except OSError as error:
        raise KernelError("sysfs: Permission denied") from error


def absent():
    raise FileNotFoundError(ENOENT, "No such file or directory", "/lib/modules")


@pytest.mark.parametrize(("look", "as_root"), [(denied, True), (denied_below, True), (absent, False)])
def test_root_is_advised_only_if_a_right_is_missing(look, as_root):
    [found] = run_check("modules", look)
    assert found.fix.startswith("run it as root") == as_root


def test_document_nested_too_deep_is_not_looked_at():
    [found] = run_check("claims", lambda: load("[" * 5_000))
    assert (found.id, found.subject) == ("not-looked-at", "claims")
    assert "nested deeper than 64 levels" in found.found


def test_counts_are_printed_in_plural_except_for_one():
    *_, last = page([ERROR, WARNING, WARNING])
    assert str(last).startswith("1 error, 2 warnings, 0 notes, 0 ok;")


def test_finding_is_printable_whatever_bytes_a_file_is_called():
    name = os.fsdecode(b"\xff")
    found = SUBJECT.error("c")(name, source=name, about=name, expected=name, fix=name)
    assert rb'"\\udcff"' in encode_doctor(document("node", [found]))
    console = Console(color_system=None)
    with console.capture() as captured:
        console.print(*page([found]))
    assert captured.get().encode()
