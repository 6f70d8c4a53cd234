"""docs/doctor-findings.md has every finding with the message and the fix that the program prints."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from doctor import cluster_cases, node_cases
from k8s_rdma.doctor.catalogue import KINDS, SUBJECTS
from k8s_rdma.doctor.finding import Severity, not_looked_at
from k8s_rdma.wire.doctor import DoctorDocument, FindingDocument

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "doctor-findings.md").read_text()
CASES = node_cases.CASES | cluster_cases.CASES
CASES["not-looked-at"] = [not_looked_at("ledger", "Permission denied", denied=True)]


def row(name: str) -> str:
    """As it stands in the document, of the facts that this folder's cases are made of."""
    found = next(each for each in CASES[name] if each.id == name)
    return f"| `{found.id}` | {found.severity} | {found.found} | {found.fix} |"


def test_every_finding_is_documented_in_its_own_words():
    wanted = [row(kind.id) for kind in KINDS if kind.severity is not Severity.OK]
    written = re.findall(r"^\| `[a-z0-9-]+` \| (?:note|warning|error) \| .*$", TEXT, re.MULTILINE)
    assert sorted(written) == sorted(wanted)


def test_findings_that_all_is_well_are_documented():
    wanted = {kind.id for kind in KINDS if kind.severity is Severity.OK}
    assert {f"`{each}`" for each in wanted} <= set(re.findall(r"`[a-z0-9-]+`", TEXT))


def test_every_subject_has_a_section():
    assert set(SUBJECTS.values()) <= set(re.findall(r"^### (.+)$", TEXT, re.MULTILINE))


def test_every_field_of_the_document_is_documented():
    fields = {
        each.encode_name
        for kind in (DoctorDocument, FindingDocument)
        for each in msgspec.structs.fields(kind)
    }
    section = (DOCS / "doctor.md").read_text().partition("## The document")[2]
    assert {f"`{each}`" for each in fields} <= set(re.findall(r"`[a-z]+`", section))
