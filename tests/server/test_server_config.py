"""The server's configuration, and the process that runs by it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.config.files import load_config
from k8s_rdma.config.server import ServerConfig
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = """
from k8s_rdma.config.server import ServerConfig
from k8s_rdma.server.main import run

run(ServerConfig(listen="127.0.0.1", run_dir="."))
"""


@contextmanager
def started(tmp_path: Path, program: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process, once it listens, and its port."""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PORT": "0"},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            ready = json.loads(process.stderr.readline())
            assert ready["event"] == "server_ready"
            yield process, ready["port"]
        finally:
            process.kill()


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


def test_process_ends_with_an_error_when_it_has_a_fault_while_clients_are_connected(tmp_path: Path) -> None:
    faulty = PROGRAM.replace('run_dir=".")', 'run_dir="."), scan=lambda: 1 // int(input())')
    assert faulty != PROGRAM
    with (
        started(tmp_path, faulty) as (process, port),
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: w1\r\n\r\n")
        assert client.recv(64)
        _, stderr = process.communicate("0\n", timeout=20)
        assert process.returncode == 1
        assert "ZeroDivisionError" in stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_serves_at_its_address_and_ends_with_status_0_when_signalled(
    tmp_path: Path, number: signal.Signals
) -> None:
    with started(tmp_path, PROGRAM) as (process, port):
        url = f"http://127.0.0.1:{port}/healthz"
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert answer.status == 200
        process.send_signal(number)
        _, stderr = process.communicate(timeout=20)
        assert process.returncode == 0
        assert json.loads(stderr.splitlines()[-1])["event"] == "server_stopped"
