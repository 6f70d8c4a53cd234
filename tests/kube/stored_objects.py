"""An API server of objects that are written down beforehand, byte by byte."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@contextmanager
def serving_objects(
    answers: Mapping[str, bytes | int], directory: Path, proxied: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A kubeconfig for it. answers: by path: a document, or the status of a refusal; 404 for other paths.

    Pages of lists have their own: `PATH?limit` the first, `PATH?continue` the others.

    proxied: by the beginning of a path, that ends with `/proxy`: the server that the rest is asked of, as the
    API server does it, without `Authorization`.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = self._proxied() or self._stored()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stored(self) -> tuple[int, bytes]:
            asked = urlsplit(self.path)
            kinds = (f"{asked.path}?{key}" for key in ("continue", "limit") if f"{key}=" in asked.query)
            answer = next(filter(None, map(answers.get, (*kinds, asked.path))), 404)
            return (answer, b"{}") if isinstance(answer, int) else (200, answer)

        def _proxied(self) -> tuple[int, bytes] | None:
            for beginning, url in (proxied or {}).items():
                if self.path.startswith(f"{beginning}/"):
                    hop_by_hop = {"authorization", "host", "connection"}
                    fields = {
                        key: value for key, value in self.headers.items() if key.lower() not in hop_by_hop
                    }
                    with httpx2.Client(trust_env=False) as http:
                        answer = http.get(url + self.path.removeprefix(beginning), headers=fields)
                    return answer.status_code, answer.content
            return None

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
