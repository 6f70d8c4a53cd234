"""The agent's two sockets, over real Unix sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.agent.cluster.no_cluster import NoCluster
from k8s_rdma.agent.report import StatePublisher, StateSocket
from k8s_rdma.agent.unix_sockets import CniSocket, listen_unix, serve_connections
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.cni_socket import Reply, SocketRequest, decode_reply, encode_request
from k8s_rdma.wire.state_socket import (
    HEADER,
    MAX_PLACEMENT_BYTES,
    MessageKind,
    decode_header,
    decode_verdict,
    encode_message,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

DEADLINE_S = 120
SERVER = 65532


def may_be_user(user: int) -> bool:
    command = ["setpriv", f"--reuid={user}", "--clear-groups", "true"]
    return os.getuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_users = pytest.mark.skipif(
    not may_be_user(SERVER + 1), reason="needs users besides root, which one's own user namespace has not"
)

CONNECT = """
import os, socket, sys
made = [socket.socket(socket.AF_UNIX) for _ in range(int(os.environ["CONNECTIONS"]))]
for each in made:
    each.connect(os.environ["SOCKET"])
print(sum(bool(each.recv(1)) for each in made), flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def serving(
    path: Path,
    talk: Callable[[socket.socket], Awaitable[None]],
    *,
    most: int = 8,
    most_of_user: int | None = None,
    mode: int = 0o600,
) -> AsyncIterator[None]:
    with listen_unix(path, mode) as listener:
        serve = serve_connections(listener, talk, limit=most, most_of_user=most_of_user)
        task = asyncio.create_task(serve)
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class Text(StatePublisher):
    """Publishes a given text, and answers each question with a number."""

    def __init__(self, text: bytes) -> None:
        super().__init__(lambda: self.text)
        self.text = text
        self.asked = 0
        self.cluster = NoCluster()
        self.talk = StateSocket(self, self.sample, self.cluster.deliver).talk

    async def sample(self) -> bytes:
        self.asked += 1
        return b"%d" % self.asked

    async def say(self, text: bytes) -> None:
        self.text = text
        await self.publish()


async def next_message(reader: asyncio.StreamReader) -> tuple[MessageKind, bytes]:
    async with asyncio.timeout(DEADLINE_S):
        kind, size = decode_header(await reader.readexactly(HEADER.size))
        return kind, await reader.readexactly(size)


async def next_report(reader: asyncio.StreamReader) -> bytes:
    kind, body = await next_message(reader)
    assert kind is MessageKind.REPORT
    return body


async def exchange(path: Path, frame: bytes, descriptors: tuple[int, ...] = ()) -> bytes:
    """Send a frame and read until the end, on a thread: the peer is a blocking program."""

    def call() -> bytes:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(DEADLINE_S)
            client.connect(str(path))
            socket.send_fds(client, [frame[:7]], list(descriptors))
            client.sendall(frame[7:])
            return b"".join(iter(lambda: client.recv(65536), b""))

    return await asyncio.to_thread(call)


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_listen_unix_sets_the_mode_and_replaces_an_old_socket(tmp_path: Path, mode: int) -> None:
    (tmp_path / "s").write_text("left by a predecessor")
    with listen_unix(tmp_path / "s", mode):
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == mode


@needs_users
def test_listen_unix_gives_the_socket_to_a_group(tmp_path: Path) -> None:
    with listen_unix(tmp_path / "s", 0o660, SERVER):
        found = (tmp_path / "s").stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (os.getuid(), SERVER, 0o660)


@needs_users
@pytest.mark.parametrize("groups", [str(SERVER), "7"])
def test_listen_unix_gives_to_a_group_of_its_own_alone_when_it_has_no_capability(
    tmp_path: Path, groups: str
) -> None:
    """As the agent runs in its pod: of root, without CAP_CHOWN, with the pod's supplemental groups."""
    program = f"""
from pathlib import Path
from k8s_rdma.agent.unix_sockets import listen_unix
from k8s_rdma.errors import K8sRdmaError
try:
    print(Path("s").stat().st_gid if listen_unix(Path("s"), 0o660, {SERVER}).fileno() else "")
except K8sRdmaError as error:
    print(error)
"""
    command = ["setpriv", "--bounding-set=-chown", f"--groups={groups}", sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    refused = f"stateGroup: s cannot be given to group {SERVER}: Operation not permitted"
    assert ended.stdout.startswith(str(SERVER) if groups == str(SERVER) else refused)


def connected_as(user: int, path: Path, connections: int) -> subprocess.Popen[bytes]:
    """A process of a user with so many connections, of which it writes how many were sent something."""
    program = subprocess.Popen(
        ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", sys.executable, "-c", CONNECT],
        env={"SOCKET": str(path), "CONNECTIONS": str(connections)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert program.stdout is not None
    return program


@needs_users
def test_one_user_takes_no_more_than_its_own_places(tmp_path: Path) -> None:
    async def scenario() -> None:
        publisher = Text(b"one")
        path = Path("/run") / f"state-{os.getpid()}.sock"  # a place that other users reach
        async with serving(path, publisher.talk, most=8, most_of_user=3, mode=0o666):
            for user in (SERVER, SERVER + 1):
                with connected_as(user, path, 8) as greedy:
                    assert greedy.stdout is not None
                    assert int(await asyncio.to_thread(greedy.stdout.readline)) == 3
                    reader, writer = await asyncio.open_unix_connection(path)
                    assert await next_report(reader) == b"one"
                    writer.close()
                    greedy.communicate()
        path.unlink()

    asyncio.run(scenario())


def test_listen_unix_names_the_setting_when_the_path_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(MalformedError, match=r"runDir: the socket .* 107 at most"):
        listen_unix(tmp_path / ("d" * 100) / "cni.sock", 0o600)


def test_state_socket_answers_each_placement_and_goes_on_after_a_refusal(tmp_path: Path) -> None:
    async def scenario() -> None:
        publisher = Text(b"one")
        async with serving(tmp_path / "s", publisher.talk):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            assert await next_report(reader) == b"one"
            for _ in range(2):
                writer.write(encode_message(MessageKind.PLACEMENT, b"{}"))
                kind, body = await next_message(reader)
                assert (kind, decode_verdict(body).reason) == (MessageKind.VERDICT, "not_allowed")
            writer.write(HEADER.pack(MessageKind.PLACEMENT, MAX_PLACEMENT_BYTES + 1))
            assert await reader.read() == b""
            writer.close()

    asyncio.run(scenario())


def test_state_socket_sends_the_report_on_connect_and_after_each_change(tmp_path: Path) -> None:
    async def scenario() -> None:
        publisher = Text(b"one")
        async with serving(tmp_path / "s", publisher.talk):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            assert await next_report(reader) == b"one"
            await publisher.say(b"two")
            assert await next_report(reader) == b"two"
            late, late_writer = await asyncio.open_unix_connection(tmp_path / "s")
            assert await next_report(late) == b"two"
            writer.close()
            await publisher.say(b"three")
            assert await next_report(late) == b"three"
            late_writer.close()

    asyncio.run(scenario())


def test_state_socket_skips_to_the_latest_when_a_reader_is_slow(tmp_path: Path) -> None:
    async def scenario() -> None:
        publisher = Text(b"x" * 4_000_000)  # more than the socket's buffers hold
        async with serving(tmp_path / "s", publisher.talk):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s", limit=1024)
            await reader.readexactly(HEADER.size)
            for number in range(50):
                await publisher.say(b"%d" % number)
            await reader.readexactly(4_000_000)
            assert await next_report(reader) == b"49"
            writer.close()

    asyncio.run(scenario())


def test_state_socket_is_silent_without_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        publisher = Text(b"one")
        async with serving(tmp_path / "s", publisher.talk):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            assert await next_report(reader) == b"one"
            await publisher.say(b"one")
            await publisher.say(b"two")
            assert await next_report(reader) == b"two"
            writer.close()

    asyncio.run(scenario())


def test_state_socket_answers_each_question_with_counters(tmp_path: Path) -> None:
    async def scenario() -> None:
        publisher = Text(b"one")
        async with serving(tmp_path / "s", publisher.talk):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            assert await next_report(reader) == b"one"
            question = encode_message(MessageKind.SAMPLE)
            writer.write(question + question[:2])
            assert await next_message(reader) == (MessageKind.COUNTERS, b"1")
            await publisher.say(b"two")
            assert await next_report(reader) == b"two"
            writer.write(question[2:])
            assert await next_message(reader) == (MessageKind.COUNTERS, b"2")
            writer.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "said",
    [
        encode_message(MessageKind.REPORT, b"{}"),
        encode_message(MessageKind.COUNTERS),
        HEADER.pack(3, 1),
        b"GET /",
    ],
)
def test_state_socket_disconnects_a_reader_that_sends_data(tmp_path: Path, said: bytes) -> None:
    async def scenario() -> None:
        publisher = Text(b"one")
        async with serving(tmp_path / "s", publisher.talk):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            assert await next_report(reader) == b"one"
            writer.write(said)
            with suppress(ConnectionResetError):  # if a part of the data was never read
                assert await reader.read() == b""
            writer.close()
        assert publisher.asked == 0

    asyncio.run(scenario())


def test_cni_socket_hands_request_and_namespace_to_the_handler(tmp_path: Path) -> None:
    seen = []

    async def handler(request: SocketRequest, netns: int | None, waiting: Callable[[], bool]) -> Reply:
        assert waiting()
        seen.append((request, os.fstat(netns).st_ino if netns is not None else None))
        return Reply(exit_status=3, stdout=b"answer")

    async def scenario() -> None:
        request = SocketRequest(env={"CNI_COMMAND": "ADD"}, stdin=b"{}" * 300_000, has_netns=True)
        descriptor = os.open("/proc/self/ns/net", os.O_RDONLY)
        async with serving(tmp_path / "s", CniSocket(handler).talk):
            reply = await exchange(tmp_path / "s", encode_request(request), (descriptor,))
        assert decode_reply(reply) == Reply(exit_status=3, stdout=b"answer")
        assert seen == [(request, os.fstat(descriptor).st_ino)]
        os.close(descriptor)

    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are all that is wanted
    asyncio.run(scenario())
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize("frame", [b"GET / HTTP/1.1\r\n\r\n" * 3, b"KRDC\x02\x00" + bytes(18), b"KRDC"])
def test_cni_socket_lives_on_when_a_caller_talks_nonsense(tmp_path: Path, frame: bytes) -> None:
    async def handler(_request: SocketRequest, _netns: int | None, _waiting: Callable[[], bool]) -> Reply:
        return Reply(exit_status=0, stdout=b"fine")

    async def scenario() -> None:
        async with serving(tmp_path / "s", CniSocket(handler).talk):
            _, writer = await asyncio.open_unix_connection(tmp_path / "s")
            writer.write(frame)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            good = encode_request(SocketRequest(env={"CNI_COMMAND": "DEL"}, stdin=b""))
            assert decode_reply(await exchange(tmp_path / "s", good)).stdout == b"fine"

    asyncio.run(scenario())


def test_cni_socket_does_not_begin_if_the_caller_has_given_up(tmp_path: Path) -> None:
    called = asyncio.Event()

    async def handler(_request: SocketRequest, _netns: int | None, _waiting: Callable[[], bool]) -> Reply:
        called.set()
        return Reply(exit_status=0, stdout=b"")

    async def scenario() -> None:
        past = int(time.monotonic() * 1000) - 1
        frame = encode_request(SocketRequest(env={"CNI_COMMAND": "ADD"}, stdin=b"", deadline_ms=past))
        async with serving(tmp_path / "s", CniSocket(handler).talk):
            assert await exchange(tmp_path / "s", frame) == b""
        assert not called.is_set()

    asyncio.run(scenario())


def test_connections_beyond_the_limit_are_closed_and_the_others_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        publisher = Text(b"one")
        async with serving(tmp_path / "s", publisher.talk, most=2):
            held = [await asyncio.open_unix_connection(tmp_path / "s") for _ in range(2)]
            assert [await next_report(reader) for reader, _ in held] == [b"one", b"one"]
            beyond, beyond_writer = await asyncio.open_unix_connection(tmp_path / "s")
            assert await beyond.read() == b""
            await publisher.say(b"two")
            assert [await next_report(reader) for reader, _ in held] == [b"two", b"two"]
            for writer in (*(writer for _, writer in held), beyond_writer):
                writer.close()

    asyncio.run(scenario())
