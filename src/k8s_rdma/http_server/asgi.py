"""ASGI applications: access, responses that are rendered once and sent many times, metrics.

Access is by open paths, bearer tokens (RFC 6750, section 2.1) and TLS from certificate files. Metrics are in
the Prometheus text format 0.0.4. The types are those of ASGI's "HTTP & WebSocket ASGI Message Format",
version 2.3. Metric families are collected at a scrape, because the state that they show counts for itself.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Container,
    Iterable,
    Mapping,
    MutableMapping,
)
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Sample

from k8s_rdma.config.authorities import demand_rfc5280
from k8s_rdma.config.bounded_files import read_named_file
from k8s_rdma.config.reloading import Reloaded
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.http_error import Error, ErrorDocument
from k8s_rdma.wire.json import Document, joined, size_of
from k8s_rdma.wire.tokens import TOKEN_FIELD

if TYPE_CHECKING:
    from k8s_rdma.config.tls import TlsConfig

Fields: TypeAlias = list[tuple[bytes, bytes]]
"""Header fields, with lower-case names."""
Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_SINK = "k8s_rdma.body_sink"
"""ASGI extension: a function that takes the `BodySink` of a request, if the server has one for it."""

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
"""The content type of metrics."""

_NO_CONTENT = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
"""Statuses whose responses have neither content nor its length (RFC 9110, sections 8.6 and 15.4.5)."""

Samples: TypeAlias = Iterable[tuple[Mapping[str, str], float]]
"""Labels and values. Within a family samples may differ in the names of their labels."""

PROBE_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths for everyone: kubelet's probes send no token."""

READ_METHODS = ("GET", "HEAD")

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_SCHEME = b"bearer "
_TOKEN_FIELDS = (b"authorization", TOKEN_FIELD.encode())


class BodySink(Protocol):
    """Receiver of a large body's bytes in place of messages: the kernel alone copies them.

    The last message, after the last byte or a refusal, has no bytes of the body.
    """

    def get_buffer(self) -> memoryview | None:
        """Return memory for the next bytes, up to the announced end of the body at most.

        None if they are to be dropped.
        """

    def buffer_updated(self, size: int) -> bool:
        """Take so many bytes, which have come; False if the body is refused."""


