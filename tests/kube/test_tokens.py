"""Tokens that no call can be made with, and exec plugins that give nothing to make one with."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from traceback import format_exception
from typing import TYPE_CHECKING, Any

import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.client import connect
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.errors import ApiUnreachableError
from kube.asking import ask, document, serving, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

V1 = "client.authentication.k8s.io/v1"


def plugin(directory: Path, script: str, **more: Any) -> dict[str, Any]:
    """A user by an exec plugin of that text."""
    (directory / "plugin").write_text(script)
    (directory / "plugin").chmod(0o700)
    return {"exec": {"apiVersion": V1, "command": "./plugin", **more}}


def giving(text: str) -> str:
    return f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n"


def refusal(path: str) -> str:
    """What a call says for which there are no credentials; and nowhere is a token shown."""
    with (
        Documents(path) as api,
        pytest.raises(ApiUnreachableError, match=r"^get /version: no usable credentials: ") as refused,
    ):
        api.get("/version")
    assert "SECRET" not in "".join(format_exception(refused.value))
    return refused.value.message.removeprefix("get /version: no usable credentials: ")


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


def test_white_space_around_a_token_does_not_count(tmp_path: Path):
    with serving() as asked:
        ask(write(tmp_path / "k", document(asked.url, {"token": " t\n"})))
    assert asked.by == ["Bearer t"]


@pytest.mark.parametrize("empty", [{"token": ""}, {"token": "\n"}, {"tokenFile": ""}])
def test_empty_token_counts_as_none(tmp_path: Path, empty: dict[str, str]):
    user = plugin(tmp_path, giving('{"status": {"token": "of the plugin"}}'))
    with serving() as asked:
        ask(write(tmp_path / "k", document(asked.url, {**user, **empty})))
        ask(write(tmp_path / "k", document(asked.url, empty)))
    assert asked.by == ["Bearer of the plugin", None]


@pytest.mark.parametrize("sign", ["\n", "\r", "\0", "\x7f", "é"])
def test_token_that_no_header_can_carry_is_refused_without_being_shown(tmp_path: Path, sign: str):
    path = write(tmp_path / "k", document(user={"token": f"SECRET{sign}SECRET"}))
    with pytest.raises(MalformedError) as refused:
        Documents(path)
    assert (
        "context c: user c: the token has line breaks or other signs that no header" in refused.value.message
    )
    assert "SECRET" not in "".join(format_exception(refused.value))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (b"SECRET\nSECRET", "the token has line breaks"),
        (b"SECRET\xff", "no text"),
        (b" \n", "the token is empty"),
        (None, "Is a directory"),
    ],
)
def test_token_file_that_cannot_be_used_is_named(tmp_path: Path, found: bytes | None, told: str):
    token = tmp_path / "token"
    if found is None:
        token.mkdir()
    else:
        token.write_bytes(found)
    path = write(tmp_path / "k", document(user={"tokenFile": "token"}))
    assert refusal(path).startswith(f"tokenFile {token}: {told}")


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
