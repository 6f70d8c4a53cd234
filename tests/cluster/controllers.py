"""More controllers of kube-controller-manager, for scenarios about their work."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.control_plane import write_kubeconfig
from cluster.processes import running
from cluster.real import FOLDER, Real

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


PROGRAM = "kube-controller-manager"


def obstacle() -> str | None:
    """Return why they are not available here, or None if they are."""
    folder = os.environ.get(FOLDER, "")
    return None if os.access(Path(folder) / PROGRAM, os.X_OK) else f"{FOLDER}: no program {PROGRAM} there"


@asynccontextmanager
async def controllers(plane: Real, *names: str) -> AsyncIterator[None]:
    """Those of these names, besides the ones that run already, until the block ends."""
    kubeconfig = write_kubeconfig(plane.directory / "more-controllers.kubeconfig", plane, plane.admin_token)
    arguments = (
        f"--kubeconfig={kubeconfig}",
        f"--controllers={','.join(names)}",
        f"--root-ca-file={plane.ca_file}",
        "--leader-elect=false",
        "--secure-port=0",
        *plane.feature_options,
    )
    log = plane.directory / f"{PROGRAM}-{names[0]}.log"
    async with running(log, plane.programs / PROGRAM, *arguments):
        yield
