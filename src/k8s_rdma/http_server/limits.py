"""What a client may take of a server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one server; times are kept to a tenth of a second.

    connections: at a time, those that still negotiate TLS among them; see `connections.Connections`.
    head_bytes: request line and header fields. fields: how many of these.
    body_bytes: None leaves bodies to the application.
    request_timeout_s: until a request is here whole, from its first byte, or from the connection's begin.
    send_timeout_s: how long a client may leave an answer unread.
    keep_alive_s: for a connection between two requests.
    """

    connections: int = 1024
    head_bytes: int = 32 << 10
    fields: int = 128
    body_bytes: int | None = None
    request_timeout_s: float = 10.0
    send_timeout_s: float = 10.0
    keep_alive_s: float = 75.0

    linger_s: float = 2.0
    """A refused client is listened to for so long, so that it reads why rather than a reset."""
