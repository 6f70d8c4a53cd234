"""The server's configuration file."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from k8s_rdma.config.files import NodeText, Port
from k8s_rdma.config.hardware import HardwareConfig
from k8s_rdma.http_server.tls import File, TlsConfig

DEFAULT_PORT = 54005
"""Where the RDMA hardware DaemonSet has always listened."""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase.

    listen: the address to listen on; empty for all of them, IPv6 and IPv4.
    port: TCP; 0 for a free one. The environment variable PORT overrides it.
    run_dir: where the agent's `state.sock` is.
    node, kernel, hardware: as in the agent's file, for looking at the hardware while the agent is away. That
        needs a node's name; where functions are `virtual` nobody looks, since that changes them.
    tls: its files; None for plain HTTP. token_file: bearer tokens, one a line; None demands none.
    max_connections: at a time.
    """

    listen: str = ""
    port: Port = DEFAULT_PORT
    run_dir: str = "/run/k8s-rdma"
    node: NodeText | None = None
    kernel: Literal["linux", "virtual"] = "linux"
    hardware: HardwareConfig = HardwareConfig()
    tls: TlsConfig | None = None
    token_file: File | None = None
    max_connections: Annotated[int, msgspec.Meta(ge=8, le=100_000)] = 512
