"""Whether interfaces of one pod reach those of another, each through itself."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

from k8s_rdma.linux.netns import entered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.cli.demo.traffic import Endpoint

PORT = 7
TIMEOUT_S = 2.0


def unreachable(pairs: Sequence[tuple[Endpoint, Endpoint]]) -> list[str]:
    """Send a datagram from each first to each second endpoint; the interfaces whose datagram got lost.

    Each socket is tied to its interface, so nothing can go or arrive another way.
    """
    with ExitStack() as sockets:
        senders = [sockets.enter_context(_bound(source)) for source, _ in pairs]
        receivers = [sockets.enter_context(_bound(destination)) for _, destination in pairs]
        return [
            source.ifname
            for (source, destination), sender, receiver in zip(pairs, senders, receivers, strict=True)
            if not _passes(sender, receiver, source, destination)
        ]


def _passes(sender: socket.socket, receiver: socket.socket, source: Endpoint, destination: Endpoint) -> bool:
    payload = f"{source.ifname} to {destination.ifname}".encode()
    sender.sendto(payload, (destination.address, PORT))
    try:
        received, (address, _) = receiver.recvfrom(len(payload) + 1)
    except TimeoutError:
        return False
    return received == payload and address == source.address


def _bound(endpoint: Endpoint) -> socket.socket:
    """A UDP socket in the pod; made on a thread of its own, which is the one that changes namespace."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(_bound_here, endpoint).result()


def _bound_here(endpoint: Endpoint) -> socket.socket:
    with endpoint.netns.open("rb") as netns, entered(netns.fileno()):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.settimeout(TIMEOUT_S)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, endpoint.ifname.encode())
    made.bind((endpoint.address, PORT))
    return made
