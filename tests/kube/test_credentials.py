"""Credentials as kubectl reads them, with an HTTP server that tells who asks."""

from __future__ import annotations

import json
from base64 import b64encode
from traceback import format_exception
from typing import TYPE_CHECKING, Any

import pytest

from http_server.certificates import Issuer
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.client import connect
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.errors import ApiUnreachableError
from kube.asking import ask, document, serving, write

if TYPE_CHECKING:
    from pathlib import Path

PLUGIN = """#!/bin/sh
printf %s "$KUBERNETES_EXEC_INFO" > "$(dirname "$0")/asked"
echo '{"kind": "ExecCredential", "apiVersion": "x", "status": {"token": "'"$1"'"}}'
"""


def plugin(directory: Path, version: str, **more: Any) -> dict[str, Any]:
    """A user by an exec plugin beside the kubeconfig, which gives the token `t`."""
    (directory / "plugin").write_text(PLUGIN)
    (directory / "plugin").chmod(0o700)
    version = f"client.authentication.k8s.io/{version}"
    return {"exec": {"apiVersion": version, "command": "./plugin", "args": ["t"], "env": None, **more}}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_exec_plugin_is_called_as_its_version_has_it(tmp_path: Path, version: str):
    with serving() as asked:
        ask(write(tmp_path / "k", document(asked.url, plugin(tmp_path, version, interactiveMode="Never"))))
    assert asked.by == ["Bearer t"]
    told = json.loads((tmp_path / "asked").read_text())
    assert told == {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }


@pytest.mark.anyio
async def test_exec_plugin_is_called_by_processes_too(tmp_path: Path):
    with serving() as asked:
        client = connect(write(tmp_path / "k", document(asked.url, plugin(tmp_path, "v1"))))
        assert await client.get_pod("default", "p") is None
        await client.close()
    assert asked.by == ["Bearer t"]


def test_exec_plugin_gets_the_cluster_if_it_requests_it(tmp_path: Path):
    issuer = Issuer(tmp_path).make()
    user = plugin(tmp_path, "v1", provideClusterInfo=True)
    with serving() as asked:
        cluster = {"server": asked.url, "certificate-authority": issuer.own.cert.name, "extensions": []}
        ask(write(tmp_path / "k", document(user=user, clusters=[{"name": "c", "cluster": cluster}])))
    told = json.loads((tmp_path / "asked").read_text())["spec"]["cluster"]
    data = b64encode(issuer.own.cert.read_bytes()).decode()
    assert told == {"server": asked.url, "certificate-authority-data": data}


def test_authority_by_its_bytes_goes_before_that_of_a_file(tmp_path: Path):
    issuer = Issuer(tmp_path).make()
    (tmp_path / "no-authority").write_text("none")
    data = b64encode(issuer.own.cert.read_bytes()).decode()
    user = plugin(tmp_path, "v1", provideClusterInfo=True)
    with serving() as asked:
        cluster = {
            "server": asked.url,
            "certificate-authority": "no-authority",
            "certificate-authority-data": data,
        }
        ask(write(tmp_path / "k", document(user=user, clusters=[{"name": "c", "cluster": cluster}])))
    told = json.loads((tmp_path / "asked").read_text())["spec"]["cluster"]
    assert told == {"server": asked.url, "certificate-authority-data": data}


def test_exec_plugin_that_is_not_there_is_named(tmp_path: Path):
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin"}}
    with (
        Documents(write(tmp_path / "k", document(user=user))) as api,
        pytest.raises(ApiUnreachableError, match=r"no usable credentials: .*no-such-plugin"),
    ):
        api.get("/version")


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
