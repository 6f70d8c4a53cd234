"""Options of connections.

An answer leaves at once, head and body by one system call: parts of it never wait for the client's
acknowledgement (Nagle's algorithm). What a client sends faster than it is read waits with the client.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
from typing import TYPE_CHECKING, Any

import pytest

from http_server.certificates import Issuer
from http_server.serving import REQUEST, Served, run, served
from k8s_rdma.config.tls import TlsConfig
from k8s_rdma.http_server.asgi import tls_context
from k8s_rdma.http_server.connections import RECEIVE_BUFFER_BYTES

if TYPE_CHECKING:
    from pathlib import Path


LARGE_BYTES = 3 << 20


def test_connection_reads_little_ahead_except_of_a_large_body() -> None:
    async def scenario() -> None:
        async with served() as s:
            client = await s.connect()
            client.send(b"POST /read HTTP/1.1\r\nHost: w1\r\nContent-Length: %d\r\n\r\n" % LARGE_BYTES)
            await s.until(lambda: bool(s.tasks))
            assert receive_buffer(s) > 2 * RECEIVE_BUFFER_BYTES
            client.send(bytes(LARGE_BYTES))
            assert await client.answer() == (200, b"later")
            assert receive_buffer(s) == 2 * RECEIVE_BUFFER_BYTES
            client.send(REQUEST)
            assert await client.answer() == (200, b"now")
            assert receive_buffer(s) == 2 * RECEIVE_BUFFER_BYTES

    run(scenario())


def receive_buffer(s: Served) -> int:
    """Of its one connection, as the kernel has it, with what it needs itself."""
    [connection] = s.connections
    size: int = connection.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    return size


@pytest.mark.parametrize("encrypted", [False, True])
def test_connection_sends_without_delay_and_an_answer_at_once(tmp_path: Path, encrypted: bool) -> None:
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
                before = sent_segments(same)
                client_side.send(REQUEST)
                assert await client_side.answer() == (200, b"now")
                assert sent_segments(same) - before == 1

    run(scenario())


def sent_segments(connection: socket.socket) -> int:
    """Segments with data so far, `tcpi_data_segs_out` (include/uapi/linux/tcp.h): one a write, if small."""
    information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
    return int.from_bytes(information[156:160], sys.byteorder)
