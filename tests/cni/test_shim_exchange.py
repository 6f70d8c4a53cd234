"""The program and its agent: frames of `wire.cni_socket`, and every way in which an agent can fail."""

from __future__ import annotations

import os
import socket
import struct
import time

import pytest

from cni.call import CONTAINER, NETNS, PREV_RESULT, WISH, Program, chained, netconf
from cni.scripted_agent import receive, wait_for_hangup
from k8s_rdma.errors import TRY_AGAIN_LATER
from k8s_rdma.wire.cni_socket import MAX_ENV_BYTES, MAX_STDIN_BYTES, MAX_STDOUT_BYTES, Reply, encode_reply


def inode(path: str) -> int:
    return os.stat(path).st_ino  # noqa: PTH116 (a namespace's link has to be followed by the kernel)


def test_request_holds_variables_input_and_namespace(program, run_dir, agent, netns) -> None:
    args = "IgnoreUnknown=1;K8S_POD_NAME=p"
    stdin = b'{ "cniVersion":"1.1.0","runDir": "%s" }' % str(run_dir).encode()
    program("ADD", stdin, env={"CNI_NETNS": netns, "CNI_ARGS": args, "CNI_PATH": "", "HOME": "/root"})
    (received,) = agent.received
    assert received.request.stdin == stdin
    assert received.request.env == {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": CONTAINER,
        "CNI_IFNAME": "eth0",
        "CNI_NETNS": netns,
        "CNI_ARGS": args,
        "CNI_PATH": "",
    }
    assert received.request.has_netns
    assert received.netns_inode == inode(netns) != inode("/proc/self/ns/net")


@pytest.mark.parametrize("keys", [{}, {"timeoutMs": 3_600_000}])
def test_request_says_until_when_it_is_waited_for(program, run_dir, agent, netns, keys) -> None:
    timeout_ms = keys.get("timeoutMs", 60_000)
    before = time.monotonic_ns() // 1_000_000
    program("ADD", netconf(run_dir, **keys), env={"CNI_NETNS": netns})
    after = time.monotonic_ns() // 1_000_000
    assert before + timeout_ms <= agent.received[0].request.deadline_ms <= after + timeout_ms


@pytest.mark.parametrize(
    ("command", "path"),
    [
        (command, path)
        for command in ("DEL", "CHECK", "GC")
        for path in ("", None, NETNS, "/proc/self/ns/mnt", "/dev/null")
        if path or command != "CHECK"
    ],
)
def test_request_goes_without_namespace_when_it_is_gone(program, run_dir, agent, command, path) -> None:
    (run_dir / "attachments" / CONTAINER).touch()
    program(command, netconf(run_dir), env={"CNI_NETNS": path})
    (received,) = agent.received
    assert not received.request.has_netns
    assert received.netns_inode is None


@pytest.mark.parametrize("command", ["DEL", "CHECK"])
def test_request_brings_the_namespace_when_it_is_there(program, run_dir, agent, netns, command) -> None:
    (run_dir / "attachments" / CONTAINER).touch()
    program(command, netconf(run_dir), env={"CNI_NETNS": netns})
    assert agent.received[0].netns_inode == inode(netns)


@pytest.mark.parametrize("path", [NETNS, "/proc/self/ns/mnt", "/dev/null", "/", 'no"such\\path\x7f'])
def test_add_is_refused_by_variable_when_the_namespace_cannot_be_opened(
    program, run_dir, agent, path
) -> None:
    error = program("ADD", netconf(run_dir), env={"CNI_NETNS": path}).error
    assert error["code"] == 4
    assert error["msg"].startswith(f"CNI_NETNS is '{path}'")
    assert agent.received == []


def test_add_is_refused_without_waiting_when_the_namespace_is_a_fifo(program, run_dir, agent) -> None:
    os.mkfifo(run_dir / "fifo")
    error = program("ADD", netconf(run_dir), env={"CNI_NETNS": str(run_dir / "fifo")}).error
    assert error["code"] == 4


def test_check_asks_when_there_is_a_marker(program, run_dir, agent) -> None:
    (run_dir / "attachments" / CONTAINER).touch()
    assert program("CHECK", chained(run_dir, {})).stdout == b"asked"


