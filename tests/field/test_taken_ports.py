"""Ports that a client on a node's own network has when a process of ours is to listen there.

The kernel gives clients ports from 32768 to 60999, and our default ones are among them.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.http_server import listen
from k8s_rdma.linux.netlink.rtnl import Rtnl
from k8s_rdma.linux.netns import entered
from network_namespaces import create_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST, PORT = "127.0.0.1", 54005
SETTINGS = Path("/proc/sys/net/ipv4")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, or a user namespace (`make test`)")


@pytest.fixture
def node() -> Iterator[ExitStack]:
    """A network namespace whose clients get our port, or the next one. Sockets end with the stack."""
    with ExitStack() as stack:
        namespace = create_namespace()
        stack.callback(os.close, namespace)
        stack.enter_context(entered(namespace))
        with Rtnl() as rtnl:
            rtnl.change(next(link.index for link in rtnl.links() if link.name == "lo"), "up", up=True)
        (SETTINGS / "ip_local_port_range").write_text(f"{PORT} {PORT + 1}")
        yield stack


def connect_all(node: ExitStack, server: socket.socket) -> set[int]:
    """Connect clients until no port is left; return theirs."""
    found = set()
    while True:
        try:
            client = node.enter_context(socket.create_connection(server.getsockname()))
        except OSError:
            return found
        found.add(client.getsockname()[1])


def test_port_of_a_client_is_refused_with_the_setting_that_keeps_it(node: ExitStack):
    """A NodePort did not answer, and no server listened there: a client had the port.

    Source: https://github.com/kubernetes/kubernetes/issues/111682.
    """
    server = node.enter_context(socket.create_server((HOST, 40000)))
    assert PORT in connect_all(node, server)
    with pytest.raises(K8sRdmaError, match="Address already in use") as refused:
        listen(HOST, PORT)
    assert f"ss -tanp sport = :{PORT}" in refused.value.details
    assert "net.ipv4.ip_local_reserved_ports" in refused.value.details


def test_reserved_port_is_there_for_the_server(node: ExitStack):
    """Source: https://github.com/kubernetes/release/issues/1333, whose answer is that setting."""
    (SETTINGS / "ip_local_reserved_ports").write_text(str(PORT))
    server = node.enter_context(socket.create_server((HOST, 40000)))
    assert connect_all(node, server) == {PORT + 1}
    assert node.enter_context(listen(HOST, PORT)).getsockname() == (HOST, PORT)
