"""Which API server is asked, and as whom: kubectl's order for commands, and its options."""

from __future__ import annotations

import base64
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from http_server.certificates import Issuer
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.client import connect
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.errors import ApiUnreachableError
from k8s_rdma.kube.selection import KubeconfigSelection
from kube.asking import Asked, document, serving, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND = (
    "from k8s_rdma.kube.documents import Documents\nwith Documents() as api: print(api.url, api.namespace)"
)
PROCESS = (
    "import asyncio\nfrom k8s_rdma.kube.client import connect\n"
    "async def main():\n"
    "    client = connect()\n"
    "    print(str(client._http.base_url).rstrip('/'), client._client.namespace)\n"
    "    await client.close()\n"
    "asyncio.run(main())"
)
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
OF_POD = "https://10.0.0.1 of-pod\n"
OF_FILE = "https://of-file.example of-file\n"
ENTER = """
mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io/serviceaccount &&
cp "$1"/account/* /run/secrets/kubernetes.io/serviceaccount/ && shift && exec "$@"
"""


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The files of a pod's service account."""
    directory = tmp_path / "account"
    directory.mkdir()
    shutil.copy(Issuer(tmp_path).make().own.cert, directory / "ca.crt")
    (directory / "token").write_text("t")
    (directory / "namespace").write_text("of-pod")
    return tmp_path


def in_pod(directory: Path, code: str, **environment: str) -> str:
    """Run code in a mount namespace with the service account; return what it prints."""
    command = ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(directory), sys.executable, "-c", code]
    kept = {key: value for key, value in os.environ.items() if key not in ("KUBECONFIG", "POD_NAMESPACE")}
    ended = subprocess.run(
        command,
        env={**kept, "HOME": str(directory), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.stdout or ended.stderr.splitlines()[-1]


def of_file(directory: Path, **more: Any) -> str:
    context = {"cluster": "c", "namespace": "of-file"}
    found = document("https://of-file.example", contexts=[{"name": "c", "context": context}]) | more
    return write(directory / "config", found)


def test_command_in_a_pod_asks_the_cluster_of_kubeconfig(account: Path):
    """As https://github.com/kastenhq/kubestr/issues/101 wanted it."""
    assert in_pod(account, COMMAND, **POD, KUBECONFIG=of_file(account)) == OF_FILE


def test_command_in_a_pod_asks_the_cluster_of_the_home_directory(account: Path):
    (account / ".kube").mkdir()
    shutil.move(of_file(account), account / ".kube" / "config")
    assert in_pod(account, COMMAND, **POD) == OF_FILE


@pytest.mark.parametrize("found", [None, "", {"kind": "Config", "current-context": ""}])
def test_command_in_a_pod_uses_its_cluster_if_no_file_names_a_context(account: Path, found: Any):
    path = "/absent" if found is None else write(account / "config", found)
    assert in_pod(account, COMMAND, **POD, KUBECONFIG=path) == OF_POD


def test_file_that_names_an_unknown_context_is_refused_in_a_pod_too(account: Path):
    path = of_file(account, **{"current-context": "x"})
    refused = in_pod(account, COMMAND, **POD, KUBECONFIG=path)
    assert "current-context: there is no context 'x'" in refused


def test_command_beside_an_account_without_its_variables_asks_by_no_account(account: Path):
    assert "no usable kubeconfig: there is no /absent" in in_pod(account, COMMAND, KUBECONFIG="/absent")


def test_process_in_a_pod_asks_the_cluster_of_its_account(account: Path):
    assert in_pod(account, PROCESS, **POD, KUBECONFIG=of_file(account)) == OF_POD


def test_variable_of_a_pod_names_its_namespace(account: Path):
    assert in_pod(account, COMMAND, **POD, POD_NAMESPACE="n") == "https://10.0.0.1 n\n"


def several(url: str) -> dict[str, Any]:
    """Two contexts, clusters and users; the current ones lead nowhere."""
    entries = {
        "clusters": {"a": {"server": "http://127.0.0.1:1"}, "b": {"server": url}},
        "users": {"a": {"token": "of a"}, "b": {"token": "of b"}},
        "contexts": {
            "a": {"cluster": "a", "user": "a"},
            "b": {"cluster": "b", "user": "b", "namespace": "of-b"},
            "unfinished": {"namespace": "n"},
        },
    }
    listed = {
        kind: [{"name": name, kind[:-1]: entry} for name, entry in found.items()]
        for kind, found in entries.items()
    }
    return {"current-context": "a", **listed}


@pytest.mark.parametrize(
    ("options", "by", "namespace"),
    [
        ({"context": "b"}, "of b", "of-b"),
        ({"context": "b", "user": "a"}, "of a", "of-b"),
        ({"cluster": "b"}, "of a", "default"),
        ({"cluster": "b", "user": "b"}, "of b", "default"),
        ({"context": "unfinished", "cluster": "b", "user": "b"}, "of b", "n"),
        ({"context": "b", "namespace": "n"}, "of b", "n"),
    ],
)
def test_options_choose_as_kubectls_do(tmp_path: Path, options: dict[str, str], by: str, namespace: str):
    with serving() as asked:
        path = write(tmp_path / "k", several(asked.url))
        with Documents(KubeconfigSelection(file=path, **options)) as api:
            assert api.get("/version") is None
            assert api.namespace == namespace
    assert asked.by == [f"Bearer {by}"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"context": "x"}, "--context: there is no context 'x'"),
        ({"cluster": "x"}, "--cluster: there is no cluster 'x'"),
        ({"user": "x"}, "--user: there is no user 'x'"),
        ({"context": "unfinished"}, "context unfinished: it names no cluster"),
    ],
)
def test_option_that_names_no_entry_is_refused(tmp_path: Path, options: dict[str, str], told: str):
    path = write(tmp_path / "k", several("http://127.0.0.1:1"))
    with pytest.raises(MalformedError, match=told):
        Documents(KubeconfigSelection(file=path, **options))


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


