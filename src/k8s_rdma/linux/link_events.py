"""Tells that links of a namespace changed. Source: rtnetlink(7), RTNLGRP_LINK."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

REST_MS = 50
"""After telling of changes: an attachment makes hundreds, and to wake for each costs the thread that makes
them more than the changes themselves take."""

_LINK_GROUP = 1
_AT_ONCE = 1000
"""Messages taken before the callback is told, so that a stream without end cannot keep it waiting."""


class LinkEvents:
    """Calls back from a thread of its own after one or more link messages came, until closed.

    Such messages tell of links made, moved, renamed and gone, and of their state, the carrier with it.
    They are not looked at, and lost ones (ENOBUFS) are a change like any other.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        """Listen in the calling thread's network namespace; what came before is not told."""
        self._changed = changed
        with ExitStack() as undo:
            self._socket = undo.enter_context(
                socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            )
            self._socket.setblocking(False)
            self._socket.bind((0, _LINK_GROUP))
            self._stop, stopping = os.pipe2(os.O_CLOEXEC)
            undo.callback(os.close, self._stop)
            thread = threading.Thread(target=self._listen, name="link-events", daemon=True)
            thread.start()
            undo.callback(thread.join)
            undo.callback(os.close, stopping)
            self._open = undo.pop_all()

    def close(self) -> None:
        """End; no call comes afterwards. Not from within the callback. Once more does nothing."""
        self._open.close()

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._stop, select.POLLHUP)
        stopping = select.poll()
        stopping.register(self._stop, select.POLLHUP)
        while not any(descriptor == self._stop for descriptor, _ in poll.poll()):
            self._drain()
            self._changed()
            if stopping.poll(REST_MS):
                return

    def _drain(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                self._socket.recv(1)  # the kernel drops the rest of the message
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # which is told once, then the queue goes on
                    raise
