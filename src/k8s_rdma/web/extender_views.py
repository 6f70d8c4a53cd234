"""The extender's views: the cluster, polled in the background, and single pods on request.

Whatever the extender answers is bounded in bytes and time. What it said last stays, with its age.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import httpx2
import msgspec
import structlog

from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.http_server.asgi import client_tls, token_of
from k8s_rdma.wire.rest import ErrorDocument
from k8s_rdma.wire.views import (
    CLUSTER_PATH,
    EXPLAIN_PATH,
    HOLDERS_PATH,
    MAX_ROWS,
    NAMESPACE_PATH,
    ClusterView,
    Explanation,
    HoldersView,
    NamespaceView,
    Sort,
    decode_explanation,
    decode_holders,
    decode_namespace,
    decode_view,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from k8s_rdma.web.config import ExtenderEndpoint

MAX_ANSWER_BYTES = 64 << 20
"""Bytes of an answer; the view of 5,000 nodes with eight PFs has 7 MB."""

TIMEOUT_S = 20.0
MAX_QUESTIONS = 4
"""Questions of viewers in flight: the extender explains one pod at a time."""

_log = structlog.get_logger()

Document = TypeVar("Document")


class NoAnswerError(K8sRdmaError):
    """The extender does not answer, or with something else than its documents."""

    reason = Reason.NOT_READY


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A view of the cluster. received_at: seconds, by the clock of `ExtenderViews`."""

    view: ClusterView
    received_at: float


class ExtenderViews:
    """Asks the extender. failure: why the last question got no answer; empty when it did."""

    def __init__(self, endpoint: ExtenderEndpoint, *, poll_s: float, clock: Callable[[], float]) -> None:
        """Read the files that the endpoint names. MalformedError names the field."""
        self.snapshot: Snapshot | None = None
        self.failure = "the extender has not answered yet"
        self.clock = clock
        self._url = endpoint.url
        self._poll_s = poll_s
        token_file = endpoint.token_file
        self._token = None if token_file is None else token_of(token_file, field="extender.tokenFile")
        self._tls = client_tls(endpoint, field="extender") if self._url.startswith("https:") else None
        self._questions = asyncio.Semaphore(MAX_QUESTIONS)

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.poll()
            await asyncio.sleep(self._poll_s)

    async def poll(self) -> None:
        """Ask for the whole cluster once; what was received before stays when there is no answer."""
        try:
            body = await self._get(CLUSTER_PATH, {"sort": Sort.NAME.value, "limit": str(MAX_ROWS)})
            self.snapshot = Snapshot(_decoded(decode_view, body or b""), self.clock())
        except NoAnswerError as error:
            if not self.failure:
                _log.warning("extender_lost", error=error.message)
            self.failure = error.message
        else:
            if self.failure:
                _log.info("extender_answers", url=self._url)
            self.failure = ""

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        """Explain a pod; None where the extender has none of that name. NoAnswerError."""
        return await self._ask(EXPLAIN_PATH, {"pod": f"{namespace}/{name}"}, decode_explanation)

    async def holders(self, node: str) -> HoldersView | None:
        """List the holders on a node; None where the extender has none of that name. NoAnswerError."""
        return await self._ask(HOLDERS_PATH, {"node": node}, decode_holders)

    async def namespace(self, name: str) -> NamespaceView | None:
        """Show the use of a namespace; None where the extender has no such view. NoAnswerError."""
        return await self._ask(NAMESPACE_PATH, {"name": name}, decode_namespace)

    async def _ask(
        self, path: str, query: Mapping[str, str], decode: Callable[[bytes], Document]
    ) -> Document | None:
        async with self._questions:
            body = await self._get(path, query)
        return None if body is None else _decoded(decode, body)

    async def _get(self, path: str, query: Mapping[str, str]) -> bytes | None:
        """Return an answer's body, None for status 404.

        Each question has a connection of its own: files that were renewed count from the next one on, and a
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
                    base_url=self._url, headers=headers, verify=verify, timeout=TIMEOUT_S, trust_env=False
                ) as client,
                client.stream("GET", path, params=dict(query)) as reply,
            ):
                body = await _bounded_body(reply)
        except (httpx2.HTTPError, OSError, TimeoutError) as error:
            msg = f"no extender answers at {self._url}: {str(error) or type(error).__name__}"
            raise NoAnswerError(msg) from error
        if reply.status_code == httpx2.codes.NOT_FOUND:
            return None
        if reply.status_code != httpx2.codes.OK:
            msg = f"the extender at {self._url} answers HTTP {reply.status_code}: {_refusal(body)}"
            raise NoAnswerError(msg)
        return body


async def _bounded_body(reply: httpx2.Response) -> bytes:
    body = bytearray()
    async for part in reply.aiter_raw():
        body += part
        if len(body) > MAX_ANSWER_BYTES:
            msg = f"the extender's answer is longer than {MAX_ANSWER_BYTES} bytes"
            raise NoAnswerError(msg)
    return bytes(body)


def _decoded(decode: Callable[[bytes], Document], body: bytes) -> Document:
    try:
        return decode(body)
    except MalformedError as error:
        msg = f"the extender's answer cannot be read: {error.message}"
        raise NoAnswerError(msg) from error


def _refusal(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=ErrorDocument).error.message
    except msgspec.MsgspecError:
        return body[:200].decode(errors="replace").strip()
