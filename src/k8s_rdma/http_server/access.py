"""Access to an HTTP server: open paths, bearer tokens (RFC 6750, section 2.1), TLS from certificate files."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from k8s_rdma.config.reloaded import Reloaded
from k8s_rdma.errors import MalformedError
from k8s_rdma.http_server.answer import Answer, Scope, error_answer
from k8s_rdma.wire.rest import Error

if TYPE_CHECKING:
    from k8s_rdma.config.files import TlsConfig

PROBE_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths for everyone: kubelet's probes send no token."""

READ_METHODS = ("GET", "HEAD")

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_SCHEME = b"bearer "


class AccessConfig(Protocol):
    """The keys of a configuration file that control access."""

    @property
    def tls(self) -> TlsConfig | None:
        """The files; None for plain HTTP."""

    @property
    def token_file(self) -> str | None:
        """Bearer tokens, one a line."""

    @property
    def open_paths(self) -> Collection[str] | None:
        """Paths that require no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Access to a server: TLS, and the paths that require a bearer token.

    tls, tokens: the current ones; None for plain HTTP, and where no token gives access.
    open_paths: require none, as `PROBE_PATHS`; None: every path where there are no tokens, else no other.
    """

    tls: ServerTls | None = None
    tokens: Callable[[], Tokens] | None = None
    open_paths: frozenset[str] | None = None

    def is_open(self, path: str) -> bool:
        """Report whether everyone has access to a path."""
        if path in PROBE_PATHS:
            return True
        return self.tokens is None if self.open_paths is None else path in self.open_paths

    def refusal(self, path: str, fields: Iterable[tuple[bytes, bytes]]) -> Answer | None:
        """Return the answer to a request without access to a path; None for one with access."""
        if self.is_open(path) or (self.tokens is not None and self.tokens().accept(fields)):
            return None
        if self.tokens is None:
            message = "this path is not among openPaths, and there is no tokenFile whose tokens would open it"
            return error_answer(HTTPStatus.FORBIDDEN, Error(reason="forbidden", message=message))
        message = "this path requires `Authorization: Bearer` with a token of this server"
        error = Error(reason="unauthorized", message=message)
        return error_answer(HTTPStatus.UNAUTHORIZED, error, headers={"www-authenticate": "Bearer"})

    def refuse(self, scope: Scope, paths: Container[str]) -> Answer | None:
        """Refuse a request without access, for no path, or with a method that changes something."""
        if refusal := self.refusal(scope["path"], scope["headers"]):
            return refusal
        if scope["path"] not in paths:
            return error_answer(404, Error(reason="not_found", message="there is no such path; / lists them"))
        if scope["method"] not in READ_METHODS:
            message = "this server is read-only: it answers GET and HEAD"
            error = Error(reason="method_not_allowed", message=message)
            return error_answer(405, error, headers={"allow": ", ".join(READ_METHODS)})
        return None

    def client(self, scope: Scope) -> tuple[str, str, bytes]:
        """Return the client of a request: its address, certificate's name and token's digest."""
        address = scope["client"][0] if scope["client"] else ""
        certificate = scope.get("extensions", {}).get("tls", {}).get("client_cert_name", "")
        token = self.tokens().bearer(scope["headers"]) if self.tokens is not None else None
        return address, certificate, token or b""


EVERYBODY = Access()


def access_of(config: AccessConfig) -> Access:
    """Read the configured access; MalformedError names the key whose file is unusable."""
    return Access(
        tls=None if config.tls is None else tls_context(config.tls),
        tokens=None if config.token_file is None else tokens_of(config.token_file, field="tokenFile"),
        open_paths=None if config.open_paths is None else frozenset(config.open_paths),
    )