def with_cluster(path: Path, **cluster: Any) -> str:
    return write(path, document(user={"token": "t"}, clusters=[{"name": "c", "cluster": cluster}]))


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


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (
            "socks5://u:SECRET@127.0.0.1:1",
            "socks5:// is not supported; wanted http:// or https:// and a host",
        ),
        ("127.0.0.1:SECRET", "; wanted http:// or https:// and a host"),
        ("http://", "; wanted http:// or https:// and a host"),
    ],
)
def test_proxy_that_cannot_be_used_is_refused_by_its_field(tmp_path: Path, url: str, told: str):
    path = with_cluster(tmp_path / "k", server="http://api.example", **{"proxy-url": url})
    with pytest.raises(MalformedError) as refused:
        Documents(path)
    assert f"{path}: no usable kubeconfig: cluster c: proxy-url: " in refused.value.message
    assert refused.value.message.endswith(told)
    assert "SECRET" not in refused.value.message


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


@pytest.mark.parametrize(("more", "scheme"), [({"certificate-authority": "ca"}, "https"), ({}, "http")])
def test_server_without_a_scheme_is_reached_by_tls_if_tls_is_configured(
    tmp_path: Path, more: dict[str, str], scheme: str
):
    shutil.copy(Issuer(tmp_path).make().own.cert, tmp_path / "ca")
    with Documents(with_cluster(tmp_path / "k", server="api.example:6443", **more)) as api:
        assert api.url == f"{scheme}://api.example:6443"


def test_plugin_gets_all_of_the_cluster(tmp_path: Path):
    (tmp_path / "plugin").write_text(
        '#!/bin/sh\nprintf %s "$KUBERNETES_EXEC_INFO" > "$0.asked"\necho \'{"status": {"token": "t"}}\'\n'
    )
    (tmp_path / "plugin").chmod(0o700)
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./plugin",
            "provideClusterInfo": True,
        }
    }
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
    with serving() as asked:
        cluster = {"server": asked.url, "tls-server-name": "n", "extensions": [{"name": "x"}, extension]}
        path = write(tmp_path / "k", document(user=user, clusters=[{"name": "c", "cluster": cluster}]))
        with Documents(path) as api:
            assert api.get("/version") is None
    told = json.loads((tmp_path / "plugin.asked").read_text())["spec"]["cluster"]
    assert told == {"server": asked.url, "tls-server-name": "n", "config": {"audience": "a"}}
