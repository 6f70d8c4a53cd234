"""The configuration file of `k8s-rdma web`."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Literal

import msgspec

from k8s_rdma.config.addresses import EXTENDER_URL, SERVER_PORT, WEB_PORT
from k8s_rdma.config.field_types import AbsolutePath
from k8s_rdma.config.ports import MAX_PORT, Port
from k8s_rdma.config.tls import NodeTls, TlsConfig


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase: the address of a server, and the trust in it.

    token_file: the bearer token that it demands.
    ca_file: PEM, the issuer of its certificate; null for the system's.
    cert_file, key_file: PEM, the client certificate that it demands.
    """

    url: str
    token_file: AbsolutePath | None = None
    ca_file: AbsolutePath | None = None
    cert_file: AbsolutePath | None = None
    key_file: AbsolutePath | None = None

    def __post_init__(self) -> None:
        """Refuse half of a certificate."""
        if (self.cert_file is None) != (self.key_file is None):
            msg = "certFile and keyFile: one is of no use without the other"
            raise ValueError(msg)


class ExtenderEndpoint(Endpoint, frozen=True, kw_only=True):
    """The extender's endpoint. url: of the extender, or of its port for views."""

    url: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^https?://[^/?#@]+$", description=f"a URL without a path, such as {EXTENDER_URL}"
        ),
    ] = EXTENDER_URL


class PrometheusEndpoint(Endpoint, frozen=True, kw_only=True):
    """Prometheus' endpoint. url: of a server with its HTTP API below it."""

    url: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^https?://[^/?#@]+(/[^?#]*)?$",
            description="a URL, such as http://prometheus.example:9090",
        ),
    ]


class NodesEndpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase: the servers of nodes, at the addresses that their Node objects have.

    tls: null for plain HTTP.
    token_file: the bearer token that they demand.
    """

    port: Annotated[int, msgspec.Meta(ge=1, le=MAX_PORT)] = SERVER_PORT
    tls: NodeTls | None = None
    token_file: AbsolutePath | None = None


class WebConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Configuration of the pages, in YAML with these keys in camelCase.

    listen: the address to listen on; empty for all of them, IPv6 and IPv4.
    port: TCP; 0 for a free one. The environment variable PORT overrides it.
    tls: its files; null for plain HTTP.
    extender: the source of the data.
    poll_s: seconds between two questions for the whole cluster.
    prometheus: the source of traffic, of an agent's metrics.
    nodes: the nodes' servers, which are read for open pages: present traffic, and names of interfaces.
        Without either, traffic is not shown.
    claims: whether pods that wait by ResourceClaim are read from the API server, for open pages.
    access: `loopback`: everyone on this host sees everything; `reviews`: the API server decides by the bearer
        token of each request.
    kubeconfig: for reviews and claims; null for the service account, KUBECONFIG, ~/.kube/config, in this
        order.
    max_connections: at a time.
    """

    listen: str = "127.0.0.1"
    port: Port = WEB_PORT
    tls: TlsConfig | None = None
    extender: ExtenderEndpoint = ExtenderEndpoint()
    prometheus: PrometheusEndpoint | None = None
    nodes: NodesEndpoint | None = None
    claims: bool = False
    poll_s: Annotated[float, msgspec.Meta(ge=1, le=300)] = 5.0
    access: Literal["loopback", "reviews"] = "loopback"
    kubeconfig: AbsolutePath | None = None
    max_connections: Annotated[int, msgspec.Meta(ge=8, le=10_000)] = 64

    def __post_init__(self) -> None:
        """Refuse to show everything to everyone."""
        if self.access == "loopback" and not _is_loopback(self.listen):
            msg = f"listen: {self.listen or 'all addresses'}; beyond loopback, set access: reviews"
            raise ValueError(msg)


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
