"""gRPC over a Unix socket: calls, answers and refusals of a service of the test's own."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.kube.grpc_calls import (
    MAX_REFUSAL_LETTERS,
    AioRpcError,
    Handler,
    RefusedCallError,
    StatusCode,
    add_service,
    address,
    answers,
    call,
    connect,
    handler,
    new_server,
    stream_handler,
)
from k8s_rdma.wire.protobuf import Form, Method

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


def decoded(data: bytes) -> str:
    if b"\xff" in data:
        raise MalformedError("no text")
    return data.decode()


TEXT = Form(encode=lambda text: text.encode("latin-1"), decode=decoded)
ECHO = Method(service="test.Echo", name="Say", request=TEXT, answer=TEXT)
LETTERS = Method(service="test.Letters", name="Spell", request=TEXT, answer=TEXT, streams=True)


@asynccontextmanager
async def serving(path: Path, handlers: dict[Method[Any, Any], Handler]) -> AsyncIterator[None]:
    server = new_server()
    add_service(server, handlers)
    server.add_insecure_port(address(path))
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def upper(text: str) -> str:
    return text.upper()


async def spelt(text: str) -> AsyncGenerator[str, None]:
    for letter in text:
        if letter == "!":
            raise K8sRdmaError("no letter", reason=Reason.MALFORMED_REQUEST)
        yield letter


async def test_methods_of_two_services_are_answered_at_a_path_of_any_signs(tmp_path: Path) -> None:
    path = tmp_path / "a 100%?#.sock"  # a URI has these otherwise
    handlers = {ECHO: handler(ECHO, upper), LETTERS: stream_handler(LETTERS, spelt)}
    async with serving(path, handlers), connect(path) as channel:
        assert path.is_socket()
        assert await call(channel, ECHO, "a", timeout_s=60) == "A"
        assert [letter async for letter in answers(channel, LETTERS, "abc")] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RefusedCallError(StatusCode.UNIMPLEMENTED, "why"), StatusCode.UNIMPLEMENTED),
        (K8sRdmaError("why", reason=Reason.INSUFFICIENT), StatusCode.RESOURCE_EXHAUSTED),
        (K8sRdmaError("why", reason=Reason.MALFORMED_REQUEST), StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_error_of_a_handler_is_the_status_of_the_call(
    tmp_path: Path, error: Exception, code: StatusCode
) -> None:
    async def refuse(text: str) -> str:
        raise error

    async with serving(tmp_path / "s", {ECHO: handler(ECHO, refuse)}), connect(tmp_path / "s") as channel:
        with pytest.raises(AioRpcError) as refused:
            await call(channel, ECHO, "a", timeout_s=60)
    assert (refused.value.code(), refused.value.details()) == (code, "why")


async def test_long_refusal_is_cut_to_what_header_fields_hold(tmp_path: Path) -> None:
    async def refuse(text: str) -> str:
        raise RefusedCallError(StatusCode.UNKNOWN, "\N{PILE OF POO}" * 2 * MAX_REFUSAL_LETTERS)

    async with serving(tmp_path / "s", {ECHO: handler(ECHO, refuse)}), connect(tmp_path / "s") as channel:
        with pytest.raises(AioRpcError) as refused:
            await call(channel, ECHO, "a", timeout_s=60)
    assert refused.value.details() == "\N{PILE OF POO}" * MAX_REFUSAL_LETTERS


async def test_stream_ends_with_the_error_of_its_handler_after_its_answers(tmp_path: Path) -> None:
    handlers = {LETTERS: stream_handler(LETTERS, spelt)}
    async with serving(tmp_path / "s", handlers), connect(tmp_path / "s") as channel:
        stream = answers(channel, LETTERS, "ab!c")
        assert [await anext(stream), await anext(stream)] == ["a", "b"]
        with pytest.raises(AioRpcError) as refused:
            await anext(stream)
    assert refused.value.code() is StatusCode.INVALID_ARGUMENT


async def test_handler_of_a_stream_ends_when_its_caller_goes_away(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def endless(text: str) -> AsyncGenerator[str, None]:
        try:
            while True:
                yield text
                await asyncio.sleep(0)
        finally:
            ended.set()

    handlers = {LETTERS: stream_handler(LETTERS, endless)}
    async with serving(tmp_path / "s", handlers), connect(tmp_path / "s") as channel:
        stream = answers(channel, LETTERS, "a")
        assert await anext(stream) == "a"
        await stream.aclose()
        async with asyncio.timeout(120):
            await ended.wait()


async def test_answer_that_cannot_be_read_is_an_error_of_the_caller(tmp_path: Path) -> None:
    async def odd(text: str) -> str:
        return "\xff"

    async with serving(tmp_path / "s", {ECHO: handler(ECHO, odd)}), connect(tmp_path / "s") as channel:
        with pytest.raises(MalformedError, match="no text"):
            await call(channel, ECHO, "a", timeout_s=60)


async def test_server_that_is_not_there_yet_is_waited_for_if_requested(tmp_path: Path) -> None:
    async with connect(tmp_path / "s") as channel:
        with pytest.raises(AioRpcError) as refused:
            await call(channel, ECHO, "a", timeout_s=60)
        assert refused.value.code() is StatusCode.UNAVAILABLE
        waiting = asyncio.ensure_future(call(channel, ECHO, "a", timeout_s=120, wait_for_ready=True))
        async with serving(tmp_path / "s", {ECHO: handler(ECHO, upper)}):
            assert await waiting == "A"
