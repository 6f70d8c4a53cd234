"""Kubeconfig files that kubectl takes, and the errors of those that cannot be used."""

from __future__ import annotations

import os
import shutil
from traceback import format_exception
from typing import TYPE_CHECKING, Any

import pytest

from http_server.certificates import Issuer
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.client import connect
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.selection import KubeconfigSelection
from kube.asking import ask, document, serving, with_cluster, write

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


def test_several_files_are_one_and_their_paths_are_relative_to_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with serving() as asked:
        first = {"clusters": None, "contexts": None, "users": None}
        second = document(asked.url, users=[]) | {
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
        }
        third = document("http://127.0.0.1:1", {"token": "not this one"})
        third["users"].append({"name": "u", "user": {"tokenFile": "token"}})
        third["current-context"] = "another"
        files = [
            write(tmp_path / name / "config", found)
            for name, found in (("a", first), ("b", second), ("c", third))
        ]
        (tmp_path / "c" / "token").write_text("of c")
        empty = write(tmp_path / "empty", "")
        monkeypatch.setenv("KUBECONFIG", ":".join(["", "/none", empty, *files]))
        ask()
    assert asked.by == ["Bearer of c"]


@pytest.mark.parametrize("users", [[], [{"name": "c"}], [{"name": "c", "user": None}]])
def test_context_without_credentials_is_nobodys(tmp_path: Path, users: list[dict[str, Any]]):
    with serving() as asked:
        ask(write(tmp_path / "k", document(asked.url, {} if users else None, users=users)))
    assert asked.by == [None]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ("text", "no mapping; wanted a Config of kubectl"),
        ({}, "no current-context; kubectl config use-context NAME sets it"),
        (document(**{"current-context": "x"}), "current-context: there is no context 'x'"),
        (document(clusters=[]), "context c: there is no cluster 'c'"),
        (document(user={}, users=None), "context c: there is no user 'c'"),
        (document(user={"as": "admin"}), "context c: its user acts as 'admin', which is not supported"),
        (document(user={"auth-provider": {"name": "gcp"}}), "auth-provider not supported"),
        (document(clusters=["c"]), "/k: clusters[0]: Expected `object`, got `str`"),
        ("{", "/k: line 1, column 2: expected the node content"),
    ],
)
def test_unusable_file_is_refused_with_the_reason(tmp_path: Path, found: Any, told: str):
    path = write(tmp_path / "k", found)
    with pytest.raises(MalformedError) as refused:
        Documents(path)
    assert refused.value.message.startswith(f"kubeconfig {path}: no usable kubeconfig: ")
    assert told in refused.value.message


def test_line_of_a_file_that_is_no_yaml_is_not_shown(tmp_path: Path):
    path = write(tmp_path / "k", "users:\n- user:\n    token: SECRETTOKEN: x\n")
    with pytest.raises(MalformedError) as refused:
        Documents(path)
    told = f"{path}: line 3, column 23: mapping values are not allowed here"
    assert refused.value.message == f"kubeconfig {path}: no usable kubeconfig: {told}"
    assert "SECRETTOKEN" not in "".join(format_exception(refused.value))


@pytest.mark.parametrize("by_option", [True, False])
def test_unknown_home_is_reported_with_advice(monkeypatch: pytest.MonkeyPatch, by_option: bool):
    named = "~no-such-user/config"
    monkeypatch.setenv("KUBECONFIG", named)
    with pytest.raises(MalformedError) as refused:
        Documents(named if by_option else None)
    told = (
        f"no usable kubeconfig: {named}: that home directory is not known; set HOME, or say which file by "
        "--kubeconfig FILE, kubeconfig: FILE in a process's configuration, or KUBECONFIG"
    )
    assert refused.value.message == (f"kubeconfig {named}: {told}" if by_option else told)


@pytest.mark.parametrize("named", ["", "/none:/neither"])
def test_missing_kubeconfig_is_reported_with_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
):
    monkeypatch.setenv("KUBECONFIG", named)
    monkeypatch.setenv("HOME", str(tmp_path))
    wanted = "/none, /neither" if named else f"{tmp_path}/.kube/config"
    with pytest.raises(MalformedError) as refused:
        Documents()
    assert refused.value.message == (
        f"no usable kubeconfig: there is no {wanted}; say which one by --kubeconfig FILE, kubeconfig: FILE "
        "in a process's configuration, or KUBECONFIG"
    )


@pytest.mark.anyio
async def test_service_account_alone_is_no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBECONFIG", write(tmp_path / "k", document()))
    with pytest.raises(MalformedError, match=r"^no usable service account: "):
        connect(in_cluster=True)


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


@pytest.mark.parametrize(("more", "scheme"), [({"certificate-authority": "ca"}, "https"), ({}, "http")])
def test_server_without_a_scheme_is_reached_by_tls_if_tls_is_configured(
    tmp_path: Path, more: dict[str, str], scheme: str
):
    shutil.copy(Issuer(tmp_path).make().own.cert, tmp_path / "ca")
    with Documents(with_cluster(tmp_path / "k", server="api.example:6443", **more)) as api:
        assert api.url == f"{scheme}://api.example:6443"
