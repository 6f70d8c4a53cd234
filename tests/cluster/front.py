"""A Service between scheduler and extenders, which sends requests to the replica that is ready.

It also records requests, and delays or breaks them on command.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx2

from cluster.control_plane import Json
from cluster.extenders import Extender
from k8s_rdma_demo.cluster.http_server import HttpService, Request, Response, serving

_ANSWER_S = 60


@dataclass
class Front:
    """Requests by verb, and how many are not answered yet.

    before, after: additional steps when a request of a verb comes, and when its answer goes; instead:
    the answer in the extenders' place. Each takes effect once.
    """

    replicas: tuple[Extender, ...]
    http: httpx2.AsyncClient
    url: str = ""
    seen: list[tuple[str, Json]] = field(default_factory=list)
    pending: int = 0
    before: dict[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    after: dict[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    instead: dict[str, Callable[[], Awaitable[Response]]] = field(default_factory=dict)

    def pods(self, verb: str) -> list[str]:
        """Names of the pods that came with a verb."""
        bodies = [body for seen, body in self.seen if seen == verb]
        return [body.get("PodName") or body["Pod"]["metadata"]["name"] for body in bodies]

    async def handle(self, request: Request) -> Response:
        verb = request.path.rpartition("/")[2]
        self.seen.append((verb, json.loads(request.body)))
        self.pending += 1
        try:
            replica = await self._ready()
            if step := self.before.pop(verb, None):
                await step()
            if answer := self.instead.pop(verb, None):
                return await answer()
            answered = await self._ask(replica, request)
            if step := self.after.pop(verb, None):
                await step()
            return answered
        finally:
            self.pending -= 1

    async def _ready(self) -> Extender | None:
        """Return the replica that gets requests now; a single one gets them all."""
        if len(self.replicas) == 1:
            return self.replicas[0]
        for replica in self.replicas:
            if await replica.is_ready(self.http):
                return replica
        return None

    async def _ask(self, replica: Extender | None, request: Request) -> Response:
        if replica is None:
            return Response(status=503, body=b"no replica is ready", content_type="text/plain")
        url, headers = f"{replica.url}{request.path}", {"Content-Type": "application/json"}
        try:
            answer = await self.http.post(url, content=request.body, headers=headers)
        except httpx2.HTTPError as error:
            return Response(status=502, body=repr(error).encode(), content_type="text/plain")
        return Response(status=answer.status_code, body=answer.content)


@asynccontextmanager
async def front(*replicas: Extender) -> AsyncIterator[Front]:
    """Serve until the block ends."""
    async with httpx2.AsyncClient(trust_env=False, timeout=_ANSWER_S) as http:
        made = Front(replicas, http)
        service = HttpService(
            handle=made.handle,
            refuse=lambda status: Response(status=status, body=b""),
            max_body_bytes=256 * 1024 * 1024,
        )
        async with serving(service, "127.0.0.1", 0) as port:
            made.url = f"http://127.0.0.1:{port}"
            yield made


async def late(seconds: float) -> None:
    """A delay."""
    await asyncio.sleep(seconds)
