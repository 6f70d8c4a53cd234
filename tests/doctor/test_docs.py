"""docs/doctor-findings.md has every finding with the message and the fix that the program prints."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from doctor.findings_page import PAGE, row_ids, with_rows
from k8s_rdma.cli.doctor import KINDS, SUBJECTS
from k8s_rdma.doctor.finding import Severity
from k8s_rdma.wire.doctor import DoctorDocument, FindingDocument

DOCS = Path(__file__).parents[2] / "docs"
TEXT = PAGE.read_text()


def test_every_finding_is_documented_once():
    documented = [kind.id for kind in KINDS if kind.severity is not Severity.OK]
    rows = row_ids(TEXT)
    assert len(rows) == len(set(rows)), "a finding has two rows in docs/doctor-findings.md"
    missing = sorted(set(documented) - set(rows))
    assert not missing, (
        f"add rows `| ID | SEVERITY |` to docs/doctor-findings.md, then `make tables`: {missing}"
    )
    assert set(rows) <= set(documented), "no check makes these findings any more: remove their rows"


def test_rows_are_in_the_program_s_own_words():
    assert with_rows(TEXT) == TEXT, "make tables"


def test_findings_that_all_is_well_are_documented():
    """Its first paragraph says that most are called after their subject."""
    wanted = {kind.id for kind in KINDS if kind.severity is Severity.OK and kind.id != f"{kind.subject}-ok"}
    assert {f"`{each}`" for each in {"cni-ok", *wanted}} <= set(re.findall(r"`[a-z0-9-]+`", TEXT))


def test_every_subject_has_a_section():
    missing = sorted(set(SUBJECTS.values()) - set(re.findall(r"^### (.+)$", TEXT, re.MULTILINE)))
    assert not missing, f"add these sections to docs/doctor-findings.md: {missing}"


def test_every_field_of_the_document_is_documented():
    fields = {
        each.encode_name
        for kind in (DoctorDocument, FindingDocument)
        for each in msgspec.structs.fields(kind)
    }
    section = (DOCS / "doctor.md").read_text().partition("## The document")[2]
    assert {f"`{each}`" for each in fields} <= set(re.findall(r"`[a-z]+`", section))
