"""A bare gRPC server that has its answers ready: the cost of ListAndWatch without a device plugin.

`bare_plugin.py DIRECTORY`: for each file NAME.list in it, NAME.sock sends its bytes and then waits.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def serve(lists: dict[Path, bytes]) -> None:
    """Serve until killed; print a line on stdout when all sockets are served. lists: by socket."""
    servers = []
    for path, message in lists.items():
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_handlers(message),))
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        servers.append(server)
    print("ready", flush=True)
    await asyncio.gather(*(server.wait_for_termination() for server in servers))


def _handlers(message: bytes) -> grpc.GenericRpcHandler:
    async def follow(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        yield message
        await asyncio.Event().wait()

    each = {"ListAndWatch": grpc.unary_stream_rpc_method_handler(follow)}
    return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", each)


if __name__ == "__main__":
    found = sorted(Path(sys.argv[1]).glob("*.list"))
    asyncio.run(serve({path.with_suffix(".sock"): path.read_bytes() for path in found}))
