"""Records the calls between kubelet and a DRA driver, as it passes on the bytes between their sockets.

`K8S_RDMA_RECORD=1 make e2e ARGS="-k recorded_calls"` writes `tests/recordings/dra` anew.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k8s_rdma.deviceplugin.resource import Followers, is_served, open_endpoint
from k8s_rdma.kube.grpc_calls import answers, call, connect, handler, stream_handler
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma.wire.dra import GET_INFO, NOTIFY, PREPARE, UNPREPARE, WATCH_HEALTH
from k8s_rdma.wire.protobuf import Form, Method

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from k8s_rdma.deviceplugin.resource import Handlers

_RAW: Form[bytes] = Form(encode=bytes, decode=bytes)
DEADLINE_S = 50
UID = "u"
"""The driver's `uid`."""
USUAL = f"/var/lib/kubelet/plugins/{DRIVER}/dra-{UID}.sock"
"""The driver's endpoint in recordings."""


def _raw(method: Method[Any, Any]) -> Method[bytes, bytes]:
    return Method(service=method.service, name=method.name, request=_RAW, answer=_RAW, streams=method.streams)


@dataclass
class DraRecorder:
    """Calls in their order; a stream counts as a call for each of its answers."""

    registration: Path
    endpoint: Path
    calls: list[dict[str, str]] = field(default_factory=list)
    _socket: Path | None = None

    def write(self, directory: Path) -> None:
        """Write a file for each call."""
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob("*.json"):
            old.unlink()
        for number, recorded in enumerate(self.calls):
            path = directory / f"{number + 1:03d}-{recorded['method'].rpartition('/')[2]}.json"
            path.write_text(json.dumps(recorded, indent=1) + "\n")

    def registry_handlers(self) -> Handlers:
        """The driver's, but that kubelet is sent to our endpoint."""
        return {_raw(GET_INFO): handler(_raw(GET_INFO), self._info), **self._unary(self.registration, NOTIFY)}

    async def plugin_handlers(self) -> Handlers:
        """The driver's."""
        async with connect(self.registration) as channel:
            socket = Path((await call(channel, GET_INFO, None, timeout_s=5)).endpoint)
        self._socket = socket
        health = stream_handler(_raw(WATCH_HEALTH), self._health)
        return {**self._unary(socket, PREPARE), **self._unary(socket, UNPREPARE), _raw(WATCH_HEALTH): health}

    def _unary(self, socket: Path, method: Method[Any, Any]) -> Handlers:
        async def forward(request: bytes) -> bytes:
            async with connect(socket) as channel:
                answer = await call(channel, _raw(method), request, timeout_s=DEADLINE_S)
            self._record(method, request, answer)
            return answer

        return {_raw(method): handler(_raw(method), forward)}

    async def _info(self, request: bytes) -> bytes:
        async with connect(self.registration) as channel:
            answer = await call(channel, _raw(GET_INFO), request, timeout_s=5)
        info = GET_INFO.answer.decode(answer)
        self._record(GET_INFO, request, GET_INFO.answer.encode(replace(info, endpoint=USUAL)))
        return GET_INFO.answer.encode(replace(info, endpoint=str(self.endpoint)))

    async def _health(self, request: bytes) -> AsyncGenerator[bytes, None]:
        assert self._socket is not None
        async with (
            connect(self._socket) as channel,
            aclosing(answers(channel, _raw(WATCH_HEALTH), request)) as stream,
        ):
            async for answer in stream:
                self._record(WATCH_HEALTH, request, answer)
                yield answer

    def _record(self, method: Method[Any, Any], request: bytes, answer: bytes) -> None:
        self.calls.append({"method": method.path, "request_hex": request.hex(), "answer_hex": answer.hex()})


@asynccontextmanager
async def recording(registry: Path, kubelet_registry: Path, endpoint: Path) -> AsyncIterator[DraRecorder]:
    """Present the driver of a registry to the kubelet of another one. endpoint: a path for a socket."""
    registration = registry / f"{DRIVER}-{UID}-reg.sock"
    while not is_served(registration):  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.05)
    recorder = DraRecorder(registration, endpoint)
    async with AsyncExitStack() as opened:
        for path, handlers in (
            (endpoint, await recorder.plugin_handlers()),
            (kubelet_registry / f"{DRIVER}-recorder-reg.sock", recorder.registry_handlers()),
        ):
            served = await open_endpoint(path, handlers, Followers(b"", lambda: None))
            opened.push_async_callback(served.close)
        yield recorder
