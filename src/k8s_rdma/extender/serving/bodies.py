"""The bodies of requests, no longer than a limit, and in no more memory together than twice that."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.http_server.asgi import Receive, Scope

_TOGETHER = 2
"""Times the limit of one body, for those of all addresses; what one address sends has room for one."""


class BodyError(Exception):
    """A body is refused, in the words of the message. status: of the answer; outcome: in the metrics."""

    status: HTTPStatus
    outcome: str


class TooLongError(BodyError):
    """It is longer than the limit."""

    status, outcome = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_long"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the body is longer than {limit} bytes (maxBodyBytes); register the extender with "
            "nodeCacheCapable: true, so that the scheduler sends names instead of whole node objects"
        )


class NoRoomError(BodyError):
    """Other bodies take the memory that there is for them."""

    status, outcome = HTTPStatus.SERVICE_UNAVAILABLE, "no_room"

    def __init__(self) -> None:
        super().__init__(
            "other requests' bodies take the memory that there is for them (twice maxBodyBytes); try again"
        )


class TooSlowError(BodyError):
    """It came in for longer than all others, and one of them has its room."""

    status, outcome = HTTPStatus.REQUEST_TIMEOUT, "too_slow"

    def __init__(self) -> None:
        super().__init__("the body came slower than all others, and they need its room")


class ClientGoneError(Exception):
    """The client left before its request's end."""


@dataclass(slots=True, eq=False)
class _Body:
    """A body, as far as it is here."""

    address: str
    content: bytearray = field(default_factory=bytearray)


class Bodies:
    """Bodies that are coming in or being answered. Bytes count as they come, not as they are announced.

    Where all of them together leave no room, the one that has been coming in for longest makes it: who sends
    slowly shuts out nobody.
    """

    def __init__(self, limit: int) -> None:
        """limit: of one, in bytes."""
        self._limit = limit
        self._bytes: Counter[str] = Counter()
        self._incoming: dict[_Body, None] = {}
        """In the order of their begin."""

    @asynccontextmanager
    async def reading(self, scope: Scope, receive: Receive) -> AsyncIterator[bytearray]:
        """All of a body, which counts until the block ends.

        BodyError as soon as that is known, and nothing of it is kept then: TooSlowError with the first byte
        that comes after another took its room. What a client still sends of a request that is answered
        already is dropped by the server.
        """
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if announced.isdigit() and int(announced) > self._limit:
            raise TooLongError(self._limit)
        body = _Body(scope["client"][0] if scope.get("client") else "")
        self._incoming[body] = None
        try:
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                self._extend(body, message.get("body", b""))
                more = message.get("more_body", False)
            del self._incoming[body]
            yield body.content
        finally:
            self._incoming.pop(body, None)
            self._give_back(body)

    def _extend(self, body: _Body, part: bytes) -> None:
        if body not in self._incoming:
            raise TooSlowError
        if len(body.content) + len(part) > self._limit:
            raise TooLongError(self._limit)
        if self._bytes[body.address] + len(part) > self._limit:
            raise NoRoomError
        while self._bytes.total() + len(part) > _TOGETHER * self._limit:
            self._make_room(body)
        self._bytes[body.address] += len(part)
        body.content += part

    def _make_room(self, body: _Body) -> None:
        slowest = next(iter(self._incoming))
        if slowest is body:
            raise NoRoomError
        del self._incoming[slowest]
        self._give_back(slowest)
        slowest.content = bytearray()

    def _give_back(self, body: _Body) -> None:
        self._bytes[body.address] -= len(body.content)
        self._bytes += Counter()  # without addresses of which nothing is here
