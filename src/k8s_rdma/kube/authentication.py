"""Calls of a lightkube client, made with what a user's token file or exec plugin gives.

Source: client-go, transport/token_source.go and plugin/pkg/client/auth/exec/exec.go.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import httpx2

from k8s_rdma.kube.client_certificates import ClientCertificate
from k8s_rdma.kube.exec_plugin import plugin_credential
from k8s_rdma.kube.tokens import file_token

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from lightkube.config.models import User

    from k8s_rdma.kube.tokens import Credential

_UNAUTHORIZED = 401


def authenticate(http: httpx2.Client | httpx2.AsyncClient, user: User | None, *, timeout_s: float) -> None:
    """Have the calls of a client made with what a user's file or plugin gives.

    timeout_s: for an exec plugin. As to client-go, tokens go before what a plugin gives, and a certificate of
    the user's own before that of a plugin.
    """
    if user is None:
        return
    if user.token_file:
        http.auth = Fetched(partial(file_token, user.token_file))
    elif user.exec and not user.token:
        own = user.client_cert or user.client_cert_data
        http.auth = Fetched(
            partial(plugin_credential, user.exec, timeout_s),
            None if own else ClientCertificate(http),
            source=f"exec plugin {user.exec.command}",
        )


class Fetched(httpx2.Auth):
    """A credential that is fetched for the first call, and anew once it has expired or is refused (401)."""

    def __init__(
        self,
        fetch: Callable[[], Credential],
        certificate: ClientCertificate | None = None,
        *,
        source: str = "",
    ) -> None:
        """certificate: where that of a credential goes; source: whose it is, in messages."""
        self._fetch = fetch
        self._certificate = certificate
        self._source = source
        self._kept: Credential | None = None
        self._fetching = asyncio.Lock()

    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Of a blocking client."""
        if (sent := self._usable()) is not None:
            response = yield _bearing(sent, request)
            if response.status_code != _UNAUTHORIZED:
                return
            response.read()  # its connection may be closed now
        fetched = self._fetch()
        if self._certificate and self._certificate.load(fetched.certificate, self._source):
            self._certificate.close()
        self._kept = fetched
        yield _bearing(fetched, request)

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """As `sync_auth_flow`; what it waits for is waited for elsewhere, and by one call for all."""
        if (sent := self._usable()) is not None:
            response = yield _bearing(sent, request)
            if response.status_code != _UNAUTHORIZED:
                return
            await response.aread()
        yield _bearing(await self._fetched_after(sent), request)

    async def _fetched_after(self, refused: Credential | None) -> Credential:
        """Another than the refused one; perhaps what another call has fetched meanwhile."""
        async with self._fetching:
            if (kept := self._usable()) is not None and kept is not refused:
                return kept
            fetched = await asyncio.to_thread(self._fetch)
            if self._certificate and self._certificate.load(fetched.certificate, self._source):
                await self._certificate.aclose()
            self._kept = fetched
            return fetched

    def _usable(self) -> Credential | None:
        kept = self._kept
        expired = kept is not None and kept.expires is not None and kept.expires <= datetime.now(UTC)
        return None if expired else kept


def _bearing(credential: Credential, request: httpx2.Request) -> httpx2.Request:
    if credential.token is not None:
        request.headers["Authorization"] = f"Bearer {credential.token}"
    return request
