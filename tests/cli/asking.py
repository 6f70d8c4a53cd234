"""The command line as users start it, beside an extender that serves in this process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from extender.serving import BIND, FILTER, Served
from warm_program import run

if TYPE_CHECKING:
    from extender.world import World

MAIN = [sys.executable, "-c", "from k8s_rdma.cli.main import main; main()"]
ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if key not in ("K8S_RDMA_EXTENDER", "COLUMNS")},
    "KUBECONFIG": "/absent",
}


@dataclass(frozen=True, slots=True)
class Ran:
    """The output of a command, and how it ended."""

    status: int
    out: str
    err: str


async def k8s_rdma(*arguments: str, **environment: str) -> Ran:
    """Run a command until its end, while this process serves it."""
    ran = await asyncio.to_thread(run, arguments, {**ENVIRONMENT, **environment})
    return Ran(ran.returncode, ran.stdout, ran.stderr)


async def bind(world: World, served: Served, pod: str, node: str) -> None:
    filtered = (await served.post(FILTER, world.args(pod))).json()
    assert node in filtered["NodeNames"], filtered
    assert json.loads((await served.post(BIND, world.bind_args(pod, node))).content) == {"Error": ""}
