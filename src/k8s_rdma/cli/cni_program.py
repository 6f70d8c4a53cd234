"""The CNI executable: where it is, and putting it where the container runtime looks."""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTION = "k8s-rdma"
PROGRAM = "k8s-rdma-cni"
LEGACY_NAME = "rit-k8s-rdma-cni-linux-amd64"
"""What configurations of the system that this one replaces call their plugin (`type`)."""


def find_program() -> Path | None:
    """The executable: the one named in K8S_RDMA_CNI; else this package's own, one on PATH, or one built here.

    Its own comes first: a virtual environment need not be on PATH, and what is there may be an older one.
    """
    named = os.environ.get("K8S_RDMA_CNI")
    candidates = [Path(named)] if named else _candidates()
    return next((path.absolute() for path in candidates if os.access(path, os.X_OK)), None)


def _candidates() -> Iterator[Path]:
    yield from _of_this_package()
    if on_path := shutil.which(PROGRAM):
        yield Path(on_path)
    yield Path("build") / PROGRAM
    yield Path("/opt/cni/bin") / PROGRAM


def _of_this_package() -> list[Path]:
    """What the wheel brought, wherever it was installed; nothing in an editable installation."""
    try:
        files = distribution(DISTRIBUTION).files or []
    except PackageNotFoundError:
        return []
    return [Path(file.locate()) for file in files if file.name == PROGRAM]


def install_program(directory: Path) -> tuple[Path, Path]:
    """Put it into a directory of plugins, by both its names; K8sRdmaError when that fails.

    Each name is replaced in one moment: a runtime that starts the plugin meanwhile starts the old or the new.
    """
    program = find_program()
    if program is None:
        msg = f"{PROGRAM} was not found: build it with `make cni`, or name it in K8S_RDMA_CNI"
        raise K8sRdmaError(msg)
    installed, legacy = directory / PROGRAM, directory / LEGACY_NAME
    try:
        with tempfile.TemporaryDirectory(prefix=f".{PROGRAM}-", dir=directory) as staging:
            fresh, link = Path(staging) / PROGRAM, Path(staging) / LEGACY_NAME
            shutil.copyfile(program, fresh)
            fresh.chmod(0o755)
            link.symlink_to(PROGRAM)
            fresh.replace(installed)
            link.replace(legacy)
    except OSError as error:
        msg = f"{PROGRAM} cannot be installed in {directory}: {error.strerror}"
        raise K8sRdmaError(msg, details=str(error)) from error
    return installed, legacy