class Answer:
    """A response, as an ASGI application that sends it."""

    __slots__ = ("_fields", "body", "status")

    def __init__(
        self,
        body: Document | str = b"",
        *,
        status: int = HTTPStatus.OK,
        content_type: str = TEXT,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = HTTPStatus(status)
        self.body = body.encode() if isinstance(body, str) else body
        fields = dict(headers or {})
        if self.status not in _NO_CONTENT:
            fields |= {"content-type": content_type, "content-length": str(size_of(self.body))}
        self._fields: Fields = [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]

    def rendered(self, added: Fields, *, body: bool) -> bytes:
        """Render HTTP/1.1, with the server's own fields, such as the date, and with or without the body."""
        head = render_head(self.status, [*added, *self._fields])
        return head + joined(self.body) if body else head

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the response."""
        await send({"type": "http.response.start", "status": self.status.value, "headers": self._fields})
        await send({"type": "http.response.body", "body": self.body})


def render_head(status: int, fields: Fields) -> bytes:
    """Render the head of an HTTP/1.1 response."""
    lines = b"".join([b"%b: %b\r\n" % field for field in fields])
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, HTTPStatus(status).phrase.encode(), lines)


def json_answer(document: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Encode a document as a response."""
    return Answer(msgspec.json.encode(document), status=status, content_type=JSON, headers=headers)


def error_answer(status: int, error: Error, *, headers: Mapping[str, str] | None = None) -> Answer:
    """Build the response of an error, in the form that all errors have."""
    return json_answer(ErrorDocument(error=error), status=status, headers=headers)


def exposition(metrics: Iterable[Metric]) -> bytes:
    """Render metric families in the text format."""
    return generate_latest(_Collected(metrics))


def gauge(name: str, help_text: str, samples: Samples) -> Metric:
    """Build a gauge from its samples."""
    metric = GaugeMetricFamily(name, help_text)
    metric.samples = [Sample(name, dict(labels), value) for labels, value in samples]
    return metric


def counter(name: str, help_text: str, samples: Samples) -> Metric:
    """Build a counter from its samples; its name ends with `_total`."""
    metric = CounterMetricFamily(name, help_text)
    metric.samples = [Sample(name, dict(labels), value) for labels, value in samples]
    return metric


@dataclass(frozen=True, slots=True)
class _Collected:
    """A collector of existing families."""

    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self.metrics


class AccessConfig(Protocol):
    """The keys of a configuration file that control access."""

    @property
    def tls(self) -> TlsConfig | None:
        """The files, if it serves TLS."""

    @property
    def token_file(self) -> str | None:
        """Bearer tokens, one a line."""

    @property
    def open_paths(self) -> Collection[str] | None:
        """Paths that require no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Access to a server: TLS, and the paths that require a bearer token.

    tls, tokens: the current ones, if the server has TLS and if tokens give access.
    open_paths: the paths without a token, in addition to `PROBE_PATHS`. None: every path if there are no
        tokens, else no further path.
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
        """Return the answer to a request without access to a path, if it has no access."""
        if self.is_open(path) or (self.tokens is not None and self.tokens().accept(fields)):
            return None
        if self.tokens is None:
            message = "this path is not among openPaths, and there is no tokenFile whose tokens would open it"
            return error_answer(HTTPStatus.FORBIDDEN, Error(reason="forbidden", message=message))
        message = "this path requires `Authorization: Bearer` with a token of this server"
        error = Error(reason="unauthorized", message=message)
        return error_answer(HTTPStatus.UNAUTHORIZED, error, headers={"www-authenticate": "Bearer"})

    def refuse(self, scope: Scope, paths: Container[str], posts: Container[str] = ()) -> Answer | None:
        """Refuse a request without access, for no path, or with a method that its path does not have.

        posts: those of the paths that take POST alone; the others are read.
        """
        if refusal := self.refusal(scope["path"], scope["headers"]):
            return refusal
        if scope["path"] not in paths:
            return error_answer(404, Error(reason="not_found", message="there is no such path; / lists them"))
        methods = ("POST",) if scope["path"] in posts else READ_METHODS
        if scope["method"] not in methods:
            message = (
                "this path answers POST"
                if scope["path"] in posts
                else "this server is read-only: it answers GET and HEAD"
            )
            error = Error(reason="method_not_allowed", message=message)
            return error_answer(405, error, headers={"allow": ", ".join(methods)})
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

    The time of a comparison does not depend on them, because digests are compared, with all of them.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests = [sha256(token.encode()).digest() for token in tokens]

    def accept(self, fields: Iterable[tuple[bytes, bytes]]) -> bool:
        """Report whether header fields (names in lower case) have one of them, as `bearer` reads it."""
        return self.bearer(fields) is not None

    def bearer(self, fields: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """Return the digest of the accepted token in header fields, if they have one.

        It is in one `Authorization`, or by itself in one `TOKEN_FIELD`.
        """
        values = [(name, value) for name, value in fields if name in _TOKEN_FIELDS]
        if len(values) != 1:
            return None
        [(name, value)] = values
        if name == b"authorization":
            if value[: len(_SCHEME)].lower() != _SCHEME:
                return None
            value = value[len(_SCHEME) :]
        bearer_digest = sha256(value.strip(b" ")).digest()
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
        lines = read_named_file(path).decode("ascii").splitlines()
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

    client_names: as in `TlsConfig`.
    demand: whether a client without an accepted certificate is refused.
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

    MalformedError names the field of an unusable file.

    demand: whether clients must have a certificate if there is a client_ca_file. Else TLS requests one, and a
        client with a wrong one is refused.
    """
    paths = [config.cert_file, config.key_file, *([config.client_ca_file] if config.client_ca_file else [])]
    contexts = Reloaded(lambda: _load_context(config, demand=demand), *map(Path, paths), clock=clock)
    return ServerTls(contexts, frozenset(config.client_names), demand)


def _load_context(config: TlsConfig, *, demand: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, "tls", config.cert_file, config.key_file)
    if config.client_ca_file is not None:
        _load_authorities(context, "tls.clientCaFile", config.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED if demand else ssl.CERT_OPTIONAL
    return context


class ClientTlsConfig(Protocol):
    """The keys of a configuration file for a client's trust in servers, and for its own certificate."""

    @property
    def ca_file(self) -> str | None:
        """The servers' CA; None for the system's."""

    @property
    def cert_file(self) -> str | None:
        """The client's certificate, if it has one."""

    @property
    def key_file(self) -> str | None:
        """The key of the certificate."""


def client_tls(
    config: ClientTlsConfig,
    *,
    field: str,
    verification: Callable[[ssl.SSLContext], None] = demand_rfc5280,
    clock: Callable[[], float] = monotonic,
) -> Callable[[], ssl.SSLContext]:
    """Read the TLS of a client; the context is built again when a file has changed.

    field: of the configuration; MalformedError names the key of an unusable file below it.
    verification: a function of `config.authorities`.
    """
    paths = (config.ca_file, config.cert_file, config.key_file)
    files = (Path(path) for path in paths if path is not None)
    return Reloaded(lambda: _load_client_context(config, field, verification), *files, clock=clock)


def _load_client_context(
    config: ClientTlsConfig, field: str, verification: Callable[[ssl.SSLContext], None]
) -> ssl.SSLContext:
    context = (
        ssl.create_default_context() if config.ca_file is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    verification(context)
    if config.ca_file is not None:
        _load_authorities(context, f"{field}.caFile", config.ca_file)
    if config.cert_file is not None and config.key_file is not None:
        _load_certificate(context, field, config.cert_file, config.key_file)
    return context


def _load_certificate(context: ssl.SSLContext, field: str, cert_file: str, key_file: str) -> None:
    _check_readable(f"{field}.certFile", cert_file)
    _check_readable(f"{field}.keyFile", key_file)
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except OSError as error:  # ssl.SSLError among them
        msg = f"{field}.certFile {cert_file} and {field}.keyFile {key_file}: {_ssl_reason(error)}"
        raise MalformedError(msg) from error


def _load_authorities(context: ssl.SSLContext, field: str, path: str) -> None:
    _check_readable(field, path)
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:
        msg = f"{field} {path}: {_ssl_reason(error)}"
        raise MalformedError(msg) from error


def _check_readable(field: str, path: str) -> None:
    """Open a file for a MalformedError with its field: OpenSSL does not say which file it could not open."""
    try:
        Path(path).open("rb").close()
    except OSError as error:
        msg = f"{field} {path}: {error.strerror}"
        raise MalformedError(msg) from error


def _no_password() -> str:
    """Answer with no password: OpenSSL would ask at the terminal."""
    return ""


def _ssl_reason(error: OSError) -> str:
    """Return OpenSSL's reason for rejecting a file."""
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return (reason or "no PEM file of what is expected").lower().replace("_", " ")
