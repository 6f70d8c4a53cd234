"""The CNI executable: from its start to its first byte on the agent's socket (budget: 2 ms).

Beside it stands the time of an interpreter for the same. The clock runs from the spawn, which the runtime
pays as well, until the byte has been received.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.wire.cni_socket import Reply, encode_reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAM = Path(__file__).parents[1] / "build" / "k8s-rdma-cni"
ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
ROUNDS = 500
INTERPRETED = """
import json, os, socket, sys
conf = json.load(sys.stdin)
agent = socket.socket(socket.AF_UNIX)
agent.connect(conf["runDir"] + "/cni.sock")
agent.sendall(b"KRDC" + json.dumps(conf).encode())
agent.recv(1)
"""


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="k8srdma-bench-") as path:
        yield Path(path)


@pytest.fixture
def agent(run_dir: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run_dir / "cni.sock"))
        listener.listen()
        yield listener


def netconf(run_dir: Path, annotations: dict[str, str]) -> bytes:
    """Return a chained configuration, with the result of another plugin and an ordinary pod's annotations."""
    interfaces = [{"name": name, "mac": "02:00:00:00:00:01"} for name in ("cni0", "veth0", "eth0")]
    prev_result = {"cniVersion": "1.1.0", "interfaces": interfaces, "ips": [{"address": "10.0.0.2/24"}]}
    conf = {"cniVersion": "1.1.0", "name": "net", "type": "k8s-rdma-cni", "runDir": str(run_dir)}
    delivered = {ANNOTATIONS: {"kubernetes.io/config.source": "api"} | annotations}
    return json.dumps(conf | {"prevResult": prev_result, "runtimeConfig": delivered}).encode()


def spawner(command: list[str], stdin: Path, stdout: Path) -> Callable[[], int]:
    """Return a function that starts the command as a runtime would, and returns its process ID."""
    env = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c0ffee",
        "CNI_NETNS": "/proc/self/ns/net",
        "CNI_IFNAME": "eth0",
    }
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, str(stdin), os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(stdout), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
    ]
    return lambda: os.posix_spawn(command[0], command, env, file_actions=actions)


def ends_well(process: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            [str(PROGRAM)],
            id="shim",
            marks=pytest.mark.budget("k8s-rdma-cni, start to first byte on the socket", 2, "ms"),
        ),
        pytest.param(
            [sys.executable, "-I", "-S", "-c", INTERPRETED],
            id="interpreter",
            marks=pytest.mark.budget("the same by python3 -I -S, for comparison", None, "ms"),
        ),
    ],
)
def test_start_to_first_byte(benchmark, run_dir: Path, agent: socket.socket, command: list[str]) -> None:
    (run_dir / "stdin").write_bytes(netconf(run_dir, {"rdma_interfaces_required": "[{}]"}))
    start = spawner(command, run_dir / "stdin", run_dir / "stdout")
    running: list[tuple[int, socket.socket]] = []

    def first_byte() -> None:
        process = start()
        connection, _ = agent.accept()
        assert connection.recv(1) == b"K"
        running.append((process, connection))

    def finish() -> None:
        while running:
            process, connection = running.pop()
            with connection:
                connection.recv(1 << 20)
                connection.sendall(encode_reply(Reply(exit_status=0, stdout=b"{}")))
            assert ends_well(process)

    benchmark.pedantic(first_byte, setup=finish, rounds=ROUNDS, warmup_rounds=20)
    finish()


@pytest.mark.budget("k8s-rdma-cni, whole ADD of a pod that asks for nothing", None, "ms")
def test_pass_through_of_a_pod_that_wants_nothing(benchmark, run_dir: Path) -> None:
    (run_dir / "stdin").write_bytes(netconf(run_dir, {}))
    start = spawner([str(PROGRAM)], run_dir / "stdin", run_dir / "stdout")
    benchmark.pedantic(lambda: ends_well(start()), rounds=ROUNDS, warmup_rounds=20)
    assert b"10.0.0.2/24" in (run_dir / "stdout").read_bytes()
