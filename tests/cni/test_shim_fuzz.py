"""Whatever the arguments, variables, standard input and the agent's reply are, the program does as its model.

A sanitized build runs on input from Hypothesis, the same each time; if it asks the agent, that sends
anything at all. K8S_RDMA_CNI_FUZZ=5000 HYPOTHESIS_PROFILE=explore looks further.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cni.call import ANNOTATIONS, CONTAINER, DEADLINE_S, PREV_RESULT, SOURCES, WISH
from cni.netconf_oracle import look
from cni.scripted_agent import ScriptedAgent, receive
from cni.shim_model import MARKED, asks, left_as, refusal
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.cni_result import SUPPORTED_VERSIONS
from k8s_rdma.wire.cni_socket import (
    MAX_ENV_BYTES,
    MAX_STDIN_BYTES,
    MAX_STDOUT_BYTES,
    REPLY_HEADER,
    Reply,
    decode_reply,
    decode_request,
    encode_reply,
    reply_bytes_missing,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
SIZES = st.sampled_from(
    [0, 1, 4000, MAX_ENV_BYTES - 200, MAX_ENV_BYTES - 100, MAX_ENV_BYTES, MAX_ENV_BYTES + 1]
)
ENVIRONMENTS = st.fixed_dictionaries(
    {
        "CNI_COMMAND": st.sampled_from(["ADD", "ADD", "DEL", "DEL", "CHECK", "STATUS", "GC", "VERSION"])
        | WORDS
    },
    optional={
        "CNI_CONTAINERID": st.sampled_from([CONTAINER, CONTAINER, MARKED, "a/b", "a" * 300]) | WORDS,
        "CNI_IFNAME": st.just("eth0") | WORDS,
        "CNI_NETNS": st.sampled_from(["netns", "netns", "/dev/null", "/", "nowhere"]) | WORDS,
        "CNI_ARGS": SIZES.map("a".__mul__),
        "CNI_": WORDS,
        "OTHER": SIZES.map("b".__mul__),
    },
)
ASKING = st.sampled_from([{}, {}, None, WISH, {"k8s-rdma.io/placement": "x"}, "text"])
CONFIGURATIONS = st.fixed_dictionaries(
    {"cniVersion": st.sampled_from([*SUPPORTED_VERSIONS, "1.1.0", "1.1.0", "9.9.9"]) | WORDS},
    optional={
        "runtimeConfig": st.fixed_dictionaries({}, optional={ANNOTATIONS: ASKING}),
        "prevResult": st.just(PREV_RESULT) | st.dictionaries(WORDS, WORDS, max_size=3) | WORDS,
        "delegate": st.sampled_from([None, {}, {"type": "bridge"}, "bridge"]),
        "emptyResult": st.sampled_from([True, False, None, "true"]),
        "exclusiveDevices": st.sampled_from([True, False, False, None, "true"]),
        "timeoutMs": st.sampled_from([60_000, 60_000, 0, "1"]),
        "name": st.sampled_from(["net", "net", "a/b", "n" * 240, 1]) | WORDS,
        "padding": st.sampled_from(["", "x" * 200_000]),
    },
)
CUTS = st.none() | st.integers(0, 400)
HEADERS = st.builds(
    REPLY_HEADER.pack,
    st.sampled_from([b"KRDC", b"KRDC", b"KRDC", b"HTTP"]),
    st.sampled_from([1, 1, 1, 2, 257]),
    st.sampled_from([0, 0, 1, 255, 256, 65535]),
    st.sampled_from([0, 1, 5, 40, 70_000, MAX_STDOUT_BYTES, MAX_STDOUT_BYTES + 1, 2**32 - 1]),
)
REPLIES = (
    st.builds(bytes.__add__, HEADERS, st.binary(max_size=50))
    | st.builds(
        lambda status, size: encode_reply(Reply(exit_status=status, stdout=bytes(size))),
        st.integers(0, 255),
        st.sampled_from([0, 1, 4096, 4097, 65536, 300_000]),
    )
    | st.binary(max_size=20)
)


class World:
    """A sanitized program, an agent that sends `agent.answer`, and a directory with one marker."""

    def __init__(self, program: Path, agent: ScriptedAgent, netns: str) -> None:
        self.program, self.agent, self.netns = program, agent, netns
        self.run_dir = agent.path.parent
        self.deletions = self.run_dir / "deletions"

    def let_devices_be_exclusive(self, they_are: bool) -> None:
        marker = self.run_dir / "exclusive-devices"
        marker.touch() if they_are else marker.unlink(missing_ok=True)

    def take_deletions(self, it_does: bool) -> None:
        shutil.rmtree(self.deletions, ignore_errors=True)
        if it_does:
            self.deletions.mkdir()

    def left(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.deletions.glob("*")}

    def run(self, arguments: list[str], env: dict[str, str], stdin: bytes) -> tuple[int, bytes]:
        del self.agent.received[:]
        done = subprocess.run(
            [self.program, *arguments],
            input=stdin,
            capture_output=True,
            check=False,
            env=env,
            timeout=DEADLINE_S,
        )
        assert done.stderr == b""  # sanitizers report there
        assert done.returncode >= 0
        return done.returncode, done.stdout


@pytest.fixture(scope="module")
def world(build_dir: Path, netns: str) -> Iterator[World]:
    directory = build_dir / "sanitized"
    command = ["make", "-C", SOURCES, f"BUILD={directory}", "SANITIZE=address,undefined"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def answer(connection: socket.socket) -> None:
        agent.received.append(receive(connection))
        with suppress(ConnectionError):  # it hangs up on bytes that are no reply
            connection.sendall(agent.answer)

    with (
        tempfile.TemporaryDirectory(prefix="k8srdma-") as run_dir,
        ScriptedAgent(Path(run_dir) / "cni.sock") as agent,
    ):
        (Path(run_dir) / "attachments").mkdir()
        (Path(run_dir) / "attachments" / MARKED).touch()
        agent.script = answer
        yield World(directory / "k8s-rdma-cni", agent, netns)


def whole_reply(sent: bytes) -> Reply | None:
    """The program's reading of these bytes: it reads no further than the reply."""
    try:
        header = sent[: REPLY_HEADER.size]
        missing = reply_bytes_missing(header)
        return decode_reply(sent[: len(header) + missing])
    except MalformedError:
        return None


