"""Bearer tokens for the API server: as they are written, from a file, by an exec plugin.

lightkube sends them as they come, and its failures tell what it sent. No message here shows a token.
Source: client-go, transport/token_source.go and plugin/pkg/client/auth/exec/exec.go.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
from lightkube.core.exceptions import ConfigError

from k8s_rdma.kube.exec_plugin import plugin_token

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from lightkube.config.models import User, UserExec

_UNAUTHORIZED = 401


def usable_token(text: str, source: str) -> str:
    """The token, without white space around it; ConfigError when there is none, or no header can carry it."""
    token = text.strip()
    if not token:
        msg = f"{source}: the token is empty"
        raise ConfigError(msg)
    if not (token.isascii() and token.isprintable()):
        msg = f"{source}: the token has line breaks or other signs that no header can carry; wanted it alone"
        raise ConfigError(msg)
    return token


def authenticate(http: httpx2.Client | httpx2.AsyncClient, user: User | None, *, timeout_s: float) -> None:
    """Have the calls of a lightkube client made with the token that a user's file or plugin gives.

    timeout_s: for an exec plugin. As to client-go, tokens go before what a plugin gives.
    """
    if user is None:
        return
    if user.token_file:
        http.auth = FetchedToken(partial(_file_token, user.token_file))
    elif user.exec and not user.token:
        http.auth = FetchedToken(partial(_plugin_token, user.exec, timeout_s))


class FetchedToken(httpx2.Auth):
    """A token that is fetched for the first call, and anew when the API server takes it no longer (401)."""

    def __init__(self, fetch: Callable[[], str]) -> None:
        self._fetch = fetch
        self._kept: str | None = None

    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Of a blocking client."""
        if self._kept is not None:
            response = yield _bearing(self._kept, request)
            if response.status_code != _UNAUTHORIZED:
                return
        self._kept = self._fetch()
        yield _bearing(self._kept, request)

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """As `sync_auth_flow`; what it waits for is waited for elsewhere."""
        if self._kept is not None:
            response = yield _bearing(self._kept, request)
            if response.status_code != _UNAUTHORIZED:
                return
        self._kept = await asyncio.to_thread(self._fetch)
        yield _bearing(self._kept, request)


def _bearing(token: str, request: httpx2.Request) -> httpx2.Request:
    request.headers["Authorization"] = f"Bearer {token}"
    return request


def _file_token(path: str) -> str:
    source = f"tokenFile {path}"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        msg = f"{source}: {error.strerror}"
        raise ConfigError(msg) from error
    except ValueError:
        msg = f"{source}: no text"
        raise ConfigError(msg) from None  # it holds the bytes
    return usable_token(text, source)


def _plugin_token(plugin: UserExec, timeout_s: float) -> str:
    return usable_token(plugin_token(plugin, timeout_s), f"exec plugin {plugin.command}")
