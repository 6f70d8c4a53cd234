"""The extender's HTTP interface: bodies in, bodies out.

Answers that a scheduler understands are always 200 (it takes anything else for a failure of the
extender); 400 is for bodies that are none of its documents, too long ones among them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.binding import Binder
from k8s_rdma.extender.metrics import Metrics
from k8s_rdma.extender.scheduling import Scheduling
from k8s_rdma.wire.extender import ExtenderBindingResult, decode_args, decode_binding, encode_reply

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from k8s_rdma.extender.config import ExtenderConfig

Answer: TypeAlias = Callable[[bytes], Awaitable[bytes]]

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Extender:
    """What answers. missing: what is not known yet; nothing is promised while there is something."""

    scheduling: Scheduling
    binder: Binder
    metrics: Metrics
    missing: Callable[[], list[str]]

    async def filter(self, body: bytes) -> bytes:
        """`ExtenderArgs` to `ExtenderFilterResult`."""
        return encode_reply(await self.scheduling.filter(decode_args(body)))

    async def prioritize(self, body: bytes) -> bytes:
        """`ExtenderArgs` to `HostPriorityList`."""
        return encode_reply(await self.scheduling.prioritize(decode_args(body)))

    async def bind(self, body: bytes) -> bytes:
        """`ExtenderBindingArgs` to `ExtenderBindingResult`."""
        return encode_reply(ExtenderBindingResult(error=await self.binder.bind(decode_binding(body))))


def make_app(extender: Extender, config: ExtenderConfig) -> Starlette:
    """The application."""

    def post(path: str, verb: str, answer: Answer) -> Route:
        return Route(path, _Verb(verb, answer, extender.metrics, config.max_body_bytes), methods=["POST"])

    async def healthz(_request: Request) -> Response:
        missing = extender.missing()
        if missing:
            return Response(f"starting: not there yet: {', '.join(missing)}\n", 503, media_type="text/plain")
        return Response("ok\n", media_type="text/plain")

    async def metrics(_request: Request) -> Response:
        return Response(extender.metrics.render(), headers={"content-type": _CONTENT_TYPE})

    return Starlette(
        routes=[
            post(config.filter_path, "filter", extender.filter),
            post(config.prioritize_path, "prioritize", extender.prioritize),
            post(config.bind_path, "bind", extender.bind),
            Route("/healthz", healthz),
            Route("/metrics", metrics),
        ]
    )


class _TooLargeError(Exception):
    """The body is longer than the limit."""


class _Verb:
    """One of the scheduler's verbs, as an ASGI application."""

    def __init__(self, verb: str, answer: Answer, metrics: Metrics, limit: int) -> None:
        self._verb = verb
        self._answer = answer
        self._metrics = metrics
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            response, outcome = await self._respond(Request(scope, receive))
        except ClientDisconnect:
            return
        self._metrics.count(self._verb, outcome, clock() - began)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> tuple[Response, str]:
        try:
            reply = await self._answer(await self._body(request))
        except _TooLargeError:
            return self._refuse(400, f"{self._verb}: body is longer than {self._limit} bytes")
        except MalformedError as error:
            return self._refuse(400, f"{self._verb}: {error.message}")
        return Response(reply, media_type="application/json"), "answered"

    def _refuse(self, status: int, message: str) -> tuple[Response, str]:
        _log.warning("request_refused", verb=self._verb, status=status, error=message)
        body = msgspec.json.encode({"Error": message})
        return Response(body, status, media_type="application/json"), "refused"

    async def _body(self, request: Request) -> bytes:
        """The whole body; what is beyond the limit is not kept."""
        announced = request.headers.get("content-length", "")
        if announced.isdigit() and int(announced) > self._limit:
            raise _TooLargeError
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self._limit:
                raise _TooLargeError
            parts.append(part)
        return b"".join(parts)
