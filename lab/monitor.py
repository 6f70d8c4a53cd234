"""QEMU's monitor: commands and answers of QMP (docs/interop/qmp-spec of QEMU), one at a time."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from lab.errors import LabError, MachineDied

if TYPE_CHECKING:
    import socket


class Monitor:
    """Uses a connected socket, which it closes. Any thread may use it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")
        self._lock = threading.Lock()
        self._greeted = False

    def execute(self, command: str, **arguments: object) -> Any:
        """Return the command's result; raise LabError if QEMU refuses it."""
        with self._lock:
            if not self._greeted:
                self._answer()
                self._ask("qmp_capabilities", {})
                self._greeted = True
            return self._ask(command, arguments)

    def close(self) -> None:
        """Close the socket: no more commands."""
        self._file.close()
        self._connection.close()

    def _ask(self, command: str, arguments: dict[str, object]) -> Any:
        request = {"execute": command, "arguments": arguments}
        try:
            self._connection.sendall(json.dumps(request).encode() + b"\n")
            while "event" in (answer := self._answer()):
                pass
        except OSError as error:
            raise MachineDied(f"QEMU's monitor: {error}") from error
        if "error" in answer:
            raise LabError(f"QEMU refuses {command} {arguments}: {answer['error']['desc']}")
        return answer["return"]

    def _answer(self) -> dict[str, Any]:
        line = self._file.readline()
        if not line:
            raise MachineDied("QEMU's monitor: ended")
        answer: dict[str, Any] = json.loads(line)
        return answer
