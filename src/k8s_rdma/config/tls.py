"""The keys of a configuration file by which a process speaks TLS."""

from __future__ import annotations

import msgspec

from k8s_rdma.config.files import AbsolutePath


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase, all of them PEM files.

    cert_file: the server's certificate and those that lead to its issuer. key_file: its key, not encrypted.
    client_ca_file: who issues clients' certificates; None asks them for none.
    """

    cert_file: AbsolutePath
    key_file: AbsolutePath
    client_ca_file: AbsolutePath | None = None
