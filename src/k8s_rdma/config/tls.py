"""TLS of a server that clients reach, and of a client that reaches the nodes' servers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from k8s_rdma.config.field_types import AbsolutePath


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase; files are PEM.

    cert_file: the server's certificate and those that lead to its issuer.
    key_file: its key, not encrypted.
    client_ca_file: the issuer of clients' certificates; null if clients need no certificate.
    client_names: the names of accepted clients: a certificate needs one of them as the subject's common name,
        or as a DNS name, URI or mail address of the alternative names. Empty accepts any certificate of that
        issuer.
    """

    cert_file: AbsolutePath
    key_file: AbsolutePath
    client_ca_file: AbsolutePath | None = None
    client_names: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...] = ()

    def __post_init__(self) -> None:
        """Refuse client names when no client certificates are requested."""
        if self.client_names and self.client_ca_file is None:
            msg = "clientNames: is for certificates of clientCaFile, which is not set"
            raise ValueError(msg)


class NodeTls(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase: how the nodes' servers are identified, if they speak TLS.

    ca_file: PEM, the issuer of their certificates.
    server_name: the name in these; null for the requested address.
    cert_file, key_file: ours, if they demand one.
    """

    ca_file: AbsolutePath
    server_name: str | None = None
    cert_file: AbsolutePath | None = None
    key_file: AbsolutePath | None = None
