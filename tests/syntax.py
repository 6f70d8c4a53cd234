"""Syntax trees of source files."""

from __future__ import annotations

import ast
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def syntax_tree(path: Path) -> ast.Module:
    """The tree of a Python file.

    The garbage collector rests meanwhile: if it ends a task that failed, asyncio logs the traceback, for
    which Python parses the failed line, and Python 3.11 before 3.11.8 cannot parse while it parses.
    """
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()
