"""gRPC over Unix sockets, as kubelet and its plugins speak it: bytes in, bytes out, no TLS.

A service's handlers and a client's calls both take a `Method`, so that they see values, not messages.
"""

from __future__ import annotations

import os
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import quote

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when it is loaded; it would write to stderr by itself

import grpc
import grpc.aio

from k8s_rdma.errors import STATUS, K8sRdmaError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from k8s_rdma.wire.protobuf import Method

# Other modules use these names: a module that imports gRPC itself may load it before its log level is set.
AioRpcError = grpc.aio.AioRpcError
Server = grpc.aio.Server
StatusCode = grpc.StatusCode
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

MAX_MESSAGE_BYTES = 16 << 20
"""The limit of a message, equal to kubelet's (Kubernetes `pkg/kubelet/apis/podresources/constants.go`)."""

_CHANNEL = (
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Channels of equal target and options share one connection, and so each other's backoff.
    ("grpc.use_local_subchannel_pool", 1),
)
_SERVER = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)
MAX_REFUSAL_LETTERS = 500
"""The limit for a status message: it travels in header fields of 8 KiB, and each letter may take 12 bytes."""

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class RefusedCallError(Exception):
    """A call is answered with this code and this message, if no `Reason` has that code."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def connect(socket: Path) -> grpc.aio.Channel:
    """Return a channel that connects when it is first used, and again when its connection is lost."""
    return grpc.aio.insecure_channel(address(socket), options=_CHANNEL)


def address(socket: Path) -> str:
    """Return a socket as gRPC has it, which reads a URI."""
    return f"unix:{quote(str(socket))}"


async def call(
    channel: grpc.aio.Channel,
    method: Method[Asked, Answer],
    message: Asked,
    *,
    timeout_s: float,
    wait_for_ready: bool = False,
) -> Answer:
    """Make a unary call. grpc.aio.AioRpcError as gRPC has it; MalformedError.

    wait_for_ready: whether a server that is not there yet is waited for.
    """
    invoke: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method.path)
    request = method.request.encode(message)
    return method.answer.decode(await invoke(request, timeout=timeout_s, wait_for_ready=wait_for_ready))


async def answers(
    channel: grpc.aio.Channel, method: Method[Asked, Answer], message: Asked
) -> AsyncGenerator[Answer, None]:
    """Answers as they come, until the other side ends them. Errors as of `call`."""
    invoke: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(method.path)
    stream = invoke(method.request.encode(message))
    try:
        async for answer in stream:
            yield method.answer.decode(answer)
    finally:
        stream.cancel()


def new_server() -> grpc.aio.Server:
    """Return a server, still without services and sockets."""
    return grpc.aio.server(options=_SERVER)


def handler(method: Method[Asked, Answer], serve: Callable[[Asked], Awaitable[Answer]]) -> Handler:
    """Serve a method of one answer; a K8sRdmaError or RefusedCallError of `serve` is its status."""

    async def answer(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        try:
            return method.answer.encode(await serve(method.request.decode(request)))
        except (K8sRdmaError, RefusedCallError) as error:
            return await _refuse(error, context)

    return grpc.unary_unary_rpc_method_handler(answer)


def stream_handler(
    method: Method[Asked, Answer], serve: Callable[[Asked], AsyncGenerator[Answer, None]]
) -> Handler:
    """Serve a method of many answers; else as `handler`."""

    async def answer(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        try:
            async with aclosing(serve(method.request.decode(request))) as each_answer:
                async for message in each_answer:
                    yield method.answer.encode(message)
        except (K8sRdmaError, RefusedCallError) as error:
            await _refuse(error, context)

    return grpc.unary_stream_rpc_method_handler(answer)


async def _refuse(
    error: K8sRdmaError | RefusedCallError, context: grpc.aio.ServicerContext[Any, Any]
) -> bytes:
    code = error.code if isinstance(error, RefusedCallError) else _CODES[STATUS[error.reason].grpc]
    await context.abort(code, error.message[:MAX_REFUSAL_LETTERS])
    raise AssertionError


def add_service(server: grpc.aio.Server, handlers: dict[Method[Any, Any], Handler]) -> None:
    """Serve these methods, of one service or several."""
    for service in {method.service for method in handlers}:
        named = {
            method.name: registered for method, registered in handlers.items() if method.service == service
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, named),))
