"""Who is served by a node's server or device plugin, and which paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from k8s_rdma.http_server.answer import Answer, error_answer
from k8s_rdma.http_server.tls import ServerTls, tls_context
from k8s_rdma.http_server.tokens import Tokens, tokens_of
from k8s_rdma.wire.rest_error import Error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from k8s_rdma.config.files import TlsConfig
    from k8s_rdma.http_server.answer import Scope

PROBE_PATHS = frozenset({"/healthz", "/readyz"})
"""Open to everybody: kubelet's probes bear no token."""


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
