"""Rows of docs/doctor-findings.md, made from what the checks yield; `make tables` writes them."""

from __future__ import annotations

import re
from pathlib import Path

from doctor import cluster_cases, node_cases
from k8s_rdma.doctor.finding import not_looked_at

PAGE = Path(__file__).parents[2] / "docs/doctor-findings.md"
CASES = node_cases.CASES | cluster_cases.CASES
CASES["not-looked-at"] = [not_looked_at("ledger", "Permission denied", denied=True)]

_ROW = re.compile(r"^\| `(?P<id>[a-z0-9-]+)` \| (?:note|warning|error) \| .*$", re.MULTILINE)
_FILE = re.compile(r"\bdocs/([a-z-]+)\.md(#[a-z0-9-]+)?")


def row_ids(page: str) -> list[str]:
    """The ids of the findings that the page has a row for."""
    return [row["id"] for row in _ROW.finditer(page)]


def with_rows(page: str) -> str:
    """The page with each row as the program prints that finding for this folder's cases."""
    return _ROW.sub(lambda row: _row(row["id"]), page)


def _row(kind_id: str) -> str:
    finding = next(finding for finding in CASES[kind_id] if finding.id == kind_id)
    fix = _FILE.sub(r"[\1](\1.md\2)", finding.fix)
    return f"| `{finding.id}` | {finding.severity} | {finding.found} | {fix} |"


if __name__ == "__main__":
    PAGE.write_text(with_rows(PAGE.read_text()))
