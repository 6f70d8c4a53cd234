"""An agent that does to the program whatever a test wants."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from k8s_rdma.wire.cni_socket import Reply, SocketRequest, decode_request, encode_reply, request_bytes_missing

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack
    from pathlib import Path

DEADLINE_S = 120
ASKED = Reply(exit_status=1, stdout=b"asked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A request, and the inode of the namespace that came with it."""

    request: SocketRequest
    netns_inode: int | None


def receive(connection: socket.socket) -> Received:
    """Read one request."""
    data, inodes = bytearray(), []
    while missing := request_bytes_missing(data):
        chunk, descriptors, _, _ = socket.recv_fds(connection, missing, 4)
        for descriptor in descriptors:
            inodes.append(os.fstat(descriptor).st_ino)
            os.close(descriptor)
        assert chunk, "the request was cut short"
        data += chunk
    assert len(inodes) <= 1
    return Received(request=decode_request(data), netns_inode=inodes[0] if inodes else None)


class ScriptedAgent:
    """Listens until the block ends; `received` holds the requests of connections that were answered.

    answer: the bytes that are sent when a request has been read; set it before the call.
    script: replaces reading and answering altogether.
    """

    def __init__(self, path: Path) -> None:
        self.answer: bytes = encode_reply(ASKED)
        self.received: list[Received] = []
        self.script: Callable[[socket.socket], None] = self.talk
        self.path = path
        self._failures: list[BaseException] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(DEADLINE_S)
        self._listener.close()
        assert not self._thread.is_alive()
        assert not self._failures, self._failures

    def talk(self, connection: socket.socket) -> None:
        """Read the request, answer."""
        self.received.append(receive(connection))
        connection.sendall(self.answer)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # shut down
            with connection:
                connection.settimeout(DEADLINE_S)
                try:
                    self.script(connection)
                except BaseException as error:  # reported at the end of the block
                    self._failures.append(error)


def wait_for_hangup(connection: socket.socket) -> None:
    """Read until the program has gone."""
    try:
        while connection.recv(1 << 20):
            pass
    except ConnectionResetError:
        pass


def fill_backlog(sockets: ExitStack, path: Path) -> None:
    """Listen there, never accept, and leave no place in the queue."""
    listener = sockets.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(path))
    listener.listen(0)
    while True:
        waiting = sockets.enter_context(socket.socket(socket.AF_UNIX))
        waiting.setblocking(False)
        try:
            waiting.connect(str(path))
        except BlockingIOError:
            return
