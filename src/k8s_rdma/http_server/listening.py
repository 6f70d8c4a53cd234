"""The listening socket."""

from __future__ import annotations

import socket

from k8s_rdma.errors import K8sRdmaError


def listen(address: str, port: int, *, backlog: int = 2048) -> socket.socket:
    """A listening socket; for an empty address on all addresses of both families, where there are two.

    K8sRdmaError says where it cannot listen, and why.
    """
    ipv6 = ":" in address or (not address and socket.has_dualstack_ipv6())
    try:
        return socket.create_server(
            (address, port),
            family=socket.AF_INET6 if ipv6 else socket.AF_INET,
            backlog=backlog,
            dualstack_ipv6=ipv6 and not address,
        )
    except OSError as error:
        msg = f"cannot listen on {address or 'any address'}, port {port}: {error.strerror}"
        raise K8sRdmaError(msg) from error
