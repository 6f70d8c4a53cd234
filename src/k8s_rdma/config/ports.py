"""TCP ports of configurations: a port's type, and the port that a process listens on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Protocol

import msgspec

from k8s_rdma.errors import MalformedError, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_PORT = 65535
Port = Annotated[int, msgspec.Meta(ge=0, le=MAX_PORT)]
"""A TCP port; 0 for a free one."""


class Listening(Protocol):
    """A configuration that names a port."""

    @property
    def port(self) -> int:
        """The port of the file."""
        ...


def port_of(config: Listening, environment: Mapping[str, str]) -> int:
    """Return the port to listen on; MalformedError (`INVALID_ENVIRONMENT`) if PORT is invalid."""
    text = environment.get("PORT", "")
    if not text:
        return config.port
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_PORT)) and int(text) <= MAX_PORT):
        msg = f"PORT: {text!r} is no TCP port (0 to {MAX_PORT})"
        raise MalformedError(msg, reason=Reason.INVALID_ENVIRONMENT)
    return int(text)
