"""Severities, and the exit status that they make."""

from __future__ import annotations

import pytest

from k8s_rdma.doctor.finding import Severity, Subject, exit_status, not_looked_at, worst

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


def test_worst_of_nothing_is_ok():
    assert worst(()) is Severity.OK


def test_what_could_not_be_looked_at_is_a_warning_of_its_subject():
    found = not_looked_at("cni", "EPERM")
    assert (found.id, found.subject, found.severity) == ("not-looked-at", "cni", Severity.WARNING)
