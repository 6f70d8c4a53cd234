"""Clients that are after a server's memory: `hostile_clients.py PORT CONNECTIONS SECONDS [tls]`, a program.

Each connects, does its worst, and connects again when its connection ends. Prints how many connections the
server accepted in all.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from contextlib import suppress
from itertools import cycle, islice
from typing import TYPE_CHECKING

import uvloop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

REQUESTS = b"GET / HTTP/1.1\r\nHost: w1\r\n\r\n" * 1000
HALF_A_HEAD = b"GET / HTTP/1.1\r\nHost: w1\r\nX: " + b"x" * (30 << 10)
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100
REST_S = 0.01
BODY_BEGINS = b"POST / HTTP/1.1\r\nHost: w1\r\nContent-Length: 268435456\r\n\r\n"
BODY = bytes(256 << 10)
TURN_S = 1
"""As long as a client stays that the server leaves alone."""


async def sends_ahead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends requests without an end, and reads the answers."""
    while not (reader.at_eof() or writer.is_closing()):
        writer.write(REQUESTS)
        await writer.drain()
        await asyncio.sleep(0)
        await reader.read(1 << 16)


async def never_reads(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends requests without an end, and reads no answer."""
    while not writer.is_closing():
        writer.write(REQUESTS)
        await writer.drain()
        await asyncio.sleep(0)


async def stops_halfway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends a part of a long head, and no more."""
    writer.write(HALF_A_HEAD)
    await reader.read()


async def leaves(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends a request, and resets the connection."""
    writer.write(REQUESTS[: len(REQUESTS) // 1000])


async def stops_in_handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begins TLS, and no more."""
    writer.write(HALF_A_HELLO)
    await reader.read()


async def streams_a_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends a body that is not asked for, as fast as it is read."""
    writer.write(BODY_BEGINS)
    while not (reader.at_eof() or writer.is_closing()):
        writer.write(BODY)
        await writer.drain()
        await asyncio.sleep(0)


ATTACKS: tuple[Attack, ...] = (sends_ahead, never_reads, stops_halfway, leaves, streams_a_body)


class Clients:
    """All of them."""

    def __init__(self, port: int, *, tls: bool) -> None:
        self._port = port
        self._tls = ssl.create_default_context() if tls else None
        if self._tls is not None:
            self._tls.check_hostname = False
            self._tls.verify_mode = ssl.CERT_NONE
        self.connections = 0

    async def attack(self, connections: int, seconds: float) -> None:
        """For so long, and until there were more than so many connections, however busy the machine is."""
        # uvloop's TLS has an error of each handshake that the server ended, which is never retrieved.
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        attacks = ATTACKS if self._tls is None else (*ATTACKS, stops_in_handshake)
        enough = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            clients = [
                tasks.create_task(self._repeat(attack, connections, enough))
                for attack in islice(cycle(attacks), connections)
            ]
            await asyncio.sleep(seconds)
            await enough.wait()
            for client in clients:
                client.cancel()

    async def _repeat(self, attack: Attack, connections: int, enough: asyncio.Event) -> None:
        context = None if attack is stops_in_handshake else self._tls
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=context)
            except OSError:
                await asyncio.sleep(REST_S)
                continue
            self.connections += 1
            if self.connections > connections:
                enough.set()
            try:
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(TURN_S):
                        await attack(reader, writer)
            finally:
                writer.transport.abort()


def main() -> None:
    """Attack."""
    port, connections, seconds, *tls = sys.argv[1:]
    clients = Clients(int(port), tls=tls == ["tls"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(clients.attack(int(connections), float(seconds)))
    sys.stdout.write(f"{clients.connections}\n")


if __name__ == "__main__":
    main()
