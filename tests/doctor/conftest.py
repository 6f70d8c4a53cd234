"""A node of virtual PFs, its agent, the executable that a runtime runs there, and a node of few files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from e2e.conftest import build_dir, make_node, program
from k8s_rdma.doctor.collectors.host import Host

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["build_dir", "make_node", "program"]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "proc").mkdir()
    return Host(tmp_path)
