"""A node of virtual PFs, its agent, and the executable that a runtime runs there."""

from __future__ import annotations

from e2e.conftest import build_dir, make_node, program

__all__ = ["build_dir", "make_node", "program"]
