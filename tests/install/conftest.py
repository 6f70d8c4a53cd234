"""A node with a network of its own, and an executable to be installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from install.node_files import BRIDGE, PORTMAP, NodeFiles, conflist

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def node(tmp_path: Path) -> NodeFiles:
    node = NodeFiles.made(tmp_path / "node")
    (node.confs / "10-pods.conflist").write_text(conflist(BRIDGE, PORTMAP))
    return node


@pytest.fixture
def program(tmp_path: Path) -> Path:
    program = tmp_path / "built"
    program.write_text("#!/bin/sh\necho new\n")
    program.chmod(0o700)
    return program
