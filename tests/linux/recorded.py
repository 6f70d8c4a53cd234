"""Conversations with the kernel: recorded on machines with the hardware, replayed on others.

A file holds a request a line (`> ` and its bytes in hexadecimal), and below it its answers (`< `), a line a
datagram. Sequence and port numbers are 0 there. Lines that begin with `#` say where it was recorded.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from k8s_rdma.linux.netlink.socket import NetlinkSocket, connect

if TYPE_CHECKING:
    import socket

FOLDER = Path(__file__).with_name("recordings")
_ERROR, _MESSAGE = 2, 16
_SEQUENCE_AND_PORT = struct.Struct("=II")


def replayed(name: str) -> NetlinkSocket:
    """A socket that answers the requests of a recorded conversation, and no others."""
    return NetlinkSocket(Replay((FOLDER / f"{name}.txt").read_text()))


def answering(*bodies: bytes) -> NetlinkSocket:
    """A socket that answers whatever is asked with messages of these bodies, and success."""
    datagram = b"".join(_message(_MESSAGE, body) for body in bodies) + _message(_ERROR, bytes(20))
    return NetlinkSocket(Replay(f"< {datagram.hex()}"))


def refusal(number: int) -> str:
    """The line of a conversation in which the kernel answers with this errno."""
    return f"< {_message(_ERROR, struct.pack('=i', -number) + bytes(16)).hex()}"


class Replay:
    """A connection; of several equal requests each gets its own answer, and any after them the last one.

    The lines before the first request answer all requests that are not in the file.
    """

    def __init__(self, conversation: str) -> None:
        self._answers: dict[bytes, list[list[bytes]]] = {}
        self._waiting: list[bytes] = []
        datagrams = self._otherwise = list[bytes]()
        for line in conversation.splitlines():
            direction, _, data = line.partition(" ")
            if direction == ">":
                datagrams = []
                self._answers.setdefault(bytes.fromhex(data), []).append(datagrams)
            elif direction == "<":
                datagrams.append(bytes.fromhex(data))

    def send(self, request: bytes) -> int:
        sequence = struct.unpack_from("=I", request, 8)[0]
        answers = self._answers.get(_numbered(request, 0), [self._otherwise])
        assert answers != [[]], f"not recorded: {_numbered(request, 0).hex()}"
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        self._waiting = [_numbered(datagram, sequence) for datagram in answer]
        return len(request)

    def recvmsg(self, size: int) -> tuple[bytes, list[object], int, None]:
        return self._waiting.pop(0)[:size], [], 0, None

    def close(self) -> None:
        pass


class Recording:
    """A connection to the kernel that writes down requests and answers."""

    def __init__(self, family: int) -> None:
        self._kernel: socket.socket = connect(family)
        self.lines: list[str] = []

    def send(self, request: bytes) -> int:
        self.lines.append(f"> {_numbered(request, 0).hex()}")
        return self._kernel.send(request)

    def recvmsg(self, size: int) -> tuple[bytes, list[object], int, object]:
        data, ancillary, flags, sender = self._kernel.recvmsg(size)
        self.lines.append(f"< {_numbered(data, 0).hex()}")
        return data, ancillary, flags, sender

    def close(self) -> None:
        self._kernel.close()


def _message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body + bytes(-len(body) % 4)


def _numbered(datagram: bytes, sequence: int) -> bytes:
    """The same with another sequence number in each of its messages."""
    data, start = bytearray(datagram), 0
    while start + 16 <= len(data):
        _SEQUENCE_AND_PORT.pack_into(data, start + 8, sequence, 0)
        start += (struct.unpack_from("=I", data, start)[0] + 3) & ~3
    return bytes(data)
