"""The body of a request, no longer than a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from k8s_rdma.http_server.asgi import Receive, Scope


class TooLongError(Exception):
    """The body is longer than the limit."""


class ClientGoneError(Exception):
    """The client left before its request's end."""


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """All of it. TooLongError as soon as that is known, and nothing of it is kept then.

    What a client still sends of a request that is answered already is dropped by the server.
    """
    announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    if announced.isdigit() and int(announced) > limit:
        raise TooLongError
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise TooLongError
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)
