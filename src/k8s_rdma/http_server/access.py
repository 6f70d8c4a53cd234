"""Access to an HTTP server: open paths, bearer tokens (RFC 6750, section 2.1), TLS from certificate files."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from k8s_rdma.config.reloaded import Reloaded
from k8s_rdma.errors import MalformedError
from k8s_rdma.http_server.answer import Answer, error_answer
from k8s_rdma.wire.rest import Error

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping

    from k8s_rdma.config.files import TlsConfig
    from k8s_rdma.http_server.answer import Scope

PROBE_PATHS = frozenset({"/healthz", "/readyz"})
"""Open to everybody: kubelet's probes bear no token."""

READ_METHODS = ("GET", "HEAD")

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_SCHEME = b"bearer "


class AccessConfig(Protocol):
    """The keys of a configuration file that say who is served."""

    @property
    def tls(self) -> TlsConfig | None:
        """The files; None for plain HTTP."""

    @property
    def token_file(self) -> str | None:
        """Bearer tokens, one a line."""

    @property
    def open_paths(self) -> Collection[str] | None:
        """Paths that demand no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Whether a server speaks TLS, and which of its paths demand a bearer token.

    tls, tokens: those of now; None for plain HTTP, and where no token opens anything.
    open_paths: demand none, as `PROBE_PATHS`; None: every path where there are no tokens, else no other.
    """

    tls: ServerTls | None = None
    tokens: Callable[[], Tokens] | None = None
    open_paths: frozenset[str] | None = None

    def is_open(self, path: str) -> bool:
        """Whether everybody may ask for a path."""
        if path in PROBE_PATHS:
            return True
        return self.tokens is None if self.open_paths is None else path in self.open_paths

    def refusal(self, path: str, fields: Iterable[tuple[bytes, bytes]]) -> Answer | None:
        """Why the client that sent these header fields may not ask for a path; None if it may."""
        if self.is_open(path) or (self.tokens is not None and self.tokens().accept(fields)):
            return None
        if self.tokens is None:
            message = "this path is not among openPaths, and there is no tokenFile whose tokens would open it"
            return error_answer(HTTPStatus.FORBIDDEN, Error(reason="forbidden", message=message))
        message = "it takes `Authorization: Bearer` and a token of this server"
        error = Error(reason="unauthorized", message=message)
        return error_answer(HTTPStatus.UNAUTHORIZED, error, headers={"www-authenticate": "Bearer"})

    def refuse(self, scope: Scope, paths: Container[str]) -> Answer | None:
        """Refuse a request without access, for no path, or with a method that changes something."""
        if refusal := self.refusal(scope["path"], scope["headers"]):
            return refusal
        if scope["path"] not in paths:
            return error_answer(404, Error(reason="not_found", message="there is no such path; / lists them"))
        if scope["method"] not in READ_METHODS:
            message = "this server changes nothing: GET and HEAD are all that it answers"
            error = Error(reason="method_not_allowed", message=message)
            return error_answer(405, error, headers={"allow": ", ".join(READ_METHODS)})
        return None

    def client(self, scope: Scope) -> tuple[str, str, bytes]:
        """Who sent a request: its address, and what it proved: the certificate's name, the token's digest."""
        address = scope["client"][0] if scope["client"] else ""
        certificate = scope.get("extensions", {}).get("tls", {}).get("client_cert_name", "")
        token = self.tokens().bearer(scope["headers"]) if self.tokens is not None else None
        return address, certificate, token or b""


EVERYBODY = Access()


def access_of(config: AccessConfig) -> Access:
    """As a configuration says; MalformedError names the key whose file is unusable."""
    return Access(
        tls=None if config.tls is None else tls_context(config.tls),
        tokens=None if config.token_file is None else tokens_of(config.token_file, field="tokenFile"),
        open_paths=None if config.open_paths is None else frozenset(config.open_paths),
    )


class Tokens:
    """Those that are accepted.

    How long a comparison takes tells nothing of them: digests are compared, and all of them.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests = [sha256(token.encode()).digest() for token in tokens]

    def accept(self, fields: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether header fields (names in lower case) bear one of them: one `Authorization`, no more."""
        return self.bearer(fields) is not None

    def bearer(self, fields: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """The digest of the token that header fields bear; None when it is none of these."""
        values = [value for name, value in fields if name == b"authorization"]
        if len(values) != 1 or values[0][: len(_SCHEME)].lower() != _SCHEME:
            return None
        bearer_digest = sha256(values[0][len(_SCHEME) :].strip(b" ")).digest()
        is_accepted = any([compare_digest(bearer_digest, digest) for digest in self._digests])  # noqa: C419  each is compared
        return bearer_digest if is_accepted else None


def tokens_of(path: str, *, field: str, clock: Callable[[], float] = monotonic) -> Callable[[], Tokens]:
    """The tokens of now, read anew when the file has changed: one a line; empty lines and `#` lines are none.

    MalformedError names the field, and the line that is no token.
    """
    return Reloaded(lambda: Tokens(_read_tokens(Path(path), field)), Path(path), clock=clock)


def token_of(path: str, *, field: str, clock: Callable[[], float] = monotonic) -> Callable[[], str]:
    """The one token of now that is borne to others; the file as in `tokens_of`."""
    return Reloaded(lambda: _read_token(Path(path), field), Path(path), clock=clock)


def _read_token(path: Path, field: str) -> str:
    found = _read_tokens(path, field)
    if len(found) > 1:
        msg = f"{field} {path}: holds {len(found)} tokens, and only one can be borne"
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
    """MalformedError, since OpenSSL does not say which of its files it could not open."""
    try:
        Path(path).open("rb").close()
    except OSError as error:
        msg = f"{field} {path}: {error.strerror}"
        raise MalformedError(msg) from error


def _no_password() -> str:
    """OpenSSL would ask at the terminal."""
    return ""


def ssl_reason(error: OSError) -> str:
    """What OpenSSL did not like of a file."""
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return (reason or "no PEM file of what is expected").lower().replace("_", " ")
