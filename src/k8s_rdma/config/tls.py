"""The keys of a configuration file by which a process speaks TLS."""

from __future__ import annotations

from typing import Annotated

import msgspec

from k8s_rdma.config.files import AbsolutePath


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase; files are PEM.

    cert_file: the server's certificate and those that lead to its issuer. key_file: its key, not encrypted.
    client_ca_file: who issues clients' certificates; None asks them for none. client_names: of whose
        certificates one is enough, as the subject's common name, or a DNS name, URI or mail address of the
        alternative names; empty: any certificate of that issuer.
    """

    cert_file: AbsolutePath
    key_file: AbsolutePath
    client_ca_file: AbsolutePath | None = None
    client_names: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...] = ()

    def __post_init__(self) -> None:
        """Refuse names where nobody is asked for a certificate."""
        if self.client_names and self.client_ca_file is None:
            msg = "clientNames: is for certificates of clientCaFile, which is not set"
            raise ValueError(msg)
