"""valgrind finds no error in the program, on every way through it.

It runs the sources optimised as they ship, but linked dynamically: glibc's work before main() in a static
program is not known to valgrind, which reports all of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from cni.call import CONTAINER, SOURCES, WISH, Program, chained, netconf
from cni.scripted_agent import receive
from k8s_rdma.wire.cni_socket import MAX_ENV_BYTES, MAX_STDIN_BYTES, Reply, encode_reply

if TYPE_CHECKING:
    import socket
    from pathlib import Path

FOUND_SOMETHING = 99


@pytest.fixture(scope="module")
def valgrind() -> list[str]:
    """Its command line; it needs the symbols of the dynamic linker."""
    command = [shutil.which("valgrind") or "valgrind", "--quiet", f"--error-exitcode={FOUND_SOMETHING}"]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("needs valgrind and what it needs (Debian packages valgrind, libc6-dbg)")
    return command


@pytest.fixture(scope="module")
def dynamic(build_dir: Path) -> Path:
    directory = build_dir / "dynamic"
    command = ["make", "-C", SOURCES, f"BUILD={directory}", "KIND=-g -O2"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return directory / "k8s-rdma-cni"


@pytest.fixture
def checked(dynamic: Path, valgrind: list[str], tmp_path: Path) -> Program:
    """The program under valgrind, which writes its findings into a file."""
    return Program(dynamic, under=[*valgrind, f"--log-file={tmp_path}/%p.log"])


def run(checked: Program, tmp_path: Path, command: str, stdin: bytes | dict, **env: str | None):
    outcome = checked(command, stdin, env={"VALGRIND_LIB": os.environ.get("VALGRIND_LIB")} | env)
    found = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert outcome.exit_status != FOUND_SOMETHING, found
    return outcome


def test_valgrind_reports_an_error_if_there_is_one(valgrind, build_dir) -> None:
    """Otherwise the tests below would prove little."""
    source = b"#include <stdlib.h>\nint main(void) { return *(volatile char *)malloc(1) ? 1 : 0; }\n"
    program = build_dir / "uninitialised"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-x", "c", "-o", program, "-"], input=source, check=True)
    assert (
        subprocess.run([*valgrind, program], capture_output=True, check=False).returncode == FOUND_SOMETHING
    )


@pytest.mark.parametrize("command", ["VERSION", "STATUS", "ADD", "DEL", "CHECK"])
def test_valgrind_finds_no_error_when_the_program_answers_alone(checked, tmp_path, run_dir, command) -> None:
    conf = chained(run_dir, {"ü": "\U0001f600", "rdma_interfaces_required": " [ ] "})
    assert run(checked, tmp_path, command, conf).exit_status == 0


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_valgrind_finds_no_error_when_any_pod_may_hold_devices(
    checked, tmp_path, agent, netns, command
) -> None:
    run_dir = agent.path.parent
    (run_dir / "exclusive-devices").touch()
    if command == "DEL":
        (run_dir / "attachments").rmdir()
    agent.answer = encode_reply(Reply(exit_status=3, stdout=b"x"))
    assert run(checked, tmp_path, command, chained(run_dir, {}), CNI_NETNS=netns).exit_status == 3
    assert len(agent.received) == 1


@pytest.mark.parametrize("command", ["STATUS", "ADD", "DEL", "CHECK", "GC"])
def test_valgrind_finds_no_error_when_the_agent_answers(checked, tmp_path, agent, netns, command) -> None:
    run_dir = agent.path.parent
    (run_dir / "attachments" / CONTAINER).touch()
    agent.answer = encode_reply(Reply(exit_status=3, stdout=os.urandom(10_000)))
    conf = netconf(run_dir, delegate={"type": "bridge"}, padding="x" * 10_000)
    assert run(checked, tmp_path, command, conf, CNI_NETNS=netns).exit_status == 3
    assert len(agent.received) == 1


@pytest.mark.parametrize("network", ["net", "n" * 300, "a/b", None])
def test_valgrind_finds_no_error_when_a_del_is_left(checked, tmp_path, run_dir, netns, network) -> None:
    (run_dir / "attachments" / CONTAINER).touch()
    (run_dir / "deletions").mkdir()
    conf = netconf(run_dir, name=network, padding="x" * 10_000)
    outcome = run(checked, tmp_path, "DEL", conf, CNI_NETNS=netns)
    assert outcome.exit_status == (0 if network == "net" else 1)
    assert [path.name for path in (run_dir / "deletions").iterdir()] == [f"{CONTAINER}:eth0:net"] * (
        network == "net"
    )


@pytest.mark.parametrize(
    "sent", [b"", b"KRDC\1\0", encode_reply(Reply(exit_status=0, stdout=b"x"))[:-1], b"H" * 12]
)
def test_valgrind_finds_no_error_when_the_agent_breaks_off(checked, tmp_path, agent, netns, sent) -> None:
    def break_off(connection: socket.socket) -> None:
        receive(connection)
        connection.sendall(sent)

    agent.script = break_off
    outcome = run(checked, tmp_path, "ADD", chained(agent.path.parent, WISH), CNI_NETNS=netns)
    assert outcome.error["code"] == 11


@pytest.mark.parametrize(
    ("stdin", "env", "code"),
    [
        (b"", {}, 6),
        (b'{"a":"\xff', {}, 6),
        (b"[" * 1000, {}, 6),
        (b'{"cniVersion":"1.1.0"}'.ljust(MAX_STDIN_BYTES + 1), {}, 6),
        (b'{"runDir":"/\\ud800"}', {}, 7),
        (b'{"cniVersion":"\\u0000"}', {}, 1),
        (b"{}", {"CNI_IFNAME": ""}, 4),
        (b"{}", {"CNI_CONTAINERID": "\x7f\n\xff"}, 4),
        (b"{}", {"CNI_ARGS": "a" * MAX_ENV_BYTES}, 4),
        (b"{}", {"CNI_COMMAND": "x" * 5000}, 4),
    ],
)
def test_valgrind_finds_no_error_when_the_call_is_refused(checked, tmp_path, stdin, env, code) -> None:
    assert run(checked, tmp_path, "ADD", stdin, **env).error["code"] == code
