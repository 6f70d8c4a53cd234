"""An application that reads bodies within limits, and bodies for it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from http_server.serving import Paths
from k8s_rdma.http_server import Answer
from k8s_rdma.http_server.asgi import BODY_SINK
from k8s_rdma.http_server.bodies import Bodies, BodyError

LIMIT = 5 << 20
SENT = random.Random(5).randbytes(LIMIT)


@dataclass
class Reader(Paths):
    """`/read` takes a body within limits, and answers with its digest."""

    bodies: Bodies = field(default_factory=lambda: Bodies(LIMIT, bound="maxBodyBytes"))
    sinks: list[Any] = field(default_factory=list)
    contents: list[Any] = field(default_factory=list)
    in_messages: int = 0

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/read":
            await super().app(scope, receive, send)
            return
        if set_sink := scope["extensions"].get(BODY_SINK):

            def note_sink(sink: Any) -> None:
                self.sinks.append(sink)
                set_sink(sink)

            scope["extensions"][BODY_SINK] = note_sink

        async def note_size() -> Any:
            message = await receive()
            self.in_messages += len(message.get("body", b""))
            return message

        try:
            async with self.bodies.reading(scope, note_size) as body:
                self.contents.append(body)
                answer = Answer(sha256(body).hexdigest())
        except BodyError as error:
            answer = Answer(str(error), status=error.status)
        await answer(scope, receive, send)

    def received(self) -> int:
        """How much has come of the bodies that were not refused."""
        return sum(self.bodies._bytes.values())


def head(size: int) -> bytes:
    return b"POST /read HTTP/1.1\r\nHost: w1\r\nContent-Length: %d\r\n\r\n" % size
