"""Who may ask the extender: the holder of a client certificate or of a bearer token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.http_server.tls import ServerTls, tls_context
from k8s_rdma.http_server.tokens import Tokens, tokens_of

if TYPE_CHECKING:
    from k8s_rdma.extender.config import ExtenderConfig
    from k8s_rdma.http_server.asgi import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What proves a client to be one that may ask; without any of it everybody may.

    tls, tokens: those of now; None for plain HTTP, and for no tokens. certificates: whether clients may show
    one. Where both are configured either will do: kube-scheduler can show a certificate and no token.
    """

    tls: ServerTls | None = None
    tokens: Callable[[], Tokens] | None = None
    certificates: bool = False

    def admits(self, scope: Scope) -> bool:
        """Whether the request's client may ask."""
        if not self.certificates and self.tokens is None:
            return True
        if self.certificates and "client_cert_name" in scope.get("extensions", {}).get("tls", {}):
            return True
        return self.tokens is not None and self.tokens().accept(scope["headers"])

    def demand(self) -> str:
        """What a client that may not ask is told."""
        named = " with one of clientNames" if self.tls is not None and self.tls.client_names else ""
        wanted = [
            *([f"a client certificate of clientCaFile{named}"] if self.certificates else []),
            *(["`Authorization: Bearer` and a token of tokenFile"] if self.tokens is not None else []),
        ]
        return f"it takes {' or '.join(wanted)}"


EVERYBODY = Access()


def access_of(config: ExtenderConfig) -> Access:
    """As the configuration says; MalformedError names the field whose file is unusable.

    Certificates are asked for, not demanded, by TLS itself: kubelet's probes have none.
    """
    tls = config.tls
    return Access(
        tls=None if tls is None else tls_context(tls, demand=False),
        tokens=None if config.token_file is None else tokens_of(config.token_file, field="tokenFile"),
        certificates=tls is not None and tls.client_ca_file is not None,
    )
