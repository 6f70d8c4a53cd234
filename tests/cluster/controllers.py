"""More controllers of kube-controller-manager, for scenarios that are about what they do."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from cluster.control_plane import write_kubeconfig
from cluster.processes import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cluster.real import Real


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
    )
    log = plane.directory / f"kube-controller-manager-{names[0]}.log"
    async with running(log, plane.programs / "kube-controller-manager", *arguments):
        yield
