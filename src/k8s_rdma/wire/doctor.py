"""What `k8s-rdma doctor --json` prints. Format: docs/doctor.md."""

from __future__ import annotations

from typing import Literal

import msgspec

FORMAT = 1
"""Grows when a field changes its meaning or goes; new fields and new ids do not count."""

SeverityText = Literal["ok", "note", "warning", "error"]


class FindingDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One finding; see `doctor.finding.Finding`."""

    id: str
    subject: str
    severity: SeverityText
    about: str
    found: str
    source: str
    expected: str = msgspec.field(name="wanted")
    fix: str


class DoctorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All findings of one run. of: the subject. worst: the highest severity. version: the program's."""

    format: int = FORMAT
    of: Literal["node", "cluster"]
    version: str
    worst: SeverityText
    findings: tuple[FindingDocument, ...]


_encoder = msgspec.json.Encoder()


def encode_doctor(document: DoctorDocument) -> bytes:
    """The document's bytes, on several lines."""
    return msgspec.json.format(_encoder.encode(document), indent=2) + b"\n"
