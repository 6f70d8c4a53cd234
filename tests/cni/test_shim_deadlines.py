"""The program ends in time, whoever does not answer, read or write."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import time
from contextlib import ExitStack, suppress

import pytest

from cni.call import ANNOTATIONS, CONTAINER, DEADLINE_S, NETNS, WISH, chained, netconf
from cni.scripted_agent import fill_backlog, receive, wait_for_hangup
from k8s_rdma.errors import TRY_AGAIN_LATER
from k8s_rdma.wire.cni_socket import Reply, encode_reply

RUNTIME_TIMEOUT_MS = STATUS_TIMEOUT_MS = 10_000
ADD = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": CONTAINER, "CNI_IFNAME": "eth0", "CNI_NETNS": NETNS}
BIG = b'{"runtimeConfig":{"%s":{}},"prevResult":{"big":"%s"}}' % (ANNOTATIONS.encode(), b"x" * 1_000_000)


def error_of_hasty_call(program, run_dir, netns, **keys):
    """A call that waits for 100 ms only."""
    return program("ADD", chained(run_dir, WISH, timeoutMs=100, **keys), env={"CNI_NETNS": netns}).error


def start(program, stdin, stdout) -> subprocess.Popen:
    return subprocess.Popen([program.path], stdin=stdin, stdout=stdout, env=ADD)


def trickle(process: subprocess.Popen) -> None:
    """White space before the configuration, a byte now and then, for as long as somebody reads it."""
    while process.poll() is None:
        try:
            process.stdin.write(b" ")
            process.stdin.flush()
        except BrokenPipeError:
            return
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue


def test_runtime_that_neither_writes_nor_reads_is_given_up(program) -> None:
    """All at once, since each takes its ten seconds."""
    with ExitStack() as stack:
        silent, slow = (
            stack.enter_context(start(program, subprocess.PIPE, subprocess.PIPE)) for _ in range(2)
        )
        unread = stack.enter_context(start(program, subprocess.PIPE, subprocess.PIPE))
        unread.stdin.write(BIG)
        unread.stdin.close()
        writer = threading.Thread(target=trickle, args=(slow,))
        writer.start()
        statuses = [process.wait(DEADLINE_S) for process in (silent, slow, unread)]
        writer.join(DEADLINE_S)
        assert statuses == [1, 1, 1]
        for process in (silent, slow):
            error = json.loads(process.stdout.read())
            assert (error["code"], error["details"]) == (5, "read: Connection timed out")
        assert 0 < len(unread.stdout.read()) < len(BIG)


def test_status_does_not_wait_longer_than_its_caller(program, run_dir, agent) -> None:
    before = time.monotonic_ns() // 1_000_000
    program("STATUS", netconf(run_dir, delegate={"type": "bridge"}, timeoutMs=3_600_000))
    after = time.monotonic_ns() // 1_000_000
    deadline_ms = agent.received[0].request.deadline_ms
    assert before + STATUS_TIMEOUT_MS <= deadline_ms <= after + STATUS_TIMEOUT_MS


def test_status_says_not_available_when_the_agent_does_not_answer(program, run_dir, agent) -> None:
    agent.script = wait_for_hangup
    conf = netconf(run_dir, delegate={"type": "bridge"}, timeoutMs=100)
    error = program("STATUS", conf, env={"CNI_NETNS": None}).error
    assert error["code"] == 50
    assert "did not answer in time" in error["msg"]


def test_add_is_tried_again_when_the_agent_reads_and_never_answers(program, run_dir, agent, netns) -> None:
    agent.script = wait_for_hangup
    error = error_of_hasty_call(program, run_dir, netns)
    assert error["code"] == TRY_AGAIN_LATER
    assert "did not answer in time" in error["msg"]
    assert error["details"] == "receive: Connection timed out"


@pytest.mark.parametrize("kept", [1, 12, 13])
def test_add_is_tried_again_when_the_agent_stops_in_the_middle_of_a_reply(
    program, run_dir, agent, netns, kept: int
) -> None:
    def stop_halfway(connection: socket.socket) -> None:
        receive(connection)
        connection.sendall(encode_reply(Reply(exit_status=0, stdout=b"{}"))[:kept])
        wait_for_hangup(connection)

    agent.script = stop_halfway
    assert "did not answer in time" in error_of_hasty_call(program, run_dir, netns)["msg"]


def test_deadline_is_that_of_the_call_when_the_reply_comes_byte_by_byte(
    program, run_dir, agent, netns
) -> None:
    gone = threading.Event()

    def drip(connection: socket.socket) -> None:
        receive(connection)
        for byte in encode_reply(Reply(exit_status=0, stdout=bytes(1000))):
            try:
                connection.sendall(bytes([byte]))
            except BrokenPipeError:
                gone.set()
                return
            gone.wait(0.02)  # every wait of the program ends well before its deadline

    agent.script = drip
    assert "did not answer in time" in error_of_hasty_call(program, run_dir, netns)["msg"]


def test_add_is_tried_again_when_the_agent_accepts_and_never_reads(program, run_dir, netns) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run_dir / "cni.sock"))
        listener.listen()
        error = error_of_hasty_call(program, run_dir, netns, padding="x" * (4 << 20))
    assert error["code"] == TRY_AGAIN_LATER
    assert error["details"] == "send: Connection timed out"


def test_add_is_tried_again_when_the_agent_accepts_no_connection(program, run_dir, netns) -> None:
    with ExitStack() as sockets:
        fill_backlog(sockets, run_dir / "cni.sock")
        error = error_of_hasty_call(program, run_dir, netns)
    assert error["code"] == TRY_AGAIN_LATER
    assert error["details"] == "connect: Connection timed out"


@pytest.mark.timeout(DEADLINE_S)
def test_deadline_holds_when_the_program_is_stopped_and_continued(program, run_dir, netns) -> None:
    """Each time, the kernel breaks off the wait for a place in the backlog (signal(7))."""
    conf = chained(run_dir, WISH, timeoutMs=300)
    with ExitStack() as stack:
        fill_backlog(stack, run_dir / "cni.sock")
        process = stack.enter_context(
            subprocess.Popen(
                [program.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ADD | {"CNI_NETNS": netns}
            )
        )
        process.stdin.write(json.dumps(conf).encode())
        process.stdin.close()
        while process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            process.send_signal(signal.SIGCONT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        error = json.loads(process.stdout.read())
    assert (process.returncode, error["details"]) == (1, "connect: Connection timed out")
