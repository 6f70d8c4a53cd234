"""Run a container by CRI inside a guest: `python3 run_container.py SOCKET`.

Its configuration is JSON on stdin. It gets a pod of the same name; its ID is printed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from k8s_rdma_demo.cluster.cri_runtime import CriRuntime
from k8s_rdma_demo.cluster.sandboxes import PodRef
from k8s_rdma_demo.cri import ContainerConfig


async def run(socket: Path, container: ContainerConfig) -> str:
    """Run it; return its ID."""
    pod = PodRef(namespace="default", name=container.name, uid=container.name)
    async with CriRuntime.connecting(socket) as runtime:
        sandbox = await runtime.attach(await runtime.create(pod))
        return await runtime.start_container(sandbox.container_id, pod, container)


if __name__ == "__main__":
    configuration = msgspec.json.decode(sys.stdin.buffer.read(), type=ContainerConfig)
    print(asyncio.run(run(Path(sys.argv[1]), configuration)))  # noqa: T201
