"""TLS from certificate files."""

from __future__ import annotations

import ssl
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from k8s_rdma.config.reloaded import Reloaded
from k8s_rdma.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.config.tls import TlsConfig


def tls_context(
    config: TlsConfig, *, demand: bool = True, clock: Callable[[], float] = monotonic
) -> Callable[[], ssl.SSLContext]:
    """The context for a connection of now, made anew when a file has changed.

    demand: whether clients must have a certificate where there is a client_ca_file; else they are asked for
    one, and whoever shows a wrong one is not served. MalformedError names the field whose file is none.
    """
    paths = [config.cert_file, config.key_file, *([config.client_ca_file] if config.client_ca_file else [])]
    return Reloaded(lambda: _load(config, demand=demand), *map(Path, paths), clock=clock)


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
