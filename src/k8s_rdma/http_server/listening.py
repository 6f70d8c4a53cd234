"""The listening socket."""

from __future__ import annotations

import socket

from k8s_rdma.errors import K8sRdmaError

RECEIVE_BUFFER_BYTES = 32 << 10
"""Of each connection (socket(7), SO_RCVBUF, which the kernel doubles), and so of one read. Left to itself it
grows to megabytes for each client that sends fast, and TLS keeps several times a read for each connection."""


def listen(address: str, port: int, *, backlog: int = 2048) -> socket.socket:
    """A listening socket; for an empty address on all addresses of both families, where there are two.

    K8sRdmaError says where it cannot listen, and why.
    """
    ipv6 = ":" in address or (not address and socket.has_dualstack_ipv6())
    try:
        listener = socket.create_server(
            (address, port),
            family=socket.AF_INET6 if ipv6 else socket.AF_INET,
            backlog=backlog,
            dualstack_ipv6=ipv6 and not address,
        )
    except OSError as error:
        msg = f"cannot listen on {address or 'any address'}, port {port}: {error.strerror}"
        raise K8sRdmaError(msg) from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    return listener
