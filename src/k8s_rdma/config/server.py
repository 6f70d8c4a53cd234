"""The server's configuration file."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from k8s_rdma.config.addresses import SERVER_PORT
from k8s_rdma.config.field_types import AbsolutePath, NodeText
from k8s_rdma.config.hardware import HardwareConfig, VfSource
from k8s_rdma.config.ports import Port
from k8s_rdma.config.tls import TlsConfig
from k8s_rdma.core.node_paths import RUN_DIR

ClosablePath = Literal["/", "/getpfs", "/v1/node", "/v1/placements", "/metrics", "/openapi.json"]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Configuration of the server, in YAML with these keys in camelCase.

    listen: the address to listen on; empty for all of them, IPv6 and IPv4.
    port: TCP; 0 for a free one. The environment variable PORT overrides it.
    run_dir: the directory of the agent's `state.sock`.
    node, kernel, hardware: as in the agent's file, for scanning the hardware while the agent is away. The
        scan requires a node's name, and does not run with `virtual` functions, because it would change them.
    tls: its files; null for plain HTTP.
    token_file: bearer tokens, one a line.
    open_paths: served without a token, as probes' paths always are; null: all without token_file, else no
        other.
    max_connections: at a time.
    """

    listen: str = ""
    port: Port = SERVER_PORT
    run_dir: str = RUN_DIR
    node: NodeText | None = None
    kernel: VfSource = "linux"
    hardware: HardwareConfig = HardwareConfig()
    tls: TlsConfig | None = None
    token_file: AbsolutePath | None = None
    open_paths: tuple[ClosablePath, ...] | None = None
    max_connections: Annotated[int, msgspec.Meta(ge=8, le=100_000)] = 512
