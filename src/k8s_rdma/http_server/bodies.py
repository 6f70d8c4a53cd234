"""Bodies of requests; limits on their number, time and memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

from k8s_rdma.http_server.asgi import BODY_SINK
from k8s_rdma.wire.json import HUGE_PAGE_BYTES, Buffer, large_buffer

if TYPE_CHECKING:
    import mmap
    from collections.abc import AsyncIterator

    from k8s_rdma.http_server.asgi import Receive, Scope


_PART_BYTES = 256 << 10
"""The limit of one read of a large body, and so of the bytes that have come and are not counted yet."""

SPARE_S = 10.0
"""Time for which the memory of a large body is kept; a scheduler at work asks several times a second."""

_TOGETHER = 2
"""Times the limit of one body, for the bodies of all addresses; one address has room for one body."""


class BodyError(Exception):
    """A body is refused with this message. status: of the answer; outcome: in the metrics."""

    status: HTTPStatus
    outcome: str


class TooLongError(BodyError):
    """The body is longer than the limit."""

    status, outcome = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_long"

    def __init__(self, limit: int, bound: str, advice: str) -> None:
        super().__init__(f"the body is longer than {limit} bytes ({bound}){f'; {advice}' if advice else ''}")


class NoRoomError(BodyError):
    """Other bodies take the memory that there is for them."""

    status, outcome = HTTPStatus.SERVICE_UNAVAILABLE, "no_room"

    def __init__(self, bound: str) -> None:
        super().__init__(
            f"other requests' bodies take the memory that there is for them (twice {bound}); try again"
        )


class TooSlowError(BodyError):
    """The body came in for longer than all others, and another one needed its memory."""

    status, outcome = HTTPStatus.REQUEST_TIMEOUT, "too_slow"

    def __init__(self) -> None:
        super().__init__("the body came slower than all others, and they need its room")


class ClientGoneError(Exception):
    """The client left before its request's end."""


class _Body:
    """A body, with the part that has been received; an `asgi.BodySink`.

    size: bytes that have been received.
    content: may be longer.
    counted: bytes for which there was room.
    refusal: of bytes that came without a message.
    """

    __slots__ = ("_bodies", "address", "announced", "content", "counted", "refusal", "size")

    def __init__(self, address: str, announced: int, bodies: Bodies) -> None:
        """Begin empty. bodies: has memory, and counts it."""
        self.address = address
        self.announced = announced
        self.content: bytearray | mmap.mmap = bytearray()
        self.size = self.counted = 0
        self.refusal: BodyError | None = None
        self._bodies = bodies

    @property
    def is_mapped(self) -> bool:
        """Report whether it has memory for its announced size."""
        return not isinstance(self.content, bytearray)

    def extend(self, part: bytes) -> None:
        """Append a part. Memory for the announced size is taken once a huge page of it has come."""
        end = self.size + len(part)
        if self.size < HUGE_PAGE_BYTES <= end <= self.announced:
            with suppress(OSError):  # without memory for all of it, it grows as it comes
                region = self._bodies.map_memory(self)
                region[: self.size] = self.content[:]
                self.content = region
        if isinstance(self.content, bytearray):
            self.content += part
        else:
            self.content[self.size : end] = part
        self.size = end

    def get_buffer(self) -> memoryview | None:
        """Return the memory for the next bytes; None once it is dropped."""
        if isinstance(self.content, bytearray):
            return None
        return memoryview(self.content)[self.size : self.size + _PART_BYTES]

    def buffer_updated(self, size: int) -> bool:
        """Count bytes that have come; False if the body is refused."""
        self.refusal = self._bodies.admit(self, size)
        if self.refusal is None:
            self.size += size
        return self.refusal is None

    def drop(self) -> None:
        """Discard the received part."""
        self.content = bytearray()


