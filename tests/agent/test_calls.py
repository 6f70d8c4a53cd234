"""Calls into the agent are answered whatever happens: no fault in one of them ends the agent."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine
from k8s_rdma.agent.calls import AgentCall
from k8s_rdma.agent.cdi_socket import CdiSocket
from k8s_rdma.agent.report import StatePublisher, StateSocket
from k8s_rdma.agent.unix_sockets import listen_unix, serve_connections
from k8s_rdma.errors import KernelError, Reason
from k8s_rdma.wire.cdi import Declared, decode_written
from k8s_rdma.wire.cdi import encode_line as encode_declared
from k8s_rdma.wire.state_socket import HEADER, MessageKind, decode_header, decode_verdict, encode_message

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from k8s_rdma.agent.cdi_specs import SharedResourceSpecs


def converse(
    path: Path,
    talk: Callable[[socket.socket], Awaitable[None]],
    client: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> None:
    """Serve a socket to a client twice; a fault that ends the server fails the test."""

    async def scenario() -> None:
        with listen_unix(path, 0o600) as listener:
            serving = asyncio.create_task(serve_connections(listener, talk, limit=4))
            for _ in range(2):
                reader, writer = await asyncio.open_unix_connection(path)
                await client(reader, writer)
                writer.close()
            assert not serving.done()
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving

    asyncio.run(scenario())


def test_placement_delivery_answers_a_fault_and_state_socket_goes_on(tmp_path: Path) -> None:
    def deliver(_text: bytes) -> None:
        raise IndexError("list index out of range")

    async def sample() -> bytes:
        return b""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            writer.write(encode_message(MessageKind.PLACEMENT, b"{}"))
            kind = None
            while kind is not MessageKind.VERDICT:
                kind, length = decode_header(await reader.readexactly(HEADER.size))
                body = await reader.readexactly(length)
            verdict = decode_verdict(body)
            assert verdict.reason == Reason.INTERNAL
            assert "the agent has a fault: IndexError('list index out of range')" in verdict.message

    converse(tmp_path / "s", StateSocket(StatePublisher(lambda: b"one"), sample, deliver).talk, client)


class FaultySpecs:
    """CDI files that cannot be written, for a reason that is not foreseen."""

    def declare(self, _plugin: object, _declared: Declared) -> None:
        raise ZeroDivisionError

    def end(self, _plugin: object) -> None:
        raise KernelError("no")


def test_device_plugin_gets_a_fault_for_each_resource_and_cdi_socket_goes_on(tmp_path: Path) -> None:
    machine = Machine(tmp_path)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_declared(Declared(resources={"rdma/a": ("mlx5_0",), "rdma/b": ()})))
        written = decode_written(await reader.readline())
        assert written.resources == ()
        assert written.failed.keys() == {"rdma/a", "rdma/b"}
        assert "the agent has a fault: ZeroDivisionError()" in written.failed["rdma/b"]

    with machine.running():
        specs: SharedResourceSpecs = FaultySpecs()  # type: ignore[assignment]
        converse(tmp_path / "s", CdiSocket(specs, machine.worker).talk, client)


@pytest.mark.parametrize("publish_fails", [False, True])
def test_call_keeps_its_answer_when_its_changes_cannot_be_published(*, publish_fails: bool) -> None:
    published = []

    async def perform() -> str:
        return "done"

    async def publish() -> None:
        published.append(1)
        if publish_fails:
            raise RuntimeError

    call = AgentCall(name="call", perform=perform, failed=str, publish=publish)
    assert asyncio.run(call.answer()) == "done"
    assert published == [1]
