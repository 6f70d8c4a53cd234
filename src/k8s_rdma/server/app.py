"""The paths of the node's REST server, as an ASGI application."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from k8s_rdma.errors import STATUS, MalformedError
from k8s_rdma.http_server.access import EVERYBODY
from k8s_rdma.http_server.answer import Answer, error_answer, json_answer
from k8s_rdma.http_server.exposition import CONTENT_TYPE
from k8s_rdma.server.answers import RETRY
from k8s_rdma.server.openapi import openapi_document
from k8s_rdma.server.watch import MAX_WATCHES, Watches, parse_watch, wait_for_change
from k8s_rdma.wire.rest_error import Error

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.http_server.access import Access
    from k8s_rdma.http_server.answer import Fields, Receive, Scope, Send
    from k8s_rdma.server.answers import Shown
    from k8s_rdma.server.traffic import Traffic
    from k8s_rdma.server.watch import Watch

INDEX = """\
k8s-rdma: RDMA functions of this node

GET /getpfs        physical and virtual functions, as the RDMA hardware DaemonSet shows them (JSON)
GET /v1/node       physical functions and allocations by pod, with an ETag for each state (JSON)
                   ?watch=<generation>&timeout_s=<seconds> waits until there is another one
GET /metrics       the same in figures, and traffic (Prometheus)
GET /healthz       whether this server runs, and whether the agent answers it
GET /readyz        whether it can show the node's state now
GET /openapi.json  all of this for programs (OpenAPI 3.1)
"""

_METHODS = ("GET", "HEAD")


class NodeApp:
    """Answers from what is shown at the time of each request."""

    def __init__(
        self,
        shown: Shown,
        traffic: Traffic,
        *,
        access: Access = EVERYBODY,
        max_watches: int = MAX_WATCHES,
    ) -> None:
        self.stopping = asyncio.Event()
        self._shown = shown
        self._traffic = traffic
        self._access = access
        self._watches = Watches(max_watches)
        index, openapi = Answer(INDEX), json_answer(openapi_document(access))
        self._paths: dict[str, Callable[[Fields], Answer]] = {
            "/": lambda _fields: index,
            "/getpfs": lambda _fields: shown.answers.getpfs,
            "/v1/node": self._node,
            "/healthz": lambda _fields: shown.answers.healthz,
            "/readyz": lambda _fields: shown.answers.readyz,
            "/openapi.json": lambda _fields: openapi,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        answer = self._checked(scope)
        if answer is None:
            answer = await self._answer(scope, receive)
        await answer(scope, receive, send)

    def _checked(self, scope: Scope) -> Answer | None:
        """Why the request is not answered; None for one that is."""
        path, method = scope["path"], scope["method"]
        if refusal := self._access.refusal(path, scope["headers"]):
            return refusal
        if path not in self._paths and path != "/metrics":
            return error_answer(404, Error(reason="not_found", message="there is no such path; / lists them"))
        if method not in _METHODS:
            message = "this server changes nothing: GET and HEAD are all that it answers"
            error = Error(reason="method_not_allowed", message=message)
            return error_answer(405, error, headers={"allow": ", ".join(_METHODS)})
        return None

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        if scope["path"] == "/metrics":
            traffic = await self._traffic.exposition()
            return Answer(self._shown.answers.metrics + traffic, content_type=CONTENT_TYPE)
        if scope["path"] == "/v1/node":
            try:
                watch = parse_watch(scope["query_string"])
            except MalformedError as error:
                return error_answer(
                    STATUS[error.reason].http, Error(reason=error.reason, message=error.message)
                )
            if watch is not None:
                return await self._watched(watch, scope, receive)
        return self._paths[scope["path"]](scope["headers"])

    async def _watched(self, watch: Watch, scope: Scope, receive: Receive) -> Answer:
        place = self._watches.acquire(self._access.client(scope))
        if place is None:
            message = "too many clients wait for a change already"
            return error_answer(503, Error(reason="busy", message=message), headers=RETRY)
        try:
            enough = (self.stopping.wait(), place.wait(), _client_gone(receive))
            return await wait_for_change(watch, self._shown, *enough)
        finally:
            self._watches.give_back(place)

    def _node(self, fields: Fields) -> Answer:
        answers = self._shown.answers
        if answers.unchanged is not None and f'"{answers.generation}"' in _if_none_match(fields):
            return answers.unchanged
        return answers.node


def _if_none_match(fields: Fields) -> list[str]:
    """The entity tags of `If-None-Match`; compared weakly (RFC 9110, section 13.1.2)."""
    tags = b",".join(value for name, value in fields if name == b"if-none-match")
    return [tag.strip().removeprefix("W/") for tag in tags.decode("latin-1").split(",")]


async def _client_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
