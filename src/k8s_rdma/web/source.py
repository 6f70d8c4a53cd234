"""A source of the pages: an HTTP server whose answers are bounded in bytes and time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import httpx2

from k8s_rdma.config.authorities import demand_rfc5280, verify_as_go
from k8s_rdma.config.web import PrometheusEndpoint
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.http_server.asgi import client_tls, token_of
from k8s_rdma.web.parties import FairTurns
from k8s_rdma.wire.http_error import MAX_ANSWER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from k8s_rdma.config.web import Endpoint

_MAX_REFUSAL = 200
"""Characters of a refusal that pages show."""

TIMEOUT_S = 20.0
MAX_QUESTIONS = 4
"""Questions of viewers in flight: the extender explains one pod at a time."""

MAX_QUESTIONS_OF_VIEWER = 3

Document = TypeVar("Document")


class SourceUnavailableError(K8sRdmaError):
    """A source does not answer, or with something else than its documents."""

    reason = Reason.NOT_READY


class Source:
    """Asks a server.

    name: for messages.
    explain_refusal: the message of an answer that refuses; empty without one.
    """

    def __init__(
        self, name: str, endpoint: Endpoint, *, field: str, explain_refusal: Callable[[bytes], str]
    ) -> None:
        """Read the files that the endpoint names. MalformedError names the key below the field."""
        try:
            httpx2.URL(endpoint.url)
        except httpx2.InvalidURL as error:
            msg = f"{field}.url: {endpoint.url}: {error}"
            raise MalformedError(msg) from error
        self.name = name
        self.url = endpoint.url.rstrip("/")
        token_file = endpoint.token_file
        self._token = None if token_file is None else token_of(token_file, field=f"{field}.tokenFile")
        verification = verify_as_go if isinstance(endpoint, PrometheusEndpoint) else demand_rfc5280
        is_tls = self.url.startswith("https:")
        self._tls = client_tls(endpoint, field=field, verification=verification) if is_tls else None
        self._explain_refusal = explain_refusal
        self._questions = FairTurns(MAX_QUESTIONS, of_party=MAX_QUESTIONS_OF_VIEWER)

    async def ask(
        self, party: str, path: str, query: Mapping[str, str], decode: Callable[[bytes], Document]
    ) -> Document | None:
        """Ask for a viewer's party, by turns with others; None for status 404. NoAnswerError."""
        async with self._questions.turn(party):
            return await self._get(path, query, decode)

    async def get(self, path: str, query: Mapping[str, str], decode: Callable[[bytes], Document]) -> Document:
        """Return an answer that is always there. NoAnswerError."""
        found = await self._get(path, query, decode)
        if found is None:
            msg = f"the {self.name} at {self.url} has no {path}"
            raise SourceUnavailableError(msg)
        return found

    async def _get(
        self, path: str, query: Mapping[str, str], decode: Callable[[bytes], Document]
    ) -> Document | None:
        """Return an answer, None for status 404.

        Each question has a connection of its own, because renewed files count from the next one on, and a
        Service may choose another replica.
        """
        headers = {"accept-encoding": "identity"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token()}"
        verify = False if self._tls is None else self._tls()
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                httpx2.AsyncClient(
                    headers=headers, verify=verify, timeout=TIMEOUT_S, trust_env=False
                ) as client,
                client.stream("GET", self.url + path, params=dict(query)) as reply,
            ):
                body = await self._bounded_body(reply)
        except (httpx2.HTTPError, OSError, TimeoutError) as error:
            msg = f"no {self.name} answers at {self.url}: {str(error) or type(error).__name__}"
            raise SourceUnavailableError(msg) from error
        if reply.status_code == httpx2.codes.NOT_FOUND:
            return None
        if reply.status_code != httpx2.codes.OK:
            refusal = self._explain_refusal(body) or body[:_MAX_REFUSAL].decode(errors="replace").strip()
            msg = f"the {self.name} at {self.url} answers HTTP {reply.status_code}: {refusal[:_MAX_REFUSAL]}"
            raise SourceUnavailableError(msg)
        try:
            return decode(body)
        except MalformedError as error:
            msg = f"the {self.name}'s answer cannot be read: {error.message}"
            raise SourceUnavailableError(msg) from error

    async def _bounded_body(self, reply: httpx2.Response) -> bytes:
        body = bytearray()
        async for part in reply.aiter_raw():
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                msg = f"the {self.name}'s answer is longer than {MAX_ANSWER_BYTES} bytes"
                raise SourceUnavailableError(msg)
        return bytes(body)
