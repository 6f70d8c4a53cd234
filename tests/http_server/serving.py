"""A server over real sockets, with an application that answers, or waits until it may."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import uvloop

from k8s_rdma.http_server import Answer, HttpServer, listen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

DEADLINE_S = 120
PARTS = tuple(b"%07d" % number * 1000 for number in range(3000))
"""Of an answer: more than the kernel takes at once, in bytes and in number (writev(2), IOV_MAX)."""
REQUEST = b"GET /now HTTP/1.1\r\nHost: w1\r\n\r\n"


@dataclass
class Paths:
    """`/now`, `/large` and `/parts` are there at once, `/later` once `may` is set, `/read` takes the body."""

    may: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0
    large: Answer = field(default_factory=lambda: Answer(b"x" * (50 << 20)))
    parts: Answer = field(default_factory=lambda: Answer(PARTS))
    now: Answer = field(default_factory=lambda: Answer("now"))

    def ready(self, method: bytes, target: bytes, fields: object) -> Answer | None:
        answers = {b"/now": self.now, b"/large": self.large, b"/parts": self.parts}
        return answers.get(target) if method in (b"GET", b"HEAD") else None

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        answer = self.ready(b"GET", scope["raw_path"], ()) or Answer("later")
        if scope["path"] == "/later":
            self.waiting += 1
            await self.may.wait()
        if scope["path"] == "/read":
            while (await receive()).get("more_body"):
                pass
        await answer(scope, receive, send)


@dataclass
class Served:
    server: HttpServer
    port: int
    paths: Paths
    clients: list[Client] = field(default_factory=list)

    async def connect(self, **tls: Any) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, **tls))
        self.clients.append(client)
        return client

    async def answers(self) -> bool:
        """Whether somebody else is served."""
        client = await self.connect()
        client.send(REQUEST)
        status, body = await client.answer()
        client.close()
        return (status, body) == (200, b"now")

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110  the server sends no event
            await asyncio.sleep(0.005)

    @property
    def tasks(self) -> int:
        return len(self.server.state.tasks)

    @property
    def connections(self) -> list[Any]:
        return list(self.server.state.connections)


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def answer(self, *, has_body: bool = True) -> tuple[int, bytes]:
        head = await self.head()
        length = re.search(rb"content-length: (\d+)", head)
        body = await self.reader.readexactly(int(length[1])) if length and has_body else b""
        return int(head.split()[1]), body

    async def ended(self) -> bool:
        """Whether the server closes without a further word."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    def stop_reading(self) -> None:
        transport: Any = self.writer.transport  # uvloop's is no type of asyncio
        transport.pause_reading()

    def close(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def served(paths: Paths | None = None, **settings: Any) -> AsyncIterator[Served]:
    paths = paths or Paths()
    server = HttpServer(paths.app, **{"shutdown_s": 1, **settings})
    with listen("127.0.0.1", 0) as listener:
        served = Served(server, listener.getsockname()[1], paths)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(server.serve(listener))
                yield served
                paths.may.set()
                server.stop()
        finally:
            for client in served.clients:
                client.close()
            await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test on the event loop that the servers have."""

    async def within_deadline() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(within_deadline())
