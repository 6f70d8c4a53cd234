"""A DHCP server for tests, in one thread: RFC 2131 as far as a client of one network needs it."""

from __future__ import annotations

import ipaddress
import socket
import struct
import threading
from pathlib import Path
from typing import Self

from k8s_rdma.linux.netns import entered

_COOKIE = bytes.fromhex("63825363")
_DISCOVER, _OFFER, _REQUEST, _ACK = 1, 2, 3, 5
_KIND, _SERVER, _LEASE, _MASK, _ROUTER, _END = 53, 54, 51, 1, 3, 255
_POLL_S = 0.1


class DhcpServer:
    """Answers on an interface of a namespace (a path), which has the first address of the network."""

    def __init__(self, netns: str, ifname: str, network: str) -> None:
        self._hosts = list(ipaddress.IPv4Network(network).hosts())
        self._mask = ipaddress.IPv4Network(network).netmask
        self.leases: dict[bytes, ipaddress.IPv4Address] = {}
        with Path(netns).open("rb") as namespace, entered(namespace.fileno()):
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, ifname.encode())
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        self._socket.settimeout(_POLL_S)
        self._socket.bind(("", 67))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while not self._ended.is_set():
            try:
                message = self._socket.recv(1500)
            except TimeoutError:
                continue
            kind = _options(message)[_KIND][0]
            if kind in (_DISCOVER, _REQUEST):
                answer = self._answer(message, _OFFER if kind == _DISCOVER else _ACK)
                self._socket.sendto(answer, ("255.255.255.255", 68))

    def _answer(self, message: bytes, kind: int) -> bytes:
        mac = message[28:34]
        given = self.leases.setdefault(mac, self._hosts[1 + len(self.leases)])
        server = self._hosts[0].packed
        header = struct.pack("!BBBB", 2, 1, 6, 0) + message[4:8] + bytes(2) + message[10:12]
        addresses = bytes(4) + given.packed + server + bytes(4)
        options = {_KIND: bytes([kind]), _SERVER: server, _LEASE: struct.pack("!I", 3600)}
        options |= {_MASK: self._mask.packed, _ROUTER: server}
        body = b"".join(bytes([code, len(value)]) + value for code, value in options.items())
        return header + addresses + message[28:44] + bytes(192) + _COOKIE + body + bytes([_END])


def _options(message: bytes) -> dict[int, bytes]:
    found, at = {}, 240
    while at < len(message) and message[at] != _END:
        if message[at]:
            size = message[at + 1]
            found[message[at]] = message[at + 2 : at + 2 + size]
            at += size + 1
        at += 1
    return found
