"""docs/doctor-findings.md has every finding with the message and the fix that the program prints."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from doctor.findings_page import PAGE, page
from k8s_rdma.wire.doctor import DoctorDocument, FindingDocument

DOCS = Path(__file__).parents[2] / "docs"


def test_page_of_findings_is_made_from_subjects_and_cases():
    assert PAGE.read_text() == page(), "make tables"


def test_every_field_of_the_document_is_documented():
    fields = {
        each.encode_name
        for kind in (DoctorDocument, FindingDocument)
        for each in msgspec.structs.fields(kind)
    }
    section = (DOCS / "doctor.md").read_text().partition("## The document")[2]
    assert {f"`{each}`" for each in fields} <= set(re.findall(r"`[a-z]+`", section))
