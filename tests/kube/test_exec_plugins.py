"""Exec plugins of kubeconfig files: how they are called, and the errors of those without a credential."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pytest

from http_server.certificates import Issuer
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.client import connect
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.errors import ApiUnreachableError
from kube.asking import V1, ask, document, giving, plugin, refusal, serving, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def typed() -> Iterator[None]:
    """Somebody has typed a line into our standard input."""
    before = os.dup(0)
    reader, writer = os.pipe()
    os.write(writer, b"typed\n")
    os.close(writer)
    os.dup2(reader, 0)
    os.close(reader)
    yield
    os.dup2(before, 0)
    os.close(before)


@pytest.mark.usefixtures("typed")
def test_plugin_gets_no_standard_input_of_ours(tmp_path: Path):
    user = plugin(tmp_path, '#!/bin/sh\nread -r line\necho "{\\"status\\": {\\"token\\": \\"t$line\\"}}"\n')
    with serving() as asked:
        ask(write(tmp_path / "k", document(asked.url, user)))
    assert asked.by == ["Bearer t"]


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (giving('{"status": null}'), "gives neither a token nor a certificate"),
        (giving('{"status": {"token": null}}'), "gives neither a token nor a certificate"),
        (giving("{}"), "gives neither a token nor a certificate"),
        (
            giving('{"status": {"token": "SECRET", "expirationTimestamp": "tomorrow"}}'),
            "its answer is no ExecCredential: Invalid RFC3339 encoded datetime",
        ),
        (giving('{"status": {"token": "SECRET\\nSECRET"}}'), "the token has line breaks"),
        (giving('{"status": ["SECRET"]}'), "its answer is no ExecCredential: Expected `object"),
        (giving("SECRET"), "its answer is no ExecCredential: JSON is malformed"),
        ("#!/bin/sh\necho SECRET; exit 3\n", "exit status 3"),
        ("echo no shebang\n", "Exec format error"),
    ],
)
def test_plugin_without_a_usable_credential_is_reported_with_the_reason(
    tmp_path: Path, script: str, told: str
):
    path = write(tmp_path / "k", document(user=plugin(tmp_path, script)))
    assert refusal(path).startswith(f"exec plugin {tmp_path}/plugin: {told}")


@pytest.mark.anyio
async def test_plugin_that_hangs_is_given_up_by_processes(tmp_path: Path):
    path = write(tmp_path / "k", document(user=plugin(tmp_path, "#!/bin/sh\nexec sleep 60\n")))
    client = connect(path, timeout_s=0.2)
    async with asyncio.timeout(120):
        with pytest.raises(ApiUnreachableError, match="no answer within"):
            await client.get_pod("default", "p")
    await client.close()


@pytest.mark.anyio
async def test_processes_report_the_output_of_a_plugin(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    user = plugin(tmp_path, "#!/bin/sh\necho SECRET; echo log in first >&2; exit 3\n")
    client = connect(write(tmp_path / "k", document(user=user)))
    with pytest.raises(ApiUnreachableError, match=r"plugin: exit status 3: log in first$"):
        await client.get_pod("default", "p")
    await client.close()
    assert capfd.readouterr().err == ""


def test_plugin_that_needs_a_terminal_is_refused_without_one(tmp_path: Path):
    path = write(tmp_path / "k", document(user=plugin(tmp_path, "", interactiveMode="Always")))
    with pytest.raises(MalformedError, match="interactiveMode: Always, and the standard input is no term"):
        Documents(path)


LOGIN = """#!/bin/sh
echo "$KUBERNETES_EXEC_INFO" > "$0.asked"
echo "To sign in, enter the code" >&2
read -r code || code=none
sleep 1
echo "{\\"status\\": {\\"token\\": \\"$code\\"}}"
"""


COMMAND = (
    "import sys\nfrom k8s_rdma.kube.documents import Documents\n"
    "with Documents(sys.argv[1], timeout_s=0.2) as api: assert api.get('/version') is None"
)


@pytest.mark.parametrize(
    ("mode", "is_interactive", "by"),
    [("", True, "CODE"), ("IfAvailable", True, "CODE"), ("Always", True, "CODE"), ("Never", False, "none")],
)
def test_plugin_of_a_command_has_the_user_and_takes_its_time(
    tmp_path: Path, mode: str, is_interactive: bool, by: str
):
    """As https://github.com/kubernetes-client/python/issues/1787 wanted it."""
    user = plugin(tmp_path, LOGIN, **({"interactiveMode": mode} if mode else {}))
    terminal, ours = os.openpty()
    with serving() as asked:
        path = write(tmp_path / "k", document(asked.url, user))
        os.write(terminal, b"CODE\n")
        ended = subprocess.run(
            [sys.executable, "-c", COMMAND, path], stdin=ours, capture_output=True, text=True, check=False
        )
    os.close(terminal)
    os.close(ours)
    assert (ended.returncode, ended.stderr) == (0, "To sign in, enter the code\n")
    assert asked.by == [f"Bearer {by}"]
    told = json.loads((tmp_path / "plugin.asked").read_text())
    assert told["spec"] == {"interactive": is_interactive}


