"""HTTP asked from inside a guest: bash opens the connection, so that no interpreter has to start there."""

from __future__ import annotations

import http.client
import io
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import socket

    from lab.machine import Machine

ASK = 'exec 3<>"/dev/tcp/$1/$2"; cat >&3; cat <&3'


class HttpError(Exception):
    """No answer of status 2xx. status: the other one, 0 without an answer; body: its content."""

    def __init__(self, asked: str, status: int, body: Any) -> None:
        super().__init__(f"{asked}: {status}: {body}")
        self.status = status
        self.body = body


def ask(machine: Machine, method: str, url: str, body: Any = None, *, kind: str = "application/json") -> Any:
    """The JSON that is answered; HttpError. body: sent as JSON, of the media type `kind`."""
    where = urlsplit(url)
    path = f"{where.path or '/'}{'?' if where.query else ''}{where.query}"
    content = json.dumps(body) if body is not None else ""
    head = [f"{method} {path} HTTP/1.1", f"Host: {where.netloc}", "Connection: close"]
    head += [f"Content-Type: {kind}", f"Content-Length: {len(content.encode())}"]
    sent = "\r\n".join([*head, "", content])
    target = (str(where.hostname), str(where.port))
    done = machine.run("bash", "-c", ASK, "ask", *target, input=sent, check=False)
    if done.returncode or not done.stdout:
        raise HttpError(f"{method} {url}", 0, done.stderr)
    status, text = _parsed(done.stdout, method)
    answer = json.loads(text) if text.startswith(("{", "[")) else text
    if status // 100 != 2:
        raise HttpError(f"{method} {url}", status, answer)
    return answer


class _Received:
    """A socket for `http.client`."""

    def __init__(self, received: bytes) -> None:
        self._received = received

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._received)


def _parsed(received: str, method: str) -> tuple[int, str]:
    connection: socket.socket = _Received(received.encode())  # type: ignore[assignment]
    answer = http.client.HTTPResponse(connection, method=method)
    answer.begin()
    return answer.status, answer.read().decode()
