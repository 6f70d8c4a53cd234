"""Certificates that connections to the API server are made with, where they come after the client was made.

Source: client-go, `refreshCredsLocked` in plugin/pkg/client/auth/exec/exec.go: for another certificate all
connections are closed.
"""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Any

from lightkube.core.exceptions import ConfigError

if TYPE_CHECKING:
    import httpx2


class ClientCertificate:
    """That of a lightkube client: of the connections that it makes from now on."""

    def __init__(self, http: httpx2.Client | httpx2.AsyncClient) -> None:
        self._transports: tuple[Any, ...] = (
            http._transport,
            *filter(None, http._mounts.values()),
        )  # no other way
        self._loaded: str | None = None

    def load(self, certificate: str | None, source: str) -> bool:
        """Whether there may be connections with another one, which are then to be closed.

        certificate: chain and key, PEM. ConfigError when it cannot be used, or there is none any more.
        """
        before = self._loaded
        if certificate == before:
            return False
        if certificate is None:
            msg = f"{source}: gave a certificate, and now gives none, which only a restart can take back"
            raise ConfigError(msg)
        for transport in self._transports:
            _load(transport._pool._ssl_context, certificate, source)
        self._loaded = certificate
        return before is not None

    def close(self) -> None:
        """Close the connections of a blocking client, which makes new ones for its next calls."""
        for transport in self._transports:
            transport.close()

    async def aclose(self) -> None:
        """As `close`. Calls and watches that are under way end as if their connection were lost."""
        for transport in self._transports:
            await transport.aclose()


def _load(context: ssl.SSLContext, certificate: str, source: str) -> None:
    """By a file in memory: ssl takes nothing but paths, and a container's root may be read-only."""
    with os.fdopen(os.memfd_create("client-certificate"), "w", encoding="utf-8") as file:
        file.write(certificate)
        file.flush()
        try:
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")  # not to be asked for
        except ssl.SSLError as error:
            msg = f"{source}: its certificate and key cannot be used: {error.reason or 'no PEM'}"
            raise ConfigError(msg) from error