class Tokens:
    """The accepted tokens.

    The time of a comparison tells nothing about them: digests are compared, with all of them.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests = [sha256(token.encode()).digest() for token in tokens]

    def accept(self, fields: Iterable[tuple[bytes, bytes]]) -> bool:
        """Report whether header fields (names in lower case) have one of them, in one `Authorization`."""
        return self.bearer(fields) is not None

    def bearer(self, fields: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """Return the digest of the accepted token in header fields; None without one."""
        values = [value for name, value in fields if name == b"authorization"]
        if len(values) != 1 or values[0][: len(_SCHEME)].lower() != _SCHEME:
            return None
        bearer_digest = sha256(values[0][len(_SCHEME) :].strip(b" ")).digest()
        is_accepted = any([compare_digest(bearer_digest, digest) for digest in self._digests])  # noqa: C419  each is compared
        return bearer_digest if is_accepted else None


def tokens_of(path: str, *, field: str, clock: Callable[[], float] = monotonic) -> Callable[[], Tokens]:
    """Return the tokens of a file, read again when it has changed: one a line.

    Empty and `#` lines are skipped.

    MalformedError names the field, and the line that is no token.
    """
    return Reloaded(lambda: Tokens(_read_tokens(Path(path), field)), Path(path), clock=clock)


def token_of(path: str, *, field: str, clock: Callable[[], float] = monotonic) -> Callable[[], str]:
    """Return the one token of a file, to send to others; the file as in `tokens_of`."""
    return Reloaded(lambda: _read_token(Path(path), field), Path(path), clock=clock)


def _read_token(path: Path, field: str) -> str:
    found = _read_tokens(path, field)
    if len(found) > 1:
        msg = f"{field} {path}: holds {len(found)} tokens; only one can be sent"
        raise MalformedError(msg)
    return found[0]


def _read_tokens(path: Path, field: str) -> list[str]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError as error:
        msg = f"{field} {path}: {error.strerror}"
        raise MalformedError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{field} {path}: holds bytes that are no ASCII text"
        raise MalformedError(msg) from error
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    tokens = [(number, line) for number, line in numbered if line and not line.startswith("#")]
    for number, line in tokens:
        if not _TOKEN.fullmatch(line):
            msg = (
                f"{field} {path}: line {number} is no bearer token (letters, digits, -._~+/ and = at its end)"
            )
            raise MalformedError(msg)
    if not tokens:
        msg = f"{field} {path}: holds no token"
        raise MalformedError(msg)
    return [line for _, line in tokens]


@dataclass(frozen=True, slots=True)
class ServerTls:
    """TLS of a server: the context for the next connection, and the accepted client certificates.

    client_names: as in `TlsConfig`. demand: whether a client without an accepted certificate is refused.
    """

    contexts: Callable[[], ssl.SSLContext]
    client_names: frozenset[str] = frozenset()
    demand: bool = True

    def __call__(self) -> ssl.SSLContext:
        """Return the current context."""
        return self.contexts()

    def admits(self, certificate: Mapping[str, Any]) -> bool:
        """Report whether a verified certificate, as of `SSLSocket.getpeercert`, has an accepted name."""
        return not self.client_names or not self.client_names.isdisjoint(certificate_names(certificate))


def certificate_names(certificate: Mapping[str, Any]) -> list[str]:
    """Return the common name of the subject, then DNS names, URIs and mail addresses.

    See RFC 5280, section 4.2.1.6.
    """
    subject = [
        value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"
    ]
    kinds = ("DNS", "URI", "email")
    return subject + [value for kind, value in certificate.get("subjectAltName", ()) if kind in kinds]


def tls_context(
    config: TlsConfig, *, demand: bool = True, clock: Callable[[], float] = monotonic
) -> ServerTls:
    """Read the configured TLS; the context is built again when a file has changed.

    demand: whether clients must have a certificate where there is a client_ca_file; else TLS requests one,
    and a client with a wrong one is refused. MalformedError names the field of an unusable file.
    """
    paths = [config.cert_file, config.key_file, *([config.client_ca_file] if config.client_ca_file else [])]
    contexts = Reloaded(lambda: _load_context(config, demand=demand), *map(Path, paths), clock=clock)
    return ServerTls(contexts, frozenset(config.client_names), demand)


def _load_context(config: TlsConfig, *, demand: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for field, path in (("tls.certFile", config.cert_file), ("tls.keyFile", config.key_file)):
        check_readable(field, path)
    try:
        context.load_cert_chain(config.cert_file, config.key_file, password=_no_password)
    except OSError as error:  # ssl.SSLError among them
        msg = f"tls.certFile {config.cert_file} and tls.keyFile {config.key_file}: {ssl_reason(error)}"
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
        msg = f"tls.clientCaFile {path}: {ssl_reason(error)}"
        raise MalformedError(msg) from error


def check_readable(field: str, path: str) -> None:
    """Open a file for a MalformedError with its field: OpenSSL does not say which file it could not open."""
    try:
        Path(path).open("rb").close()
    except OSError as error:
        msg = f"{field} {path}: {error.strerror}"
        raise MalformedError(msg) from error


def _no_password() -> str:
    """Answer with no password: OpenSSL would ask at the terminal."""
    return ""


def ssl_reason(error: OSError) -> str:
    """Return OpenSSL's reason for rejecting a file."""
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return (reason or "no PEM file of what is expected").lower().replace("_", " ")
