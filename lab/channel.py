"""Requests to a guest's agent, and its reports, each a line of JSON (guest/agent.py has the other end)."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from lab.errors import MachineDied

if TYPE_CHECKING:
    import socket


class Channel:
    """Uses a connected socket, which it closes. Any thread may use it; one of its own hears the reports."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._heard = threading.Condition()
        self._statuses: dict[int, int] = {}
        self._ready: float | None = None
        self._ended = False
        self._last = 0
        self._thread = threading.Thread(target=self._hear, name="lab channel", daemon=True)
        self._thread.start()

    def await_ready(self, timeout_s: float) -> float | None:
        """Return the guest's uptime in seconds when its agent began; None if it was late, or died."""
        with self._heard:
            self._heard.wait_for(lambda: self._ready is not None or self._ended, timeout_s)
            return self._ready

    def number(self) -> int:
        """Return a number for a command, which no other command of this boot has."""
        with self._heard:
            self._last += 1
            return self._last

    def send(self, **request: Any) -> None:
        """Send a request; raise MachineDied if the guest has ended."""
        with self._heard:
            try:
                self._connection.sendall(json.dumps(request).encode() + b"\n")
            except OSError as error:
                raise MachineDied(f"the guest's channel: {error}") from error

    def await_status(self, number: int, timeout_s: float | None) -> int | None:
        """Return a command's status, negative for a signal; None if it runs. MachineDied with the guest."""
        with self._heard:
            self._heard.wait_for(lambda: number in self._statuses or self._ended, timeout_s)
            if number not in self._statuses and self._ended:
                raise MachineDied("the guest ended while a command ran in it")
            return self._statuses.get(number)

    def close(self) -> None:
        """Close it after QEMU ended: the thread ends as well."""
        self._thread.join()
        self._connection.close()

    def _hear(self) -> None:
        with self._connection.makefile("rb") as file:
            try:
                for line in file:
                    self._note(json.loads(line))
            except OSError:
                pass  # QEMU was killed
        with self._heard:
            self._ended = True
            self._heard.notify_all()

    def _note(self, report: dict[str, Any]) -> None:
        with self._heard:
            if "ready" in report:
                self._ready = report["ready"]
            else:
                self._statuses[report["id"]] = report["status"]
            self._heard.notify_all()
