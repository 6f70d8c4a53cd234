"""The CNI executable: where it is, and putting it where the container runtime looks."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from k8s_rdma.errors import K8sRdmaError

PROGRAM = "k8s-rdma-cni"
LEGACY_NAME = "rit-k8s-rdma-cni-linux-amd64"
"""What configurations of the system that this one replaces call their plugin (`type`)."""


def find_program() -> Path | None:
    """The executable: the one named in K8S_RDMA_CNI, installed with this package, or built here."""
    named = os.environ.get("K8S_RDMA_CNI") or shutil.which(PROGRAM)
    candidates = [Path(named)] if named else [Path("build") / PROGRAM, Path("/opt/cni/bin") / PROGRAM]
    return next((path.absolute() for path in candidates if os.access(path, os.X_OK)), None)


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
