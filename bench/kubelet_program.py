"""A kubelet that only reports which pod holds a slot: `kubelet_program.py SOCKET POD`, until it is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from k8s_rdma.config.devices import SLOT_RESOURCE
from k8s_rdma.core.devices.pod_devices import ContainerDevices, PodDevices
from k8s_rdma.kube import grpc_calls
from k8s_rdma.wire.pod_resources import GET_METHOD, LIST, PodName


async def serve(socket: Path, name: str) -> None:
    """Serve the answers of a node with 110 pods, of which one is asked for."""
    held = ContainerDevices(container="app", resource=SLOT_RESOURCE, ids=("slot-0",))
    pod = PodDevices(namespace="default", name=name, devices=(held,))
    others = tuple(PodDevices(namespace="default", name=f"other-{number}") for number in range(109))

    async def one(_: PodName) -> PodDevices:
        return pod

    async def every(_: None) -> tuple[PodDevices, ...]:
        return (*others, pod)

    server = grpc_calls.new_server()
    handlers = {GET_METHOD: grpc_calls.handler(GET_METHOD, one), LIST: grpc_calls.handler(LIST, every)}
    grpc_calls.add_service(server, handlers)
    server.add_insecure_port(grpc_calls.address(socket))
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
