"""An API server of objects that are written down beforehand, byte by byte."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@contextmanager
def serving_objects(answers: Mapping[str, bytes | int], directory: Path) -> Iterator[str]:
    """A kubeconfig for it. answers: by path: a document, or the status of a refusal; 404 for other paths."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer = answers.get(urlsplit(self.path).path, 404)
            status, body = (answer, b"{}") if isinstance(answer, int) else (200, answer)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            path = directory / "stored.kubeconfig"
            cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
            context = {"name": "c", "context": {"cluster": "c"}}
            path.write_text(
                yaml.safe_dump({"current-context": "c", "clusters": [cluster], "contexts": [context]})
            )
            yield str(path)
        finally:
            server.shutdown()
            thread.join()
