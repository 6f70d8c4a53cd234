"""Tells that links of a namespace changed. Source: rtnetlink(7), RTNLGRP_LINK."""

from __future__ import annotations

import os
import select
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LINK_GROUP = 1
_BUFFER_BYTES = 1 << 16


class LinkEvents:
    """Calls back from a thread of its own after one or more link messages came, until closed.

    Messages are not looked at, and lost ones (ENOBUFS) are a change like any other.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        """Listen in the calling thread's network namespace."""
        self._changed = changed
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._socket.setblocking(False)
        self._socket.bind((0, _LINK_GROUP))
        self._stop, self._stopping = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._listen, name="link-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End; no call comes afterwards."""
        os.close(self._stopping)
        self._thread.join()
        os.close(self._stop)
        self._socket.close()

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._stop, select.POLLHUP)
        while not any(descriptor == self._stop for descriptor, _ in poll.poll()):
            self._drain()
            self._changed()

    def _drain(self) -> None:
        while True:
            try:
                self._socket.recv(_BUFFER_BYTES)
            except BlockingIOError:
                return
            except OSError:
                continue  # ENOBUFS: told once, then the queue goes on
