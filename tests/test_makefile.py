"""The Makefile provides for a test the programs that it needs, and no others."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CNI, RELEASE = "scripts/make-cni", "scripts/setup-packages release"


def provided_for(arguments: str) -> set[str]:
    """Return which of both `make test` would make in a clone that has neither."""
    new = "requirements/release.txt"
    command = ["make", "--dry-run", "--what-if", new, "test", *([f"ARGS={arguments}"] if arguments else [])]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return {each for each in (CNI, RELEASE) if each in done.stdout}


@pytest.mark.parametrize(
    ("arguments", "provided"),
    [
        ("", {CNI, RELEASE}),
        ("-k word", {CNI, RELEASE}),
        ("--changed", {CNI, RELEASE}),
        ("tests", {CNI, RELEASE}),
        ("./tests/ -x", {CNI, RELEASE}),
        ("tests/core/test_programming.py", set()),
        ("tests/core -k ledger", set()),
        ("tests/deploy/test_release", set()),
        ("tests/deploy", {RELEASE}),
        ("tests/core tests/deploy/test_release.py::test_release[a b]", {RELEASE}),
        ("./tests/hardware/test_node.py", {CNI}),
    ],
)
def test_make_provides_programs_of_the_named_tests(arguments: str, provided: set[str]):
    assert provided_for(arguments) == provided
