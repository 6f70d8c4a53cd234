"""TCP connections passed on, as kube-proxy does for a Service: each to the target at its beginning.

A connection stays with its replica for as long as both ends keep it, whoever is ready by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import httpx2

if TYPE_CHECKING:
    from cluster.extenders import Extender

_CHUNK = 1 << 16
_PROBE_EVERY_S = 0.2


def _open() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class Relay:
    """target: the port that the next connection goes to; unset refuses it.

    passes: cleared, no byte gets through any more, without notice: a network that drops all packets.
    bytes_passed: both ways so far.
    """

    target: Callable[[], Awaitable[int | None]]
    passes: asyncio.Event = field(default_factory=_open)
    port: int = 0
    bytes_passed: int = 0

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on the bytes of a client and its server until one of them has ended."""
        port = await self.target()
        try:
            if port is None:
                return
            await self.passes.wait()
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                async with asyncio.TaskGroup() as both:
                    there = both.create_task(self._pass_on(reader, other_writer))
                    back = both.create_task(self._pass_on(other_reader, writer))
                    await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
                    there.cancel()
                    back.cancel()
            finally:
                other_writer.close()
        except OSError:
            pass
        finally:
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self.passes.wait()
                self.bytes_passed += len(data)
                writer.write(data)
                await writer.drain()
            await self.passes.wait()


@asynccontextmanager
async def relaying(target: Callable[[], Awaitable[int | None]]) -> AsyncIterator[Relay]:
    """Serve until the block ends."""
    relay, connections = Relay(target), set()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(task := asyncio.current_task())
        try:
            await relay.connect(reader, writer)
        finally:
            connections.discard(task)

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        for task in connections:
            task.cancel()
        if connections:
            await asyncio.wait(connections)


@asynccontextmanager
async def service_of(*replicas: Extender, probe_s: float = _PROBE_EVERY_S) -> AsyncIterator[str]:
    """The URL of a Service whose endpoints are the replicas that their probes last found ready.

    probe_s: between two probes of a replica.
    """
    endpoints: set[int] = set()

    async def probe(replica: Extender, http: httpx2.AsyncClient) -> NoReturn:
        while True:
            (endpoints.add if await replica.is_ready(http) else endpoints.discard)(replica.port)
            await asyncio.sleep(probe_s)

    async def first() -> int | None:
        return next((each.port for each in replicas if each.port in endpoints), None)

    async with httpx2.AsyncClient(trust_env=False) as http, asyncio.TaskGroup() as probing:
        probes = [probing.create_task(probe(replica, http)) for replica in replicas]
        async with relaying(first) as relay:
            yield f"http://127.0.0.1:{relay.port}"
        for each in probes:
            each.cancel()
