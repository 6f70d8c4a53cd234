"""The layer of the lab's own files: the first process, the agent, programs for scripts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from lab.layers import close, place

if TYPE_CHECKING:
    from lab.cache import Cache

FILES = Path(__file__).parent / "guest"
PROGRAMS = ("lab-cable", "lab-node", "lab-pod", "lab-shell", "lab-sriov")


def furniture(cache: Cache) -> Path:
    """Below /opt/lab."""

    def make(product: Path) -> None:
        tree = product / "root"
        shutil.copytree(FILES, tree / "opt/lab", ignore=shutil.ignore_patterns("__pycache__"))
        place(FILES / "init", tree / "init")
        for name in PROGRAMS:
            place(FILES / name, tree / "usr/bin" / name)
        close(tree)

    return cache.product("furniture", Path(__file__), FILES, make=make)