def test_plugin_of_a_version_that_is_not_spoken_is_refused(tmp_path: Path):
    version = "client.authentication.k8s.io/v2"
    path = write(tmp_path / "k", document(user=plugin(tmp_path, "", apiVersion=version)))
    with pytest.raises(MalformedError) as refused:
        Documents(path)
    told = f"exec plugin {tmp_path}/plugin: apiVersion '{version}'; wanted {V1} or {V1}beta1"
    assert refused.value.message == f"kubeconfig {path}: no usable kubeconfig: {told}"


COUNTING = '#!/bin/sh\nn=$(cat "$0.n" 2>/dev/null); echo "x$n" > "$0.n"\n'


@pytest.mark.parametrize(
    ("expires", "by"),
    [
        ("2001-01-01T00:00:00Z", ["Bearer t", "Bearer tx"]),
        ("2999-01-01T00:00:00Z", ["Bearer t", "Bearer t"]),
        (None, ["Bearer t", "Bearer t"]),
    ],
)
def test_plugin_is_called_again_when_its_credential_has_expired(
    tmp_path: Path, expires: str | None, by: list[str]
):
    when = json.dumps(expires).replace('"', '\\"')
    script = (
        COUNTING + f'echo "{{\\"status\\": {{\\"token\\": \\"t$n\\", \\"expirationTimestamp\\": {when}}}}}"\n'
    )
    with (
        serving() as asked,
        Documents(write(tmp_path / "k", document(asked.url, plugin(tmp_path, script)))) as api,
    ):
        assert api.get("/version") is None
        assert api.get("/version") is None
    assert asked.by == by


def test_plugin_is_called_again_when_its_token_is_refused(tmp_path: Path):
    script = COUNTING + 'echo "{\\"status\\": {\\"token\\": \\"t$n\\"}}"\n'
    with (
        serving() as asked,
        Documents(write(tmp_path / "k", document(asked.url, plugin(tmp_path, script)))) as api,
    ):
        assert api.get("/version") is None
        assert api.get("/version") is None
        asked.taken = "Bearer tx"
        assert api.get("/version") is None
    assert asked.by == ["Bearer t", "Bearer t", "Bearer t", "Bearer tx"]


PLUGIN = """#!/bin/sh
printf %s "$KUBERNETES_EXEC_INFO" > "$(dirname "$0")/asked"
echo '{"kind": "ExecCredential", "apiVersion": "x", "status": {"token": "'"$1"'"}}'
"""


def noting(directory: Path, version: str, **more: Any) -> dict[str, Any]:
    """A user by an exec plugin beside the kubeconfig, which gives the token `t`."""
    (directory / "plugin").write_text(PLUGIN)
    (directory / "plugin").chmod(0o700)
    version = f"client.authentication.k8s.io/{version}"
    return {"exec": {"apiVersion": version, "command": "./plugin", "args": ["t"], "env": None, **more}}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_exec_plugin_is_called_as_its_version_has_it(tmp_path: Path, version: str):
    with serving() as asked:
        ask(write(tmp_path / "k", document(asked.url, noting(tmp_path, version, interactiveMode="Never"))))
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
        client = connect(write(tmp_path / "k", document(asked.url, noting(tmp_path, "v1"))))
        assert await client.get_pod("default", "p") is None
        await client.close()
    assert asked.by == ["Bearer t"]


def test_exec_plugin_gets_the_cluster_if_it_requests_it(tmp_path: Path):
    issuer = Issuer(tmp_path).make()
    user = noting(tmp_path, "v1", provideClusterInfo=True)
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
    user = noting(tmp_path, "v1", provideClusterInfo=True)
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
