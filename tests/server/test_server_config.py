"""The server's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from k8s_rdma.config.files import load_config
from k8s_rdma.config.server import ServerConfig
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from pathlib import Path


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "server.yaml"
    path.write_text(text)
    return str(path)


def test_config_is_the_documented_one_by_default() -> None:
    config = load_config(ServerConfig, None, {})
    assert config == ServerConfig(listen="", port=54005, run_dir="/run/k8s-rdma")
    assert (config.node, config.kernel, config.tls, config.token_file) == (None, "linux", None, None)


def test_config_is_read_when_a_file_gives_it(tmp_path: Path) -> None:
    path = written(tmp_path, "listen: 10.0.0.1\nport: 1\nrunDir: /run/x\n")
    assert load_config(ServerConfig, path, {}) == ServerConfig(listen="10.0.0.1", port=1, run_dir="/run/x")


@pytest.mark.parametrize("port", [0, 65535])
def test_config_takes_every_port(tmp_path: Path, port: int) -> None:
    assert load_config(ServerConfig, written(tmp_path, f"port: {port}"), {}).port == port


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("prot: 1", "prot: unknown key; did you mean port?"),
        ("run_dir: /x", "run_dir: unknown key; did you mean runDir?"),
        ("port: 65536", "port: "),
        ("port: -1", "port: "),
        ("port: '1'", "port: "),
        ("listen: 1", "listen: is a number; wanted text, in quotes"),
        ("node: ''", "node: is empty; wanted the node's name"),
        ("kernel: bsd", "kernel: bsd; wanted linux or virtual"),
        ("hardware: {pfs: []}", "pfs: is empty"),
        ("hardware: {pfs: [{name: eth0}]}", "hardware.pfs[0].name: unknown key; did you mean names?"),
        ("tls: {certFile: /a}", "tls.keyFile: not set; wanted an absolute path"),
        ("tls: {certFile: a, keyFile: /b}", "tls.certFile: a; wanted an absolute path"),
        ("tls: {certFile: /a, keyFile: /b, caFile: /c}", "tls.caFile: unknown key; did you mean"),
        ("tokenFile: tokens", "tokenFile: tokens; wanted"),
        (
            "tls: {certFile: /a, keyFile: /b, clientNames: [a]}",
            "clientNames: is for certificates of clientCaFile",
        ),
        ("tls: {certFile: /a, keyFile: /b, clientCaFile: /c, clientNames: ['']}", "tls.clientNames[0]: "),
        ("openPaths: /getpfs", "openPaths: is text; wanted a list"),
        ("openPaths: [/getpf]", "openPaths[0]: /getpf; wanted"),
        ("openPaths: [/healthz]", "openPaths[0]: /healthz; wanted"),
        ("maxConnections: 0", "maxConnections: 0; wanted a whole number from 8 to"),
    ],
)
def test_config_is_refused_naming_the_key_when_malformed(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(MalformedError) as refused:
        load_config(ServerConfig, written(tmp_path, text), {})
    assert named in refused.value.message
