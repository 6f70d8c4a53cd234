"""Kubeconfig files, and an HTTP server that reports who asks."""

from __future__ import annotations

import json
import ssl
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from traceback import format_exception
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.errors import ApiUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Asked:
    """The server: its URL, who alone may ask, if so, and who did, by how many connections.

    Who: by the name in a certificate, or else the header Authorization.
    """

    url: str
    taken: str | None = None
    by: list[str | None] = field(default_factory=list)
    connections: int = 0


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Asked]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept

        def setup(self) -> None:
            super().setup()
            asked.connections += 1

        def do_GET(self) -> None:
            asked.by.append(_name(self.connection) or self.headers["Authorization"])
            code = 404 if asked.taken in (None, asked.by[-1]) else 401
            body = json.dumps({"kind": "Status", "message": "none", "code": code}).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True  # of connections that a client keeps
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        asked = Asked(f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


def _name(connection: Any) -> str | None:
    """In the certificate that a connection was made with."""
    told = connection.getpeercert() if isinstance(connection, ssl.SSLSocket) else None
    return dict(pair for (pair,) in told["subject"])["commonName"] if told else None


def document(
    url: str = "http://127.0.0.1:1", user: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """With the context, cluster and user `c`; without any user if it is not given."""
    context = {"cluster": "c"} if user is None else {"cluster": "c", "user": "c"}
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": context}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [] if user is None else [{"name": "c", "user": user}],
        **more,
    }


def write(path: Path, found: Any) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(found if isinstance(found, str) else yaml.safe_dump(found))
    return str(path)


def ask(kubeconfig: str | None = None) -> None:
    with Documents(kubeconfig) as api:
        assert api.get("/version") is None


V1 = "client.authentication.k8s.io/v1"


def plugin(directory: Path, script: str, **more: Any) -> dict[str, Any]:
    """A user by an exec plugin of that text."""
    (directory / "plugin").write_text(script)
    (directory / "plugin").chmod(0o700)
    return {"exec": {"apiVersion": V1, "command": "./plugin", **more}}


def giving(text: str) -> str:
    return f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n"


def refusal(path: str) -> str:
    """Return the error of a call without credentials; it shows no token anywhere."""
    with (
        Documents(path) as api,
        pytest.raises(ApiUnreachableError, match=r"^get /version: no usable credentials: ") as refused,
    ):
        api.get("/version")
    assert "SECRET" not in "".join(format_exception(refused.value))
    return refused.value.message.removeprefix("get /version: no usable credentials: ")


def with_cluster(path: Path, **cluster: Any) -> str:
    return write(path, document(user={"token": "t"}, clusters=[{"name": "c", "cluster": cluster}]))
