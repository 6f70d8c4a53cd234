"""A DEL without an answer is left to the agent in a file, and succeeds."""

from __future__ import annotations

import stat
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from cni.call import CONTAINER, DEADLINE_S, WISH, chained, netconf
from cni.scripted_agent import receive, wait_for_hangup
from k8s_rdma.agent.ledger_store import DeferredDeletes
from k8s_rdma.core.ledger import Attachment
from k8s_rdma.errors import TRY_AGAIN_LATER
from k8s_rdma.wire.cni_socket import MAX_STDIN_BYTES, Reply, decode_request, encode_reply

if TYPE_CHECKING:
    import socket
    from pathlib import Path


NAME = f"{CONTAINER}:eth0:net"


@pytest.fixture
def deletions(run_dir: Path) -> Path:
    """An agent was here that takes them, and gave the container something."""
    (run_dir / "attachments" / CONTAINER).touch()
    directory = run_dir / "deletions"
    directory.mkdir(mode=0o700)
    return directory


def left(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def assert_left(outcome, directory: Path) -> None:
    assert (outcome.exit_status, outcome.stdout) == (0, b"")
    assert left(directory) == [NAME]


def assert_not_left(outcome, directory: Path) -> None:
    assert outcome.error["code"] == TRY_AGAIN_LATER
    assert left(directory) == []


def test_del_is_left_as_the_agent_would_have_got_it(program, run_dir, deletions, netns) -> None:
    args = "IgnoreUnknown=1;K8S_POD_NAME=p"
    stdin = b'{ "cniVersion":"1.1.0","name":"n\\u0065t","runDir": "%s" }' % str(run_dir).encode()
    env = {"CNI_NETNS": netns, "CNI_ARGS": args, "CNI_PATH": "/opt/cni/bin", "HOME": "/root"}
    assert_left(program("DEL", stdin, env=env), deletions)
    request = decode_request((deletions / NAME).read_bytes())
    assert request.stdin == stdin
    assert request.env == {
        "CNI_COMMAND": "DEL",
        "CNI_CONTAINERID": CONTAINER,
        "CNI_IFNAME": "eth0",
        "CNI_NETNS": netns,
        "CNI_ARGS": args,
        "CNI_PATH": "/opt/cni/bin",
    }
    assert (request.has_netns, request.deadline_ms) == (False, 0)
    assert stat.S_IMODE((deletions / NAME).stat().st_mode) == 0o600


def test_agent_finds_deletions_that_the_executable_left(program, run_dir, deletions) -> None:
    conf = netconf(run_dir, name="n-1.x_y")
    env = {"CNI_CONTAINERID": "A_b.c-9", "CNI_IFNAME": "net1", "CNI_PATH": "/p"}
    (run_dir / "attachments" / "A_b.c-9").touch()
    program("DEL", conf, env=env)
    own = Attachment("n-1.x_y", "A_b.c-9", "net1")
    found = DeferredDeletes(deletions).read(own)
    assert found is not None
    assert (found.call.container_id, found.call.ifname) == ("A_b.c-9", "net1")
    assert b"n-1.x_y" in found.stdin


@pytest.mark.parametrize("length", [0, 1, 11, 12, 13])
def test_del_is_left_when_the_agent_breaks_off(program, run_dir, deletions, agent, length) -> None:
    agent.answer = encode_reply(Reply(exit_status=1, stdout=b"{}"))[:length]
    assert_left(program("DEL", netconf(run_dir)), deletions)


@pytest.mark.parametrize("read", [0, 100_000])
def test_del_is_left_when_the_agent_dies_during_the_call(program, run_dir, deletions, agent, read) -> None:
    agent.script = lambda connection: connection.recv(read) and None if read else None
    conf = chained(run_dir, WISH | {"example/big": "x" * (4 << 20)})
    assert_left(program("DEL", conf), deletions)
    assert len(decode_request((deletions / NAME).read_bytes()).stdin) > 4 << 20


def test_del_is_left_when_the_agent_hangs(program, run_dir, deletions, agent) -> None:
    agent.script = wait_for_hangup
    assert_left(program("DEL", netconf(run_dir, timeoutMs=100)), deletions)


@pytest.mark.parametrize("status", [0, 1])
def test_no_deletion_is_left_when_the_agent_answers(program, run_dir, deletions, agent, status) -> None:
    agent.answer = encode_reply(Reply(exit_status=status, stdout=b'{"code":111}'))
    outcome = program("DEL", netconf(run_dir))
    assert (outcome.exit_status, outcome.stdout) == (status, b'{"code":111}')
    assert left(deletions) == []


@pytest.mark.parametrize("command", ["ADD", "CHECK", "STATUS", "GC"])
def test_only_del_is_left(program, run_dir, deletions, netns, command) -> None:
    program(command, netconf(run_dir, delegate={"type": "bridge"}), env={"CNI_NETNS": netns})
    assert left(deletions) == []


def test_no_deletion_is_left_for_a_pod_without_interfaces(program, run_dir, deletions) -> None:
    (run_dir / "attachments" / CONTAINER).unlink()
    assert program("DEL", netconf(run_dir)).exit_status == 0
    assert left(deletions) == []


def test_last_one_stands_when_it_comes_again(program, run_dir, deletions) -> None:
    for timeout_ms in (1000, 2000):
        assert_left(program("DEL", netconf(run_dir, timeoutMs=timeout_ms)), deletions)
    assert b"2000" in (deletions / NAME).read_bytes()


def test_one_is_left_for_each_attachment(program, run_dir, deletions) -> None:
    for network, ifname in (("a", "eth0"), ("b", "eth0"), ("a", "net1")):
        assert program("DEL", netconf(run_dir, name=network), env={"CNI_IFNAME": ifname}).exit_status == 0
    assert left(deletions) == [f"{CONTAINER}:eth0:a", f"{CONTAINER}:eth0:b", f"{CONTAINER}:net1:a"]


def test_del_fails_if_the_agent_does_not_take_deletions(program, run_dir, deletions) -> None:
    deletions.rmdir()
    assert program("DEL", netconf(run_dir)).error["code"] == TRY_AGAIN_LATER
    deletions.touch()
    assert program("DEL", netconf(run_dir)).error["code"] == TRY_AGAIN_LATER


@pytest.mark.parametrize(
    ("conf", "env"),
    [
        ({"name": None}, {}),
        ({"name": 1}, {}),
        ({"name": "a/b"}, {}),
        ({"name": "a\0b"}, {}),
        ({"name": "/../../x"}, {}),
        ({"name": "n" * 244}, {}),
        ({"name": "n" * 1000}, {}),
        ({}, {"CNI_IFNAME": "a/b"}),
        ({}, {"CNI_IFNAME": "../../../x"}),
        ({}, {"CNI_IFNAME": "i" * 245}),
        ({}, {"CNI_IFNAME": "i" * 10_000}),
    ],
)
def test_del_fails_when_its_attachment_is_no_name_of_a_file(program, run_dir, deletions, conf, env) -> None:
    assert_not_left(program("DEL", netconf(run_dir, **conf), env=env), deletions)
    assert sorted(path.name for path in run_dir.iterdir()) == ["attachments", "deletions"]


def test_no_deletion_is_left_below_the_directory(program, run_dir, deletions) -> None:
    below = deletions / f"{CONTAINER}:eth0:a"
    below.mkdir()
    assert program("DEL", netconf(run_dir, name="a/b")).error["code"] == TRY_AGAIN_LATER
    assert left(below) == []


def test_del_is_left_when_the_name_is_as_long_as_a_file_may_have(program, run_dir, deletions) -> None:
    network = "n" * (255 - len(f"{CONTAINER}:eth0:"))
    assert program("DEL", netconf(run_dir, name=network)).exit_status == 0
    assert left(deletions) == [f"{CONTAINER}:eth0:{network}"]


def test_del_is_left_when_it_is_as_large_as_allowed(program, run_dir, deletions) -> None:
    stdin = b'{"cniVersion":"1.1.0","name":"net","runDir":"%s"}' % str(run_dir).encode()
    assert_left(program("DEL", stdin.ljust(MAX_STDIN_BYTES), env={"CNI_ARGS": "a" * 60_000}), deletions)
    assert len(decode_request((deletions / NAME).read_bytes()).stdin) == MAX_STDIN_BYTES


@pytest.fixture
def small(deletions: Path):
    """The directory is a file system of a page."""
    options = ["-t", "tmpfs", "-o", "size=4k,mode=0700", "tmpfs", str(deletions)]
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("needs root, to mount a tmpfs")
    yield deletions
    subprocess.run(["umount", str(deletions)], check=True)


def test_del_fails_and_leaves_no_file_without_room(program, run_dir, small) -> None:
    assert_not_left(program("DEL", netconf(run_dir, padding="x" * 10_000)), small)
    assert_left(program("DEL", netconf(run_dir)), small)
    assert_left_before = (small / NAME).read_bytes()
    assert program("DEL", netconf(run_dir, padding="x" * 10_000)).error["code"] == TRY_AGAIN_LATER
    assert (small / NAME).read_bytes() == assert_left_before


def test_del_fails_and_leaves_no_draft_when_something_else_has_its_name(program, run_dir, deletions) -> None:
    (deletions / NAME).mkdir()
    assert program("DEL", netconf(run_dir)).error["code"] == TRY_AGAIN_LATER
    assert left(deletions) == [NAME]


def test_each_file_is_whole_when_many_are_left_of_one_attachment_at_once(program, run_dir, deletions) -> None:
    """Readers see one of them, never a part."""
    confs = [netconf(run_dir, padding=letter * 100_000) for letter in "abcdefgh"]
    done: list[int] = []
    threads = [
        threading.Thread(target=lambda conf=conf: done.append(program("DEL", conf).exit_status))
        for conf in confs
    ]
    for thread in threads:
        thread.start()
    seen = set()
    while any(thread.is_alive() for thread in threads):
        if (deletions / NAME).exists():
            seen.add(len(set(decode_request((deletions / NAME).read_bytes()).stdin[-1000:-10])))
    for thread in threads:
        thread.join(DEADLINE_S)
    assert done == [0] * len(confs)
    assert left(deletions) == [NAME]
    assert seen <= {1}


def test_del_is_left_once_though_the_agent_got_it_as_well(program, run_dir, deletions, agent) -> None:
    """One that was killed over it: it is unknown how far it came."""

    def die(connection: socket.socket) -> None:
        agent.received.append(receive(connection))

    agent.script = die
    assert_left(program("DEL", netconf(run_dir)), deletions)
    assert decode_request((deletions / NAME).read_bytes()).env == agent.received[0].request.env


def test_del_is_left_when_the_directory_may_only_be_written_by_its_owner(program, run_dir, deletions) -> None:
    assert_left(program("DEL", netconf(run_dir), umask=0), deletions)
    assert stat.S_IMODE((deletions / NAME).stat().st_mode) == 0o600
