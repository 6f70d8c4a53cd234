"""The server's configuration file."""

from __future__ import annotations

import msgspec

from k8s_rdma.config import Port

DEFAULT_PORT = 54005
"""Where the RDMA hardware DaemonSet has always listened."""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase.

    listen: the address to listen on; empty for all of them, IPv6 and IPv4.
    port: TCP; 0 for a free one. The environment variable PORT overrides it.
    run_dir: where the agent's `state.sock` is.
    """

    listen: str = ""
    port: Port = DEFAULT_PORT
    run_dir: str = "/run/k8s-rdma"