def test_check_asks_when_something_is_wanted_and_there_is_no_marker(program, run_dir, agent) -> None:
    assert program("CHECK", chained(run_dir, WISH)).stdout == b"asked"


@pytest.mark.parametrize("length", [0, 1, 12, 13])
def test_check_succeeds_when_the_reply_is_cut_short(program, run_dir, agent, length: int) -> None:
    agent.answer = encode_reply(Reply(exit_status=1, stdout=b'{"code":102}'))[:length]
    outcome = program("CHECK", chained(run_dir, WISH))
    assert (outcome.exit_status, outcome.stdout) == (0, b"")


def test_agent_is_not_called_if_a_chained_pod_has_no_request(program, run_dir, agent, netns) -> None:
    assert program("ADD", chained(run_dir, {}), env={"CNI_NETNS": netns}).exit_status == 0
    assert program("DEL", chained(run_dir, {}), env={"CNI_NETNS": netns}).exit_status == 0
    assert program("CHECK", chained(run_dir, {}), env={"CNI_NETNS": netns}).exit_status == 0
    assert program("STATUS", netconf(run_dir)).exit_status == 0
    assert agent.received == []


@pytest.mark.parametrize(
    "reply",
    [
        Reply(exit_status=0, stdout=b""),
        Reply(exit_status=0, stdout=b'{"cniVersion":"1.1.0"}'),
        Reply(exit_status=1, stdout=b'{"code":102}\n'),
        Reply(exit_status=255, stdout=bytes(range(256))),
    ],
)
def test_reply_is_passed_on_as_it_is(program, run_dir, agent, netns, reply) -> None:
    agent.answer = encode_reply(reply)
    outcome = program("ADD", netconf(run_dir), env={"CNI_NETNS": netns})
    assert (outcome.exit_status, outcome.stdout) == (reply.exit_status, reply.stdout)


def test_frames_pass_when_everything_is_as_large_as_allowed(program, run_dir, agent) -> None:
    stdout = os.urandom(1 << 20) * (MAX_STDOUT_BYTES >> 20)
    agent.answer = encode_reply(Reply(exit_status=0, stdout=stdout))
    stdin = b'{"cniVersion":"1.1.0","runDir":"%s"}' % str(run_dir).encode()
    variables = {"CNI_COMMAND": "GC", "CNI_CONTAINERID": "", "CNI_IFNAME": "", "CNI_NETNS": ""}
    used = sum(len(key) + len(value) + 2 for key, value in variables.items())
    variables["CNI_ARGS"] = "a" * (MAX_ENV_BYTES - used - len("CNI_ARGS=\0"))
    outcome = program("GC", stdin.ljust(MAX_STDIN_BYTES), env=variables)
    assert (outcome.exit_status, outcome.stdout == stdout) == (0, True)
    assert agent.received[0].request.env == variables
    assert len(agent.received[0].request.stdin) == MAX_STDIN_BYTES


def test_add_asks_when_the_annotations_are_huge(program, run_dir, agent, netns) -> None:
    annotations = {f"example/{i}": "x" * 1000 for i in range(1000)} | WISH
    assert program("ADD", chained(run_dir, annotations), env={"CNI_NETNS": netns}).stdout == b"asked"


def test_add_passes_on_if_huge_annotations_have_no_key_of_ours(program, run_dir, agent) -> None:
    annotations = {f"example/{i}": "rdma_interfaces_required" * 40 for i in range(1000)}
    assert program("ADD", chained(run_dir, annotations)).exit_status == 0
    assert agent.received == []


def test_agent_is_reached_when_its_directory_has_the_longest_name_allowed(program, run_dir, netns) -> None:
    longest = run_dir / ("d" * (98 - len(str(run_dir)) - 1))
    longest.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(longest / "cni.sock"))
    error = program("ADD", netconf(longest), env={"CNI_NETNS": netns}).error
    assert error["details"] == "connect: Connection refused"


