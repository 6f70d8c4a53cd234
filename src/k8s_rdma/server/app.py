"""The paths of the node's REST server, as an ASGI application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from k8s_rdma.server.answers import INDEX

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from k8s_rdma.server.answers import Answers

    Current = Callable[[], Answers]


def make_app(current: Current) -> Starlette:
    """Serve whatever `current` returns at the time of each request."""
    index = Response(INDEX, media_type="text/plain")
    return Starlette(
        routes=[
            _get("/", _Answer(lambda _scope: index)),
            _get("/getpfs", _Answer(lambda _scope: current().getpfs)),
            _get("/v1/node", _Answer(lambda scope: _node(current(), scope))),
            _get("/metrics", _Answer(lambda _scope: current().metrics)),
            _get("/healthz", _Answer(lambda _scope: current().healthz)),
        ]
    )


class _Answer:
    """Sends a response that is there already: neither a request object nor a rendering on the way."""

    def __init__(self, choose: Callable[[Scope], Response]) -> None:
        self._choose = choose

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._choose(scope)(scope, receive, send)


def _get(path: str, answer: ASGIApp) -> Route:
    return Route(path, answer, methods=["GET"])


def _node(answers: Answers, scope: Scope) -> Response:
    if answers.unchanged is not None and answers.etag in _if_none_match(scope):
        return answers.unchanged
    return answers.node


def _if_none_match(scope: Scope) -> list[str]:
    """The entity tags of `If-None-Match`; compared weakly (RFC 9110, section 13.1.2)."""
    tags = b",".join(value for name, value in scope["headers"] if name == b"if-none-match")
    return [tag.strip().removeprefix("W/") for tag in tags.decode("latin-1").split(",")]
