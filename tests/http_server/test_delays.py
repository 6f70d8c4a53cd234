"""Options of connections.

An answer leaves at once: parts of it never wait for the client's acknowledgement (Nagle's algorithm). What a
client sends faster than it is read waits with the client.
"""

from __future__ import annotations

import os
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from http_server.certificates import Issuer
from http_server.serving import REQUEST, run, served
from k8s_rdma.config.files import TlsConfig
from k8s_rdma.http_server import listen
from k8s_rdma.http_server.asgi import tls_context
from k8s_rdma.http_server.server import RECEIVE_BUFFER_BYTES

if TYPE_CHECKING:
    from pathlib import Path


def test_connection_takes_little_of_what_is_sent_ahead_of_its_reading() -> None:
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        size = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert size == 2 * RECEIVE_BUFFER_BYTES  # as the kernel has it, with what it needs itself


@pytest.mark.parametrize("encrypted", [False, True])
def test_connection_sends_without_delay(tmp_path: Path, encrypted: bool) -> None:
    client: dict[str, Any] = {}
    server: dict[str, Any] = {}
    if encrypted:
        issuer = Issuer(tmp_path).make()
        made = issuer.issue("server")
        server["tls"] = tls_context(TlsConfig(cert_file=str(made.cert), key_file=str(made.key)))
        client["ssl"] = ssl.create_default_context(cafile=str(issuer.own.cert))

    async def scenario() -> None:
        async with served(**server) as s:
            client_side = await s.connect(**client)
            client_side.send(REQUEST)
            assert await client_side.answer() == (200, b"now")
            [connection] = s.connections
            with socket.socket(fileno=os.dup(connection.transport.get_extra_info("socket").fileno())) as same:
                assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    run(scenario())
