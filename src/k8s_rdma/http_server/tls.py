"""TLS from certificate files."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from k8s_rdma.config.reloaded import Reloaded
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.config.files import TlsConfig


@dataclass(frozen=True, slots=True)
class ServerTls:
    """TLS of a server: the context for a connection of now, and whose certificates count.

    client_names: as in `TlsConfig`. demand: whether whoever shows none that counts is served nothing.
    """

    contexts: Callable[[], ssl.SSLContext]
    client_names: frozenset[str] = frozenset()
    demand: bool = True

    def __call__(self) -> ssl.SSLContext:
        """The context."""
        return self.contexts()

    def admits(self, certificate: Mapping[str, Any]) -> bool:
        """Whether a verified certificate, as `SSLSocket.getpeercert` gives it, is of a client that counts."""
        return not self.client_names or not self.client_names.isdisjoint(certificate_names(certificate))


def certificate_names(certificate: Mapping[str, Any]) -> list[str]:
    """The common name of its subject, then DNS names, URIs and mail addresses (RFC 5280, section 4.2.1.6)."""
    subject = [
        value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"
    ]
    kinds = ("DNS", "URI", "email")
    return subject + [value for kind, value in certificate.get("subjectAltName", ()) if kind in kinds]


def tls_context(
    config: TlsConfig, *, demand: bool = True, clock: Callable[[], float] = monotonic
) -> ServerTls:
    """What a configuration says; the context is made anew when a file has changed.

    demand: whether clients must have a certificate where there is a client_ca_file; else they are asked for
    one, and whoever shows a wrong one is not served. MalformedError names the field whose file is none.
    """
    paths = [config.cert_file, config.key_file, *([config.client_ca_file] if config.client_ca_file else [])]
    contexts = Reloaded(lambda: _load(config, demand=demand), *map(Path, paths), clock=clock)
    return ServerTls(contexts, frozenset(config.client_names), demand)


def _load(config: TlsConfig, *, demand: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for field, path in (("tls.certFile", config.cert_file), ("tls.keyFile", config.key_file)):
        check_readable(field, path)
    try:
        context.load_cert_chain(config.cert_file, config.key_file, password=_no_password)
    except OSError as error:  # ssl.SSLError among them
        msg = f"tls.certFile {config.cert_file} and tls.keyFile {config.key_file}: {ssl_words(error)}"
        raise MalformedError(msg) from error
    if config.client_ca_file is not None:
        check_readable("tls.clientCaFile", config.client_ca_file)
        _ask_for_certificates(context, config.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED if demand else ssl.CERT_OPTIONAL
    return context


def _ask_for_certificates(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:
        msg = f"tls.clientCaFile {path}: {ssl_words(error)}"
        raise MalformedError(msg) from error


def check_readable(field: str, path: str) -> None:
    """MalformedError, since OpenSSL does not say which of its files it could not open."""
    try:
        Path(path).open("rb").close()
    except OSError as error:
        msg = f"{field} {path}: {error.strerror}"
        raise MalformedError(msg) from error


def _no_password() -> str:
    """OpenSSL would ask at the terminal."""
    return ""


def ssl_words(error: OSError) -> str:
    """What OpenSSL did not like of a file."""
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return (reason or "no PEM file of what is expected").lower().replace("_", " ")