@pytest.mark.parametrize("length", [0, 1, 11, 12, 13, 20])
def test_add_is_tried_again_when_the_reply_is_cut_short(program, run_dir, agent, netns, length: int) -> None:
    agent.answer = encode_reply(Reply(exit_status=0, stdout=b'{"cniVersion":1}'))[:length]
    error = program("ADD", netconf(run_dir), env={"CNI_NETNS": netns}).error
    assert error["code"] == TRY_AGAIN_LATER
    assert "broke off" in error["msg"]
    assert error["details"] in (f"{length} of 12 bytes received", f"{length - 12} of 16 bytes received")


@pytest.mark.parametrize(
    "header",
    [
        struct.pack("<4sHHI", b"KRDX", 1, 0, 0),
        struct.pack("<4sHHI", b"KRDC", 2, 0, 0),
        struct.pack(">4sHHI", b"KRDC", 1, 0, 0),
        struct.pack("<4sHHI", b"KRDC", 1, 256, 0),
        struct.pack("<4sHHI", b"KRDC", 1, 0, MAX_STDOUT_BYTES + 1),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_add_is_tried_again_when_the_reply_is_no_reply(program, run_dir, agent, netns, header) -> None:
    agent.answer = header + bytes(100)
    error = program("ADD", netconf(run_dir), env={"CNI_NETNS": netns}).error
    assert error["code"] == TRY_AGAIN_LATER
    assert "does not speak version 1 of the protocol" in error["msg"]


def test_error_explains_itself_and_not_the_namespace_that_may_be_gone(program, run_dir, agent) -> None:
    (run_dir / "attachments" / CONTAINER).touch()
    agent.answer = b"HTTP/1.1 400 Bad Request"
    assert program("DEL", netconf(run_dir), env={"CNI_NETNS": "/run/netns/gone"}).error["details"] == ""


SENDS_FEW_DESCRIPTORS = ("prlimit", "--nofile=8", "setpriv", "--bounding-set=-sys_admin,-sys_resource", "--")
"""No more than may be open, on their way together (unix(7), ETOOMANYREFS); root is let off otherwise."""


def test_add_does_not_wait_for_an_agent_that_was_never_called(program, run_dir, agent, netns) -> None:
    agent.script = wait_for_hangup
    limited = Program(program.path, under=SENDS_FEW_DESCRIPTORS)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for _ in range(2):
            socket.send_fds(ours, [b"x"], [ours.fileno()] * 16)
        error = limited("ADD", chained(run_dir, WISH), env={"CNI_NETNS": netns}).error
    assert (error["code"], error["details"]) == (TRY_AGAIN_LATER, "send: Too many references: cannot splice")


def test_reply_is_read_whole_when_it_comes_in_single_bytes(program, run_dir, agent, netns) -> None:
    def trickle(connection: socket.socket) -> None:
        receive(connection)
        for byte in encode_reply(Reply(exit_status=3, stdout=b"slowly")):
            connection.sendall(bytes([byte]))

    agent.script = trickle
    outcome = program("ADD", netconf(run_dir), env={"CNI_NETNS": netns})
    assert (outcome.exit_status, outcome.stdout) == (3, b"slowly")


def test_reply_is_printed_when_the_agent_answers_without_reading_on(program, run_dir, agent, netns) -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(1)
        connection.sendall(encode_reply(Reply(exit_status=1, stdout=b"refused")))

    agent.script = refuse
    conf = chained(run_dir, WISH | {"example/big": "x" * (4 << 20)})
    assert program("ADD", conf, env={"CNI_NETNS": netns}).stdout == b"refused"


@pytest.mark.parametrize("read", [0, 1, 24, 100_000])
def test_add_is_tried_again_when_the_agent_dies_during_the_call(program, run_dir, agent, netns, read) -> None:
    agent.script = lambda connection: connection.recv(read) and None if read else None
    conf = chained(run_dir, WISH | {"example/big": "x" * (4 << 20)})
    error = program("ADD", conf, env={"CNI_NETNS": netns}).error
    assert error["code"] == TRY_AGAIN_LATER
    assert "broke off" in error["msg"]


def test_prev_result_is_not_printed_when_an_asking_pod_meets_a_dead_agent(program, run_dir, netns) -> None:
    outcome = program("ADD", chained(run_dir, WISH), env={"CNI_NETNS": netns})
    assert outcome.exit_status == 1
    assert PREV_RESULT["interfaces"][0]["mac"].encode() not in outcome.stdout
