"""Commands that the warm program forks are processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.played_usage import PlayedPrometheus, recommended
from contract.linux_lab import needs_namespaces
from k8s_rdma import __version__
from k8s_rdma.linux.netns import entered
from network_namespaces import create_namespace
from process_status import status
from warm_program import Process, run, run_on, start_logged

if TYPE_CHECKING:
    from cli.asking import Ran

NULL = Path(os.devnull)
ANNOTATION = '[{"min_tx_rate": 1000}]'


def test_command_has_its_own_standard_streams_and_status():
    ran = run(["claim", "-"], os.environ, stdin=ANNOTATION)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "ResourceClaimTemplate" in ran.stdout
    ran = run(["explain", "nothing"], os.environ)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("k8s-rdma: ")


def test_command_has_its_own_environment_and_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "annotation.json").write_text(ANNOTATION)
    assert run(["claim", "annotation.json"], {}).returncode == 2
    monkeypatch.chdir(tmp_path)
    assert run(["claim", "annotation.json"], {}).returncode == 0
    absent = "http://127.0.0.1:1"
    assert absent in run(["top", "--once"], {"K8S_RDMA_EXTENDER": absent}).stderr
    assert absent not in run(["top", "--once"], {"KUBECONFIG": "/absent"}).stderr


def test_commands_run_at_the_same_time():
    """One waits for its input until another has ended."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin, os.fdopen(writing, "w") as annotation, NULL.open("wb") as null:
        streams = (stdin.fileno(), null.fileno(), null.fileno())
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(run_on, ["claim", "-"], {}, streams)
            with annotation:
                assert run(["--version"], {}).stdout == f"k8s-rdma {__version__}\n"
                assert not waiting.done()
                annotation.write(ANNOTATION)
            assert waiting.result() == 0


def test_unwritable_output_is_a_status_of_the_command():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as unread, NULL.open("r+b") as null:
        assert run_on(["version"], {}, (null.fileno(), unread.fileno(), null.fileno())) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_process_is_known_by_its_pid_and_ended_by_a_signal(tmp_path: Path, number: signal.Signals):
    with start_server(tmp_path) as server:
        assert server.poll() is None
        assert Path(f"/proc/{server.pid}").exists()
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(0.001)
        server.send_signal(number)
        assert server.wait(60) == (0 if number == signal.SIGTERM else -number)
        assert not Path(f"/proc/{server.pid}").exists()
        server.kill()  # its pid may be another's by now
    assert server.returncode == server.poll()


def test_threads_may_wait_for_one_process(tmp_path: Path):
    with start_server(tmp_path) as server, ThreadPoolExecutor() as threads:
        waiting = [threads.submit(server.wait, 60) for _ in range(8)]
        server.terminate()
        assert [each.result() for each in waiting] == [0] * len(waiting)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_process_has_the_rights_of_its_user():
    user = 4711
    with tempfile.TemporaryDirectory() as path:  # pytest's own is root's alone
        os.chown(path, user, user)
        with start_server(Path(path), user=user) as server:
            found = status(server.pid)
            server.kill()
    assert (found["Uid"].split(), found["Gid"].split()) == ([str(user)] * 4, [str(user)] * 4)
    assert found["Groups"].strip() == ""
    assert int(found["CapEff"], 16) == 0


def start_server(directory: Path, *, user: int | None = None) -> Process:
    """Start a node's server, without an agent; it serves when this returns."""
    config, log = directory / "server.yaml", directory / "log"
    config.write_text(json.dumps({"node": "w1", "runDir": str(directory), "listen": "127.0.0.1", "port": 0}))
    with log.open("wb") as written:
        server = start_logged(["server", "--config", config], written, user=user)
    assert isinstance(server, Process)
    while '"server_ready"' not in log.read_text():
        assert server.poll() is None, log.read_text()
        time.sleep(0.01)
    return server


@needs_namespaces
def test_command_is_in_the_network_namespace_of_the_thread_that_runs_it(tmp_path: Path):
    assert run(["version"], os.environ).returncode == 0  # the process that forks stays in this one
    with ThreadPoolExecutor(1) as thread:
        ran = thread.submit(_recommended_elsewhere, tmp_path).result()
    assert ran.status == 0, ran.err


def _recommended_elsewhere(directory: Path) -> Ran:
    """Run a command that asks servers of a namespace of its own."""
    namespace = create_namespace()
    try:
        with entered(namespace):
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            return asyncio.run(recommended(PlayedPrometheus().answer, directory, "--window", "1h"))
    finally:
        os.close(namespace)
