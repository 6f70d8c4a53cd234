"""Messages of gRPC are those that `make proto` makes of their definitions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"
DEFINITIONS = sorted(str(path.relative_to(SOURCES)) for path in SOURCES.glob("k8s_rdma*/**/pb/*.proto"))


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_generated_module_is_that_of_its_definition(definition: str, tmp_path: Path) -> None:
    generator = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(SOURCES)]
    subprocess.run([*generator, f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", definition], check=True)
    for suffix in ("_pb2.py", "_pb2.pyi"):
        module = definition.removesuffix(".proto") + suffix
        made, committed = (root / module for root in (tmp_path, SOURCES))
        assert made.read_text() == committed.read_text(), f"{module} is not of {definition}: run make proto"


def test_definitions_are_found() -> None:
    assert len(DEFINITIONS) == 7
