"""The stand-ins' HTTP server: it leaves no connection open."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from k8s_rdma_demo.cluster.http_server import HttpService, Request, Response, serving

pytestmark = pytest.mark.anyio


async def answer(_: Request) -> Response:
    return Response(status=200, body=b"{}")


def refuse(status: int) -> Response:
    return Response(status=status, body=b"{}")


@pytest.mark.parametrize("turns", range(8))
async def test_connection_is_closed_at_whatever_moment_of_its_coming_the_server_stops(turns: int):
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        async with serving(HttpService(handle=answer, refuse=refuse), "127.0.0.1", 0) as port:
            await loop.sock_connect(client, ("127.0.0.1", port))
            for _ in range(turns):
                await asyncio.sleep(0)
        async with asyncio.timeout(5):
            with suppress(ConnectionResetError):
                assert await loop.sock_recv(client, 1) == b""
