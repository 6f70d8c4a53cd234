"""Other projects' programs that this one's stand beside on a node, and the folder that they are in."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

FOLDER = "K8S_RDMA_NEIGHBOURS_BIN"
"""The variable that names the folder."""


def folder() -> Path:
    """Return the folder; only if one of its programs is there."""
    return Path(os.environ[FOLDER])


def search_path(path: str) -> str:
    """Return the path that programs are searched on: the folder, if there is one, before a PATH."""
    return os.pathsep.join(filter(None, (os.environ.get(FOLDER), path)))


def missing(*programs: str) -> str | None:
    """Report which of these are neither in the folder nor on PATH, if any."""
    return _missing(programs, search_path(os.environ["PATH"]), "on PATH or ")


def missing_plugins(*plugins: str) -> str | None:
    """Report which CNI plugins are not in the folder, if any."""
    return _missing(plugins, search_path(""), "")


def _missing(programs: tuple[str, ...], path: str, where: str) -> str | None:
    found = [name for name in programs if not path or shutil.which(name, path=path) is None]
    return f"needs {', '.join(found)}, {where}in the folder that {FOLDER} names" if found else None
