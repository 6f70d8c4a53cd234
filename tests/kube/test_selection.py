"""Which API server is asked, and as whom: kubectl's order for commands, and its options."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from http_server.certificates import Issuer
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.selection import KubeconfigSelection
from kube.asking import document, serving, write

if TYPE_CHECKING:
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
    """Run code in a mount namespace with the service account; return its output."""
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
