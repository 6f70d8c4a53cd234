"""Kubeconfig files, and an HTTP server that tells who asks."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import yaml

from k8s_rdma.kube.documents import Documents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Asked:
    """The server: its URL, the only header Authorization that it takes, if so, and that of each request."""

    url: str
    taken: str | None = None
    by: list[str | None] = field(default_factory=list)


@contextmanager
def serving() -> Iterator[Asked]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.by.append(self.headers["Authorization"])
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
        asked = Asked(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


def document(
    url: str = "http://127.0.0.1:1", user: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """With the context, cluster and user `c`; no user at all where none is given."""
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
