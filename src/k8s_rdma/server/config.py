"""The server's configuration file, and the port that the environment may override."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from k8s_rdma.errors import MalformedError, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PORT = 54005
"""Where the RDMA hardware DaemonSet has always listened."""

MAX_PORT = 65535

Port = Annotated[int, msgspec.Meta(ge=0, le=MAX_PORT)]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase.

    listen: the address to listen on; empty for all of them, IPv6 and IPv4.
    port: TCP; 0 for a free one. The environment variable PORT overrides it.
    run_dir: where the agent's `state.sock` is.
    """

    listen: str = ""
    port: Port = DEFAULT_PORT
    run_dir: str = "/run/k8s-rdma"


def port_of(config: ServerConfig, environment: Mapping[str, str]) -> int:
    """The port to listen on; MalformedError (`INVALID_ENVIRONMENT`) when PORT holds none."""
    text = environment.get("PORT", "")
    if not text:
        return config.port
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_PORT)) and int(text) <= MAX_PORT):
        msg = f"PORT: {text!r} is no TCP port (0 to {MAX_PORT})"
        raise MalformedError(msg, reason=Reason.INVALID_ENVIRONMENT)
    return int(text)
