"""The common parts of the layers over the guest's root: their sources, and how Python's are made."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from lab.cpio import write_archive
from lab.errors import LabError
from lab.tree import compile_python

REPOSITORY = Path(__file__).resolve().parent.parent
SITE = "opt/site"
"""The place of Python's packages in the guest."""
ARCHIVE = "layer.cpio"


def close(tree: Path, guest: Path | None = None) -> None:
    """Make the tree the archive beside it. guest: its Python makes byte code, if there is any."""
    if guest is not None:
        compile_python(tree, f"/{SITE}", python=guest / "root")
    write_archive(tree, tree.parent / ARCHIVE)
    shutil.rmtree(tree)


def place(program: Path, target: Path) -> None:
    """Copy a program."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(program, target)
    target.chmod(0o755)


def pip(*arguments: str) -> None:
    """Run pip; raise LabError with its output if it fails."""
    command = [
        sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", *arguments,
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise LabError(f"pip {arguments[0]} failed:\n{ended.stdout}{ended.stderr}")
