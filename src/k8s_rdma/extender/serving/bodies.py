"""The bodies of requests, no longer than a limit, and in no more memory together than twice that."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.http_server.asgi import Receive, Scope

_TOGETHER = 2
"""Times the limit of one body, for those of all addresses; what one address sends has room for one."""


class TooLongError(Exception):
    """The body is longer than the limit."""


class NoRoomError(Exception):
    """Other bodies take the memory that there is for them."""


class ClientGoneError(Exception):
    """The client left before its request's end."""


class Bodies:
    """Bodies that are coming in or being answered. Bytes count as they come, not as they are announced."""

    def __init__(self, limit: int) -> None:
        """limit: of one, in bytes."""
        self._limit = limit
        self._bytes: Counter[str] = Counter()

    @asynccontextmanager
    async def reading(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """All of a body, which counts until the block ends.

        TooLongError and NoRoomError as soon as that is known, and nothing of it is kept then. What a client
        still sends of a request that is answered already is dropped by the server.
        """
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if announced.isdigit() and int(announced) > self._limit:
            raise TooLongError
        address = scope["client"][0] if scope.get("client") else ""
        parts, size, more = [], 0, True
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                part = message.get("body", b"")
                if size + len(part) > self._limit:
                    raise TooLongError
                self._take(address, len(part))
                size += len(part)
                parts.append(part)
                more = message.get("more_body", False)
            yield b"".join(parts)
        finally:
            self._bytes[address] -= size
            self._bytes += Counter()  # without addresses of which nothing is here

    def _take(self, address: str, size: int) -> None:
        of_address = self._bytes[address] + size
        if of_address > self._limit or self._bytes.total() + size > _TOGETHER * self._limit:
            raise NoRoomError
        self._bytes[address] = of_address
