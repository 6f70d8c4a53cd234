"""The process `k8s-rdma agent`: its configuration, its lock on the node, its signals. Needs no privileges."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from k8s_rdma.cli.main import app
from k8s_rdma.errors import K8sRdmaError

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 120


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short, since the path of a Unix socket has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="k8srdma-") as path:
        yield Path(path)


def command(config: Path | str) -> list[str]:
    return [sys.executable, "-m", "k8s_rdma", "agent", "--config", str(config)]


def config(directory: Path, **changes: object) -> Path:
    path = directory / "agent.yaml"
    document = {
        "node": "w1",
        "kernel": "virtual",
        "runDir": str(directory / "run"),
        "stateDir": str(directory / "state"),
    }
    path.write_text(json.dumps(document | changes))
    return path


def refusal(path: Path | str) -> str:
    """Return the output of an agent that cannot start: one line."""
    ended = subprocess.run(command(path), capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("k8s-rdma: ")
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


@pytest.fixture
def agent(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """One that serves."""
    with subprocess.Popen(command(config(directory)), stderr=subprocess.PIPE, text=True) as process:
        assert json.loads(process.stderr.readline())["event"] == "agent_ready"
        yield process
        process.kill()


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
def test_agent_serves_although_other_programs_have_all_inotify_instances(directory: Path) -> None:
    """By default there are 128 for all programs of root together."""
    script = 'echo 0 >/proc/sys/user/max_inotify_instances && exec "$@"'
    in_namespace = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"]
    starting = [*in_namespace, *command(config(directory))]
    with subprocess.Popen(starting, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        if "unshare" in first or "max_inotify_instances" in first:
            pytest.skip(f"needs a user namespace with limits of its own: {first}")
        events = [json.loads(line)["event"] for line in (first, process.stderr.readline())]
        process.kill()
    assert events == ["sandboxes_polled", "agent_ready"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes: w1", ["nodes: unknown key; did you mean node?"]),
        ("node: 1", ["node: is a number; wanted the node's name", "in quotes"]),
        ("node: ''", ["node: is empty; wanted"]),
        ("node: w1\nipamTimeoutS: soon", ["ipamTimeoutS: is text; wanted a number"]),
        ("node: w1\nipamTimeoutS: 0", ["ipamTimeoutS: 0; wanted a number above 0"]),
        ("node: w1\nkernel: bsd", ["kernel: bsd; wanted linux or virtual"]),
        (
            "node: w1\nhardware: {requireRDMA: no}",
            ["hardware.requireRDMA: unknown key; did you mean requireRdma?"],
        ),
        ("node: w1\nhardware: {pfs: [{numVfs: many}]}", ["hardware.pfs[0].numVfs: many"]),
        ("node: w1\nhardware: {pfs: []}", ["hardware.pfs: is empty"]),
        ("node: w1\nrunDir: run", ["runDir: run; wanted an absolute path"]),
        ("node: w1\nstateDir: ''", ["stateDir: is empty; wanted an absolute path"]),
    ],
)
def test_configuration_that_cannot_be_is_refused_in_one_line_that_names_the_key(
    directory: Path, text: str, words: list[str]
) -> None:
    # Should one of them be accepted after all, that agent shall not come near the node's own directories.
    lines = [f"{key}: {directory / key}" for key in ("runDir", "stateDir") if key not in text]
    path = directory / "agent.yaml"
    path.write_text("\n".join([*lines, text]))
    refused = CliRunner().invoke(app, ["agent", "--config", str(path)]).exception
    assert isinstance(refused, K8sRdmaError)
    said = str(refused)
    assert "\n" not in said
    assert refused.details == ""
    assert str(path) in said
    for word in words:
        assert word in said
    assert list(directory.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "{}", "w1"])
def test_empty_configuration_is_refused(directory: Path, text: str) -> None:
    path = directory / "agent.yaml"
    path.write_text(text)
    words = "node: not set" if text in ("", "{}") else "wanted a mapping"
    assert words in refusal(path)


def test_configuration_that_is_not_there_is_refused_by_name(directory: Path) -> None:
    path = directory / "missing.yaml"
    said = refusal(path)
    assert str(path) in said
    assert "No such file or directory" in said


def test_key_file_that_cannot_be_read_is_refused_by_key(directory: Path) -> None:
    said = refusal(config(directory, placementKeyFile=str(directory / "key")))
    assert "placementKeyFile" in said
    assert not (directory / "run").exists()


def test_root_of_the_node_that_is_not_there_is_refused_by_key(directory: Path) -> None:
    root = directory / "host"
    assert f"hostRoot {root}: no such directory" in refusal(config(directory, hostRoot=str(root)))
    assert not (directory / "run").exists()


def test_second_agent_on_a_node_is_refused_and_the_first_serves_on(
    directory: Path, agent: subprocess.Popen[str]
) -> None:
    said = refusal(config(directory))
    assert str(directory / "state" / "ledger.db") in said
    assert "is another agent running on this node?" in said
    with socket.socket(socket.AF_UNIX) as reader:
        reader.connect(str(directory / "run" / "state.sock"))
        assert len(reader.recv(4, socket.MSG_WAITALL)) == 4
    assert agent.poll() is None


def test_agent_whose_directory_is_no_directory_is_refused_by_name(directory: Path) -> None:
    (directory / "file").touch()
    assert str(directory / "file") in refusal(config(directory, stateDir=str(directory / "file")))
    assert str(directory / "file") in refusal(config(directory, runDir=str(directory / "file")))


def test_agent_that_cannot_listen_is_refused_by_name(directory: Path) -> None:
    (directory / "run" / "cni.sock" / "taken").mkdir(parents=True)
    assert f"cannot listen at {directory / 'run' / 'cni.sock'}" in refusal(config(directory))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_agent_ends_with_0_at_a_signal(agent: subprocess.Popen[str], number: signal.Signals) -> None:
    agent.send_signal(number)
    events = [json.loads(line)["event"] for line in agent.stderr]
    assert agent.wait(DEADLINE_S) == 0
    assert events == ["agent_stopped"]


def test_agent_whose_socket_is_taken_away_ends_and_the_next_one_serves(
    directory: Path, agent: subprocess.Popen[str]
) -> None:
    shutil.rmtree(directory / "run")
    said = agent.stderr.read()
    assert agent.wait(DEADLINE_S) == 2
    assert f"{directory / 'run' / 'cni.sock'} was taken away" in said
    with subprocess.Popen(command(config(directory)), stderr=subprocess.PIPE, text=True) as again:
        assert json.loads(again.stderr.readline())["event"] == "agent_ready"
        assert sorted(path.name for path in (directory / "run").iterdir()) == [
            "attachments",
            "cdi.sock",
            "claims.sock",
            "cni.sock",
            "deletions",
            "state.sock",
        ]
        again.kill()


def test_cni_socket_is_its_owners_alone_and_state_is_one_groups_too(
    directory: Path, agent: subprocess.Popen[str]
) -> None:
    def mode(name: str) -> int:
        return stat.S_IMODE((directory / "run" / name).stat().st_mode)

    assert (mode("cni.sock"), mode("cdi.sock"), mode("state.sock")) == (0o600, 0o600, 0o660)
    assert (directory / "run" / "cni.sock").stat().st_uid == os.geteuid()


@pytest.mark.parametrize(
    ("limits", "opened"), [("512:4096", 4096), ("1024:16384", 8192), ("9000:9000", 9000)]
)
def test_agent_may_open_as_many_files_as_its_calls_take(directory: Path, limits: str, opened: int) -> None:
    limited = ["prlimit", f"--nofile={limits}", *command(config(directory))]
    with subprocess.Popen(limited, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert json.loads(process.stderr.readline())["event"] == "agent_ready"
            soft, _ = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
            assert soft == opened
        finally:
            process.kill()


def test_agent_loads_no_module_of_other_processes(directory: Path) -> None:
    """Its memory budget has no room for it."""
    heavy = {"lightkube", "httpx2", "uvicorn", "uvloop", "httptools", "pyroute2"}
    program = "import sys, k8s_rdma.cli.main, k8s_rdma.agent.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert heavy.isdisjoint(loaded.stdout.split())
