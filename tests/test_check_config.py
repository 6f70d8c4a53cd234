"""`--check-config` of a node's processes: settings that keep them from starting are refused, by field."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from k8s_rdma.cli.main import app
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "c", "user": {"token": "t"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
}


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A directory with all that an agent's file names."""
    (tmp_path / "kubeconfig").write_text(json.dumps(KUBECONFIG))
    (tmp_path / "key").write_text("sixteen bytes ok\n")
    (tmp_path / "short").write_text("k\n")
    (tmp_path / "plugin").write_text("resources: [{mode: exact}]")
    return tmp_path


def check(process: str, file: Path, settings: Mapping[str, Any]) -> str:
    """Return the output; raise MalformedError if the configuration is refused."""
    file.write_text(json.dumps(settings))
    ended = CliRunner().invoke(app, [process, "--check-config", "--config", str(file)])
    if ended.exception is not None:
        raise ended.exception
    return ended.stdout


def agent(node: Path) -> dict[str, Any]:
    return {
        "node": "w1",
        "kubeconfig": str(node / "kubeconfig"),
        "devicePlugin": str(node / "plugin"),
        "placementKeyFile": str(node / "key"),
        "hostRoot": str(node),
    }


def test_agent_that_could_start_is_well(node: Path) -> None:
    assert check("agent", node / "agent.yaml", agent(node)) == "ok\n"


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("kubeconfig", "none", "kubeconfig {}: no usable kubeconfig: "),
        ("kubeconfig", "plugin", "kubeconfig {}: no usable kubeconfig: "),
        ("devicePlugin", "none", "devicePlugin: {}: No such file or directory"),
        ("devicePlugin", "key", "devicePlugin: {}: is text; wanted a mapping of settings"),
        ("placementKeyFile", "none", "placementKeyFile {}: No such file or directory"),
        ("placementKeyFile", "short", "placementKeyFile {}: has a key of 8 bits; wanted 16 bytes"),
        ("hostRoot", "none", "hostRoot {}: no such directory"),
    ],
)
def test_agent_that_could_not_start_is_refused_by_the_field(
    node: Path, field: str, value: str, told: str
) -> None:
    path = str(node / value)
    with pytest.raises(MalformedError) as refused:
        check("agent", node / "agent.yaml", agent(node) | {field: path})
    assert refused.value.message.startswith(told.format(path))


def test_device_plugin_without_its_credentials_is_refused(node: Path) -> None:
    settings = {"node": "w1", "kubeconfig": str(node / "kubeconfig")}
    assert check("device-plugin", node / "ours.yaml", settings) == "ok\n"
    with pytest.raises(MalformedError, match="kubeconfig /none: no usable kubeconfig"):
        check("device-plugin", node / "ours.yaml", settings | {"kubeconfig": "/none"})


@pytest.mark.parametrize("process", ["server", "device-plugin"])
def test_process_with_malformed_files_for_access_is_refused_by_the_field(node: Path, process: str) -> None:
    file = node / "ours.yaml"
    assert check(process, file, {"tokenFile": str(node / "short"), "openPaths": ["/metrics"]}) == "ok\n"
    with pytest.raises(MalformedError, match="tokenFile /none: No such file"):
        check(process, file, {"tokenFile": "/none"})
    with pytest.raises(MalformedError, match=r"tls.certFile /none: No such file"):
        check(process, file, {"tls": {"certFile": "/none", "keyFile": "/none"}})
    with pytest.raises(MalformedError, match=r"openPaths\[0\]: /metric; wanted"):
        check(process, file, {"openPaths": ["/metric"]})


def test_server_with_a_malformed_port_of_the_environment_is_refused(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PORT", raising=False)
    assert check("server", node / "ours.yaml", {"node": "w1"}) == "ok\n"
    monkeypatch.setenv("PORT", "http")
    with pytest.raises(MalformedError, match="PORT: 'http' is no TCP port"):
        check("server", node / "ours.yaml", {"node": "w1"})


@pytest.mark.parametrize("process", ["server", "device-plugin", "agent"])
def test_name_of_the_command_line_that_no_node_can_have_is_refused_as_such(process: str) -> None:
    refused = CliRunner().invoke(app, [process, "--check-config", "--node", "W 1!"]).exception
    assert str(refused) == "command line: node: W 1!; wanted the node's name in Kubernetes, such as worker-1"


def test_agent_without_a_node_says_both_ways_to_name_it() -> None:
    refused = CliRunner().invoke(app, ["agent", "--check-config"]).exception
    assert str(refused) == "node: not set; --node NAME, or node: in --config FILE"