class Bodies:
    """Bodies that are coming in or being answered. Bytes count as they come, not as they are announced.

    When all of them together leave no room, the oldest one that is still incomplete is dropped, so a slow
    sender blocks no other client.

    The memory of the last large body is kept for the next one, because the kernel takes as long to clear
    fresh pages as to fill them. It counts while it is kept, and all of it as soon as a body has it.
    """

    def __init__(self, limit: int, *, bound: str, advice: str = "", spare_s: float = SPARE_S) -> None:
        """Begin empty.

        limit: of a body, in bytes. bound: its name for clients. advice: for a larger body. spare_s: time for
        which memory is kept.
        """
        self._limit, self._bound, self._advice, self._spare_s = limit, bound, advice, spare_s
        self._spare: mmap.mmap | None = None
        self._end_of_spare: asyncio.TimerHandle | None = None
        self._bytes: Counter[str] = Counter()
        self._incoming: dict[_Body, None] = {}
        """The incomplete bodies, oldest first."""

    @asynccontextmanager
    async def reading(self, scope: Scope, receive: Receive) -> AsyncIterator[Buffer]:
        """Read a whole body, which counts until the block ends.

        BodyError is raised as soon as the refusal is known, and the received part is discarded then.
        TooSlowError is raised with the first byte that comes after another body took its room. If a request
        is answered already, the server drops the rest of it.
        """
        field = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        announced = int(field) if field.isdigit() else 0
        if announced > self._limit:
            raise TooLongError(self._limit, self._bound, self._advice)
        body = _Body(scope["client"][0] if scope.get("client") else "", announced, self)
        set_sink = scope.get("extensions", {}).get(BODY_SINK)
        self._incoming[body] = None
        try:
            has_more = True
            while has_more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                part = message.get("body", b"")
                if refusal := body.refusal or self.admit(body, len(part)):
                    raise refusal
                body.extend(part)
                if set_sink is not None and body.is_mapped:
                    set_sink(body)
                    set_sink = None
                has_more = message.get("more_body", False)
            del self._incoming[body]
            yield body.content
        finally:
            self._incoming.pop(body, None)
            self._give_back(body)
            if body.size == body.announced and not isinstance(body.content, bytearray):
                self._keep(body.content)
            body.drop()
            body.refusal = None

    def map_memory(self, body: _Body) -> mmap.mmap:
        """Map memory for a body's announced size, or give it the kept memory. OSError if there is none."""
        spare, new_bytes = self._spare, body.announced - body.counted
        has_room = self._bytes[body.address] + new_bytes <= self._limit
        self._forget_spare()
        if spare is None or not has_room or self._bytes.total() + new_bytes > _TOGETHER * self._limit:
            return large_buffer(body.announced)
        try:
            spare.resize(body.announced)
        except (BufferError, OSError):  # an answer that is being sent has parts of it, or there is no memory
            return large_buffer(body.announced)
        self._count(body, new_bytes)
        return spare

    def admit(self, body: _Body, size: int) -> BodyError | None:
        """Count further bytes of a body, or refuse it."""
        if body not in self._incoming:
            return TooSlowError()
        if body.size + size > self._limit:
            return TooLongError(self._limit, self._bound, self._advice)
        new_bytes = max(0, body.size + size - body.counted)
        if self._bytes[body.address] + new_bytes > self._limit:
            return NoRoomError(self._bound)
        room = _TOGETHER * self._limit - new_bytes
        if self._spare is not None and self._bytes.total() + len(self._spare) > room:
            self._forget_spare()
        while self._bytes.total() > room:
            slowest = next(iter(self._incoming))
            if slowest is body:
                return NoRoomError(self._bound)
            del self._incoming[slowest]
            self._give_back(slowest)
            slowest.drop()
        self._count(body, new_bytes)
        return None

    def _count(self, body: _Body, size: int) -> None:
        body.counted += size
        self._bytes[body.address] += size

    def _give_back(self, body: _Body) -> None:
        self._bytes[body.address] -= body.counted
        body.counted = 0
        self._bytes += Counter()  # drops addresses that have no bytes here

    def _keep(self, memory: mmap.mmap) -> None:
        """Keep memory for the next body, in place of what is kept, if there is room for it."""
        self._forget_spare()
        if self._bytes.total() + len(memory) <= _TOGETHER * self._limit:
            self._spare = memory
            loop = asyncio.get_running_loop()
            self._end_of_spare = loop.call_later(self._spare_s, self._forget_spare)

    def _forget_spare(self) -> None:
        self._spare = None
        if self._end_of_spare is not None:
            self._end_of_spare.cancel()
            self._end_of_spare = None
