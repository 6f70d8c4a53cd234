"""Credentials as HTTP carries them: a bearer token, or a client certificate with its key.

Both may come from files or exec plugins, and are renewed. No message here shows a token.

Source: client-go: transport/token_source.go, `refreshCredsLocked` in plugin/pkg/client/auth/exec/exec.go (for
another certificate all connections are closed).
"""

from __future__ import annotations

import asyncio
import os
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx2
from lightkube.core.exceptions import ConfigError

from k8s_rdma.config.bounded_files import read_named_file
from k8s_rdma.kube.bounded_http import MAX_REFUSAL_BYTES, aread_body, read_body

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

_UNAUTHORIZED = 401
_MAX_TOKEN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A token, a certificate, or both. certificate: its chain and its key, PEM. expires: None for never."""

    token: str | None = field(default=None, repr=False)
    certificate: str | None = field(default=None, repr=False)
    expires: datetime | None = None


def usable_token(text: str, source: str) -> str:
    """Return the token, without white space around it; ConfigError if it cannot be sent in a header."""
    token = text.strip()
    if not token:
        msg = f"{source}: the token is empty"
        raise ConfigError(msg)
    if not (token.isascii() and token.isprintable()):
        msg = f"{source}: the token has line breaks or other signs that no header can carry; wanted it alone"
        raise ConfigError(msg)
    return token


def file_token(path: str) -> Credential:
    """Read a token from a file; ConfigError names a file without a readable one."""
    source = f"tokenFile {path}"
    try:
        text = read_named_file(path, _MAX_TOKEN_BYTES).decode()
    except OSError as error:
        msg = f"{source}: {error.strerror}"
        raise ConfigError(msg) from error
    except ValueError:
        msg = f"{source}: no text"
        raise ConfigError(msg) from None  # it holds the bytes
    return Credential(token=usable_token(text, source))


class ClientCertificate:
    """The client certificate of a lightkube client, for connections that it makes from now on."""

    def __init__(self, http: httpx2.Client | httpx2.AsyncClient) -> None:
        self._transports: tuple[Any, ...] = (
            http._transport,
            *filter(None, http._mounts.values()),
        )  # no other way
        self._loaded: str | None = None

    def load(self, certificate: str | None, source: str) -> bool:
        """Report whether there may be connections with another certificate, which are then to be closed.

        ConfigError if it cannot be used, or is missing after one was used.

        certificate: chain and key, PEM.
        """
        previous = self._loaded
        if certificate == previous:
            return False
        if certificate is None:
            msg = f"{source}: gave a certificate, and now gives none, which only a restart can take back"
            raise ConfigError(msg)
        for transport in self._transports:
            load_certificate(transport._pool._ssl_context, certificate, source)
        self._loaded = certificate
        return previous is not None

    def close(self) -> None:
        """Close the connections of a blocking client, which makes new ones for its next calls."""
        for transport in self._transports:
            transport.close()

    async def aclose(self) -> None:
        """Close; calls and watches under way end as if their connection were lost."""
        for transport in self._transports:
            await transport.aclose()


def load_certificate(context: ssl.SSLContext, certificate: str, source: str) -> None:
    """Load chain and key, PEM; ConfigError when they cannot be used.

    By a file in memory, because ssl takes only paths, and a container's root may be read-only.
    """
    with os.fdopen(os.memfd_create("client-certificate"), "w", encoding="utf-8") as file:
        file.write(certificate)
        file.flush()
        try:
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")  # not to be asked for
        except ssl.SSLError as error:
            msg = f"{source}: its certificate and key cannot be used: {error.reason or 'no PEM'}"
            raise ConfigError(msg) from error


class Fetched(httpx2.Auth):
    """A credential that is fetched for the first call, and again once it has expired or is refused (401)."""

    def __init__(
        self,
        fetch: Callable[[], Credential],
        certificate: ClientCertificate | None = None,
        *,
        source: str = "",
    ) -> None:
        """Begin without one. certificate: loads that of a credential; source: its owner, for messages."""
        self._fetch = fetch
        self._certificate = certificate
        self._source = source
        self._cached: Credential | None = None
        self._fetching = asyncio.Lock()

    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Authenticate a blocking client's request."""
        if (sent := self._usable()) is not None:
            response = yield _bearing(sent, request)
            if response.status_code != _UNAUTHORIZED:
                return
            read_body(response, MAX_REFUSAL_BYTES)  # its connection may be closed now
        fetched = self._fetch()
        if self._certificate and self._certificate.load(fetched.certificate, self._source):
            self._certificate.close()
        self._cached = fetched
        yield _bearing(fetched, request)

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Authenticate a request; one refresh in another thread serves all concurrent calls."""
        if (sent := self._usable()) is not None:
            response = yield _bearing(sent, request)
            if response.status_code != _UNAUTHORIZED:
                return
            await aread_body(response, MAX_REFUSAL_BYTES)
        yield _bearing(await self._fetched_after(sent), request)

    async def _fetched_after(self, refused: Credential | None) -> Credential:
        """Return another credential than the refused one; another call may have fetched it since."""
        async with self._fetching:
            if (cached := self._usable()) is not None and cached is not refused:
                return cached
            fetched = await asyncio.to_thread(self._fetch)
            if self._certificate and self._certificate.load(fetched.certificate, self._source):
                await self._certificate.aclose()
            self._cached = fetched
            return fetched

    def _usable(self) -> Credential | None:
        cached = self._cached
        expired = cached is not None and cached.expires is not None and cached.expires <= datetime.now(UTC)
        return None if expired else cached


def _bearing(credential: Credential, request: httpx2.Request) -> httpx2.Request:
    if credential.token is not None:
        request.headers["Authorization"] = f"Bearer {credential.token}"
    return request
