"""A bare gRPC server: the cost of NodePrepareResources without a driver behind it.

`bare_driver.py SOCKET`: answers each prepare with an empty message; a line on stdout when it serves.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import grpc.aio

from k8s_rdma.wire.dra import PREPARE


async def serve(socket: str) -> None:
    """Serve until killed."""

    async def prepare(_request: bytes, _context: Any) -> bytes:
        return b""

    _, service, method = PREPARE.path.split("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(prepare)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
