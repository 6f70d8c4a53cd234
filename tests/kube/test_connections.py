"""Connections to the cluster of a kubeconfig file, by its proxy and with the certificate of its server."""

from __future__ import annotations

import base64
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from http_server.certificates import Issuer
from k8s_rdma.kube.client import connect
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.errors import ApiUnreachableError
from kube.asking import Asked, serving, with_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def forwarding() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """A proxy's URL, and who asked it for which URL, by the header Proxy-Authorization; it answers 404."""
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Proxy-Authorization"]))
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.anyio
async def test_proxy_of_the_cluster_is_used_also_by_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with forwarding() as (proxy, asked):
        url = f"http://u:p@{proxy}"
        path = with_cluster(tmp_path / "k", server="http://api.example", **{"proxy-url": url})
        with Documents(path) as api:
            assert api.get("/version") is None
        client = connect(path)
        assert await client.get_pod("default", "p") is None
        await client.close()
    by = "Basic " + base64.b64encode(b"u:p").decode()
    pod = "http://api.example/api/v1/namespaces/default/pods/p"
    assert asked == [("http://api.example/version", by), (pod, by)]


@pytest.fixture
def named_server(tmp_path: Path) -> Iterator[tuple[Asked, str]]:
    """A server with a certificate for `api.example` and its address, and its authority."""
    issuer = Issuer(tmp_path).make()
    made = issuer.issue("api.example", alternative=("DNS:api.example",))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(made.cert, made.key)
    with serving(tls) as asked:
        yield asked, str(issuer.own.cert)


@pytest.mark.anyio
async def test_certificate_of_the_named_server_is_expected(tmp_path: Path, named_server: tuple[Asked, str]):
    asked, authority = named_server
    cluster = {"server": asked.url, "certificate-authority": authority}
    path = with_cluster(tmp_path / "k", **cluster, **{"tls-server-name": "api.example"})
    with Documents(path) as api:
        assert api.get("/version") is None
    client = connect(path)
    assert await client.get_pod("default", "p") is None
    await client.close()
    assert asked.by == ["Bearer t", "Bearer t"]


@pytest.mark.anyio
async def test_certificate_of_another_server_is_refused(tmp_path: Path, named_server: tuple[Asked, str]):
    asked, authority = named_server
    cluster = {"server": asked.url, "certificate-authority": authority}
    path = with_cluster(tmp_path / "k", **cluster, **{"tls-server-name": "other.example"})
    with Documents(path) as api, pytest.raises(ApiUnreachableError, match="other"):
        api.get("/version")
    client = connect(path)
    with pytest.raises(ApiUnreachableError, match="other"):
        await client.get_pod("default", "p")
    await client.close()
    assert asked.by == []
