"""A subject of doctor: its kinds of findings, and its one check."""

from __future__ import annotations

import pytest

from k8s_rdma.doctor.subject import Subject


def test_subject_has_one_check_above_which_its_kinds_are():
    subject = Subject("x", "X")
    with pytest.raises(RuntimeError, match="x has no check: decorate"):
        subject.findings(())
    subject.check(tuple)(iter)
    with pytest.raises(RuntimeError, match="x has a check: make another subject"):
        subject.check(tuple)
    with pytest.raises(RuntimeError, match="x-late: make it a constant of the module, above the check"):
        subject.error("late")
