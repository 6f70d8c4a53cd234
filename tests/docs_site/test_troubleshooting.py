"""Messages by which people look for help are those that the code has."""

from __future__ import annotations

import re

import pytest

from documents import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
LITERALS = re.compile(r'"\s*\n\s*f?"')
"""Between parts of one text in Python and in C."""
FOLDERS = ("src", "cni", "deploy/policies")
SOURCES = " ".join(
    LITERALS.sub("", path.read_text())
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".c", ".yaml"}
)
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line[:3] == "| `"
]
ENOUGH = 8
"""Characters of a part that are not found by chance."""


def parts_of(message: str) -> list[str]:
    """Return its parts that do not change."""
    return [part for part in re.split(r"\.\.\.|%s", message) if len(part.strip()) >= ENOUGH]


def messages() -> list[str]:
    """Those of this project: the second column of four says whose they are."""
    ours = [row[0] for row in ROWS if len(row) == len(("message", "of", "is", "do")) and not row[1]]
    return [found for each in ours for found in re.findall(r"`([^`]+)`", each)]


@pytest.mark.parametrize("message", [each for each in messages() if parts_of(each)])
def test_message_matches_the_code(message: str):
    assert all(part.strip(":; ") in SOURCES for part in parts_of(message))


def test_messages_are_found_and_can_be_wrong():
    assert len(messages()) > 15
    assert "Insufficient k8s-rdma.io/slot" not in messages()
    assert parts_of("the k8s-rdma agent of this node ... cannot be reached at")
    assert "the RDMA scheduler extender is starling" not in SOURCES
