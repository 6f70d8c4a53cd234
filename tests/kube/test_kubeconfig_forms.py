"""Forms of kubeconfig files that kubectl takes, and what is said of those that nothing can be made of."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.selection import KubeconfigSelection
from kube.asking import ask, document, serving, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PLAIN = """apiVersion: v1
kind: Config
current-context: c
clusters:
- name: c
  cluster:
    server: URL
contexts:
- name: c
  context:
    cluster: c
    user: c
users:
- name: c
  user:
    token: "2001-01-01"
"""


def doubled(text: str) -> str:
    return text.replace("    server: URL", "    server: http://127.0.0.1:1\n    server: URL")


FORMS: dict[str, Callable[[str], bytes]] = {
    "plain": str.encode,
    "end of a document": lambda text: f"{text}---\n".encode(),
    "several documents": lambda text: f"---\n{text}---\ncurrent-context: x\n---\n: [\n".encode(),
    "tab before a value": lambda text: text.replace("server: ", "server:\t").encode(),
    "tab after a value": lambda text: text.replace("kind: Config", "kind: Config\t").encode(),
    "key twice": lambda text: doubled(text).encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16 of the other order": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "byte order mark": lambda text: text.encode("utf-8-sig"),
    "binary": lambda text: text.replace('"2001-01-01"', "!!binary MjAwMS0wMS0wMQ==").encode(),
    "date": lambda text: text.replace('"2001-01-01"', "2001-01-01").encode(),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "nulls": lambda text: text.replace("    user: c", "    user: c\n    namespace: null\n    x: ~").encode(),
    "unused context": lambda text: text.replace(
        "contexts:", "contexts:\n- name: n\n  context: {namespace: n}"
    ).encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_form_that_kubectl_takes_is_taken(tmp_path: Path, form: str):
    with serving() as asked:
        (tmp_path / "k").write_bytes(FORMS[form](PLAIN.replace("URL", asked.url)))
        ask(str(tmp_path / "k"))
    assert asked.by == ["Bearer 2001-01-01"]


def test_json_with_tabs_is_taken(tmp_path: Path):
    with serving() as asked:
        text = (
            '{\n\t"current-context": "c",\n\t"contexts": [{"name": "c", "context": {"cluster": "c"}}],\n'
            f'\t"clusters": [\n\t\t{{"name": "c", "cluster": {{"server": "{asked.url}"}}}}]\n}}\n'
        )
        ask(write(tmp_path / "k", text))
    assert asked.by == [None]


def test_pipe_is_taken(tmp_path: Path):
    reader, writer = os.pipe()
    with serving() as asked:
        os.write(writer, PLAIN.replace("URL", asked.url).encode())
        os.close(writer)
        ask(f"/dev/fd/{reader}")
    os.close(reader)
    assert asked.by == ["Bearer 2001-01-01"]


def of_user(**user: Any) -> dict[str, Any]:
    return document("https://127.0.0.1:1", user)


def of_cluster(**cluster: Any) -> dict[str, Any]:
    return document(clusters=[{"name": "c", "cluster": cluster}])


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (of_user(token=5), "{path}: users[0].user.token: Expected `str`, got `int`"),
        (of_cluster(server=["SECRET"]), "{path}: clusters[0].cluster.server: Expected `str`, got `array`"),
        (document(contexts={}), "{path}: contexts: Expected `array`, got `object`"),
        (of_cluster(), "cluster c: server: not set; wanted the API server's URL"),
        (
            of_cluster(**{"server": "https://a", "certificate-authority": "ca"}),
            "cluster c: certificate-authority {directory}/ca: No such file or directory",
        ),
        (
            of_cluster(**{"server": "https://a", "certificate-authority": "k"}),
            "cluster c: certificate-authority: no PEM of certificates",
        ),
        (
            of_cluster(**{"server": "https://a", "certificate-authority-data": "?"}),
            "cluster c: certificate-authority-data: no base64",
        ),
        (
            of_user(**{"client-certificate": "crt", "client-key": "key"}),
            "user c: client-certificate {directory}/crt: No such file or directory",
        ),
        (of_user(**{"client-certificate": "k"}), "user c: client-key: not set"),
        (of_user(**{"client-certificate": "k", "client-key": "k"}), "user c: client-certificate: its cert"),
        (of_user(**{"client-certificate-data": "?"}), "user c: client-certificate-data: no base64"),
        (of_user(exec={"command": "x"}), "exec plugin x: apiVersion ''; wanted client."),
        (of_user(exec={}), "user c: exec: command: not set; wanted a program"),
        (
            of_user(
                exec={
                    "command": "x",
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "interactiveMode": "Ever",
                }
            ),
            "user c: exec: interactiveMode: 'Ever'; wanted Never, IfAvailable, Always",
        ),
    ],
)
def test_fault_is_reported_with_file_and_field(tmp_path: Path, found: Any, told: str):
    path = write(tmp_path / "k", found)
    with pytest.raises(MalformedError) as refused:
        Documents(path)
    wanted = told.format(path=path, directory=tmp_path)
    assert refused.value.message.startswith(f"kubeconfig {path}: no usable kubeconfig: {wanted}")
    assert "SECRET" not in refused.value.message


@pytest.mark.parametrize(
    ("link", "told"),
    [("/dev/zero", "larger than 16777216 bytes"), ("/", "Is a directory")],
)
def test_file_without_end_is_refused(tmp_path: Path, link: str, told: str):
    (tmp_path / "k").symlink_to(link)
    with pytest.raises(MalformedError, match=told):
        Documents(KubeconfigSelection(file=str(tmp_path / "k")))