def error_code(status: int, stdout: bytes) -> int:
    error = json.loads(stdout)
    assert status == 1
    assert set(error) == {"cniVersion", "code", "msg", "details"}
    assert error["cniVersion"] in SUPPORTED_VERSIONS
    assert not any(c < " " for c in error["msg"])
    return error["code"]


CALLS = st.fixed_dictionaries(
    {
        "arguments": st.lists(WORDS, max_size=2),
        "env": ENVIRONMENTS,
        "conf": CONFIGURATIONS,
        "cut": CUTS,
        "reply": REPLIES,
        "exclusive": st.booleans(),
        "takes": st.booleans(),
    }
)
PLAIN = {
    "arguments": [],
    "env": {"CNI_COMMAND": "VERSION"},
    "conf": {},
    "cut": None,
    "reply": b"",
    "exclusive": False,
    "takes": True,
}
GC = {"env": {"CNI_COMMAND": "GC"}, "conf": {"cniVersion": "1.1.0"}}
DEL = {
    "env": {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": MARKED, "CNI_IFNAME": "eth0"},
    "conf": {"cniVersion": "1.1.0", "name": "net"},
}
TOO_MUCH = bytes(MAX_STDOUT_BYTES + 1)


@settings(max_examples=int(os.environ.get("K8S_RDMA_CNI_FUZZ", "150")))
@given(call=CALLS)
@example(call=PLAIN | {"env": {"CNI_COMMAND": "GC"}, "conf": {"x": "y" * MAX_STDIN_BYTES}})
@example(call=PLAIN | {"cut": 0})
@example(call=PLAIN | GC | {"reply": REPLY_HEADER.pack(b"KRDC", 1, 0, MAX_STDOUT_BYTES + 1) + TOO_MUCH})
@example(call=PLAIN | DEL)
@example(call=PLAIN | DEL | {"conf": {"name": "n" * 244}})
@example(call=PLAIN | {"arguments": ["x" * 100_000]})
def test_program_behaves_like_the_model(world: World, call) -> None:
    env, reply = call["env"], call["reply"]
    if env.get("CNI_NETNS") == "netns":
        env = env | {"CNI_NETNS": world.netns}
    stdin = json.dumps(call["conf"] | {"runDir": str(world.run_dir)}).encode()[: call["cut"]]
    world.agent.answer = reply
    world.let_devices_be_exclusive(call["exclusive"])
    world.take_deletions(call["takes"])
    status, stdout = world.run(call["arguments"], env, stdin)
    left = world.left()

    refused = refusal(env, stdin)
    if refused is not None:
        assert error_code(status, stdout) == refused
        assert not left
        return
    found = look(stdin) if stdin else None
    command = env["CNI_COMMAND"]
    if found is None or not asks(env, found, exclusive=call["exclusive"]):
        assert status == 0
        assert bool(stdout) == (command in ("VERSION", "ADD"))
        assert not world.agent.received
    elif command == "ADD" and env["CNI_NETNS"] != world.netns:
        assert error_code(status, stdout) == 4
        assert not world.agent.received
    elif expected := whole_reply(reply):
        assert (status, stdout) == (expected.exit_status, expected.stdout)
        assert [received.request.stdin for received in world.agent.received] == [stdin]
    elif command == "CHECK":
        assert (status, stdout) == (0, b"")
    elif command == "DEL" and call["takes"] and (name := left_as(env, stdin)):
        assert (status, stdout) == (0, b"")
        assert {file: decode_request(data).stdin for file, data in left.items()} == {name: stdin}
        return
    else:
        assert error_code(status, stdout) == (50 if command == "STATUS" else 11)
    assert not left
