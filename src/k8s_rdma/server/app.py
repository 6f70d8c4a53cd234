"""The paths of the node's REST server, as an ASGI application; watches, and the OpenAPI document.

`GET /v1/node?watch=<generation>&timeout_s=<seconds>` is answered when there is another generation.
The schemas of `GET /openapi.json` are those of the structs that are sent, so that they cannot disagree.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qsl

import msgspec

from k8s_rdma import __version__
from k8s_rdma.errors import STATUS, MalformedError, Reason
from k8s_rdma.http_server.asgi import (
    CONTENT_TYPE,
    EVERYBODY,
    Access,
    Answer,
    Fields,
    Receive,
    Scope,
    Send,
    error_answer,
    json_answer,
)
from k8s_rdma.http_server.bodies import Bodies, BodyError, ClientGoneError
from k8s_rdma.server.agent_link import RETRY, Deliveries, Shown, TrafficReader
from k8s_rdma.wire.getpfs import LegacyPf
from k8s_rdma.wire.http_error import Error, ErrorDocument
from k8s_rdma.wire.json_faults import describe_unknown, shown
from k8s_rdma.wire.report import Generation, NodeReport
from k8s_rdma.wire.state_socket import MAX_PLACEMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping

    Document = dict[str, Any]

INDEX = """\
k8s-rdma: RDMA functions of this node

GET /getpfs        physical and virtual functions, as the RDMA hardware DaemonSet shows them (JSON)
GET /v1/node       physical functions and allocations by pod, with an ETag for each state (JSON)
                   ?watch=<generation>&timeout_s=<seconds> waits until there is another one
POST /v1/placements  takes a signed placement of a running pod, for an agent without credentials
GET /metrics       metrics of the same, and traffic (Prometheus)
GET /healthz       whether this server runs, and whether the agent answers it
GET /readyz        whether it can show the node's state now
GET /openapi.json  all of this for programs (OpenAPI 3.1)
"""

DEFAULT_TIMEOUT_S = 30.0
MAX_TIMEOUT_S = 300.0
"""Shorter than the time after which proxies and firewalls drop an idle connection."""

TimeoutS = Annotated[float, msgspec.Meta(ge=0, le=MAX_TIMEOUT_S)]

MAX_WATCHES = 256
"""Watches of all clients at a time: an extender has one for each node, and so has any other follower."""

PLACEMENTS_PATH = "/v1/placements"
MAX_BODY_BYTES = MAX_PLACEMENT_BYTES
"""Placements alone have a body."""

_REFUSED = 409
_PARAMETERS = ("watch", "timeout_s")
_MOST_PARAMETERS = 8
_seconds = msgspec.json.Decoder(TimeoutS)

_TEXT: Document = {"text/plain": {"schema": {"type": "string"}}}
_ETAG: Document = {
    "ETag": {
        "description": "Of this state: its generation in quotes.",
        "required": True,
        "schema": {"type": "string"},
    }
}
_RETRY_AFTER: Document = {
    "Retry-After": {
        "description": "Seconds after which to ask again.",
        "required": True,
        "schema": {"type": "integer"},
    }
}
_BEARER: Document = {"bearer": {"type": "http", "scheme": "bearer"}}
_CHALLENGE: Document = {"WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}}}


class NodeApp:
    """ASGI application that answers from the state at the time of each request."""

    def __init__(
        self,
        shown: Shown,
        traffic: TrafficReader,
        deliveries: Deliveries,
        *,
        access: Access = EVERYBODY,
        max_watches: int = MAX_WATCHES,
    ) -> None:
        self.stopping = asyncio.Event()
        self._shown = shown
        self._traffic = traffic
        self._deliveries = deliveries
        self._bodies = Bodies(MAX_BODY_BYTES, bound="256 KiB")
        self._access = access
        self._watches = Watches(max_watches)
        index, openapi = Answer(INDEX), json_answer(openapi_document(access))
        self._paths: dict[str, Callable[[Scope, Receive], Awaitable[Answer]]] = {
            "/": _fixed(lambda: index),
            "/getpfs": _fixed(lambda: shown.answers.getpfs),
            "/v1/node": self._node,
            PLACEMENTS_PATH: self._place,
            "/metrics": self._metrics,
            "/healthz": _fixed(lambda: shown.answers.healthz),
            "/readyz": _fixed(lambda: shown.answers.readyz),
            "/openapi.json": _fixed(lambda: openapi),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        answer = self._access.refuse(scope, self._paths, posts=(PLACEMENTS_PATH,))
        if answer is None:
            try:
                answer = await self._paths[scope["path"]](scope, receive)
            except ClientGoneError:
                return
        await answer(scope, receive, send)

    async def _metrics(self, _scope: Scope, _receive: Receive) -> Answer:
        traffic = await self._traffic.exposition()
        return Answer(self._shown.answers.metrics + traffic, content_type=CONTENT_TYPE)

    async def _place(self, scope: Scope, receive: Receive) -> Answer:
        try:
            async with self._bodies.reading(scope, receive) as body:
                client = self._access.client(scope)
                verdict = await self._deliveries.deliver(bytes(body), client=client)
        except BodyError as refused:
            return error_answer(refused.status, Error(reason=refused.outcome, message=str(refused)))
        if verdict is None:
            error = Error(reason=Reason.AGENT_UNREACHABLE, message="the agent does not answer now")
            return error_answer(503, error, headers=RETRY)
        if verdict.reason:
            return error_answer(_REFUSED, Error(reason=verdict.reason, message=verdict.message))
        return Answer(status=204)

    async def _node(self, scope: Scope, receive: Receive) -> Answer:
        try:
            watch = parse_watch(scope["query_string"])
        except MalformedError as error:
            return error_answer(STATUS[error.reason].http, Error(reason=error.reason, message=error.message))
        if watch is not None:
            return await self._wait_for_node(watch, scope, receive)
        answers = self._shown.answers
        if answers.unchanged is not None and f'"{answers.generation}"' in _if_none_match(scope["headers"]):
            return answers.unchanged
        return answers.node

    async def _wait_for_node(self, watch: Watch, scope: Scope, receive: Receive) -> Answer:
        place = self._watches.acquire(self._access.client(scope))
        if place is None:
            message = "too many clients wait for a change already"
            return error_answer(503, Error(reason="busy", message=message), headers=RETRY)
        try:
            end_conditions = (self.stopping.wait(), place.wait(), _wait_for_disconnect(receive))
            return await wait_for_change(watch, self._shown, *end_conditions)
        finally:
            self._watches.release(place)


def _fixed(answer: Callable[[], Answer]) -> Callable[[Scope, Receive], Awaitable[Answer]]:
    """Build an endpoint whose answer does not depend on the request."""

    async def endpoint(_scope: Scope, _receive: Receive) -> Answer:
        return answer()

    return endpoint


def _if_none_match(fields: Fields) -> list[str]:
    """Return the entity tags of `If-None-Match`, for weak comparison (RFC 9110, section 13.1.2)."""
    tags = b",".join(value for name, value in fields if name == b"if-none-match")
    return [tag.strip().removeprefix("W/") for tag in tags.decode("latin-1").split(",")]


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A client's watch: it ends at any generation but its own, or after a time."""

    generation: str
    timeout_s: float


class Watches:
    """Slots for watches; the client with the most makes room for one with fewer."""

    def __init__(self, limit: int = MAX_WATCHES) -> None:
        self._limit = limit
        self._active: list[tuple[Hashable, asyncio.Event]] = []

    def acquire(self, client: Hashable) -> asyncio.Event | None:
        """Take a slot, an event that is set if another client gets it; None if all are taken fairly."""
        if len(self._active) >= self._limit:
            count = Counter(holder for holder, _ in self._active)
            greediest, watches = count.most_common(1)[0]
            if watches <= count[client] + 1:
                return None
            next(place for holder, place in self._active if holder == greediest).set()
            self._active = [watch for watch in self._active if not watch[1].is_set()]
        place = asyncio.Event()
        self._active.append((client, place))
        return place

    def release(self, place: asyncio.Event) -> None:
        """Give a slot back."""
        self._active = [watch for watch in self._active if watch[1] is not place]


def parse_watch(query: bytes) -> Watch | None:
    """Parse the watch of a query string, if there is one. MalformedError names the parameter."""
    parameters: dict[str, str] = {}
    for name, value in _fields(query):
        if name not in _PARAMETERS:
            msg = f"{shown(name)}: {describe_unknown(name, _PARAMETERS)}"
            raise MalformedError(msg)
        if name in parameters:
            msg = f"{name}: is given twice"
            raise MalformedError(msg)
        parameters[name] = value
    timeout_s = _timeout_s(parameters.get("timeout_s"))
    if "watch" not in parameters:
        return None
    return Watch(generation=_generation(parameters["watch"]), timeout_s=timeout_s)


def _fields(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_PARAMETERS)
    except ValueError as error:  # UnicodeDecodeError among them
        msg = "query: is not made of at most a few name=value"
        raise MalformedError(msg) from error


def _generation(text: str) -> str:
    try:
        return msgspec.convert(text, Generation)
    except msgspec.ValidationError as error:
        msg = f"watch: {shown(text)} is no generation; give that of the document you have"
        raise MalformedError(msg) from error


def _timeout_s(text: str | None) -> float:
    if text is None:
        return DEFAULT_TIMEOUT_S
    try:
        return _seconds.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        msg = f"timeout_s: {shown(text)} is no number of seconds from 0 to {MAX_TIMEOUT_S:g}"
        raise MalformedError(msg) from error


async def wait_for_change(watch: Watch, current: Shown, *end_conditions: Awaitable[object]) -> Answer:
    """Return the document once it is another generation, or the answer that it is unchanged.

    end_conditions: when one of these is done, the client is answered as after the time-out.
    """
    tasks = [
        asyncio.ensure_future(condition)
        for condition in (_wait_for_change(watch.generation, current), *end_conditions)
    ]
    try:
        await asyncio.wait(tasks, timeout=watch.timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    answers = current.answers
    unchanged = answers.generation == watch.generation
    return answers.unchanged if unchanged and answers.unchanged else answers.node


async def _wait_for_change(generation: str, current: Shown) -> None:
    while current.answers.generation == generation:
        await current.change()


def openapi_document(access: Access) -> Document:
    """Build the OpenAPI document, with the access that each path requires."""
    (node, pf, error), components = msgspec.json.schema_components(
        (NodeReport, LegacyPf, ErrorDocument), ref_template="#/components/schemas/{name}"
    )
    pfs = {"type": "array", "items": pf}
    unavailable = {"503": _error("The node's state cannot be shown, and why.", error, _RETRY_AFTER)}
    paths = {
        "/": _get_operation("What there is", {"200": _ok(_TEXT)}),
        "/getpfs": _get_operation(
            "PFs and VFs as the RDMA hardware DaemonSet shows them", {"200": _ok(_json(pfs)), **unavailable}
        ),
        "/v1/node": _get_operation(
            "PFs and allocations by pod; at once, or once there is another generation",
            {
                "200": _ok(_json(node), _ETAG),
                "304": {"description": "It is the one that the client has.", "headers": _ETAG},
                "400": _error("The parameter that is wrong.", error),
                **unavailable,
            },
            _node_parameters(),
        ),
        PLACEMENTS_PATH: _post_operation(
            "Take a signed placement of a running pod, for an agent without credentials",
            {
                "204": {"description": "The agent accepts it, and programs its rates."},
                "409": _error("The agent refuses it, and why.", error),
                "503": _error("The agent does not answer now.", error, _RETRY_AFTER),
            },
        ),
        "/metrics": _get_operation("Figures for Prometheus", {"200": _ok(_TEXT)}),
        "/healthz": _get_operation("Whether this server runs", {"200": _ok(_TEXT)}),
        "/readyz": _get_operation("Whether it can show the node's state", {"200": _ok(_TEXT), **unavailable}),
        "/openapi.json": _get_operation("This document", {"200": _ok(_json({"type": "object"}))}),
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "k8s-rdma server",
            "version": __version__,
            "description": "RDMA functions of this node, read only. Rates are in Mb/s.",
        },
        "paths": {path: _complete(path, item, error, access) for path, item in paths.items()},
        "components": {
            "schemas": _for_clients(components),
            **({"securitySchemes": _BEARER} if access.tokens else {}),
        },
    }


def _for_clients(schema: Any) -> Any:
    """Write patterns as ECMA-262 does, whose `$` is the end of the text (JSON Schema, section 6.4)."""
    if isinstance(schema, str):
        return schema.replace(r"\Z", "$")
    if isinstance(schema, dict):
        return {key: _for_clients(value) for key, value in schema.items()}
    return list(map(_for_clients, schema)) if isinstance(schema, list) else schema


def _get_operation(summary: str, responses: Document, parameters: list[Document] | None = None) -> Document:
    return {"summary": summary, "responses": responses, "parameters": parameters or []}


def _post_operation(summary: str, responses: Document) -> Document:
    body = {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
    return {"summary": summary, "responses": responses, "requestBody": body}


def _complete(path: str, operation: Document, error: Document, access: Access) -> Document:
    """Add to the path's operations the responses that all of them have."""
    responses = {**operation["responses"], "default": _error("Any other error.", error)}
    security: Document = {}
    if access.is_open(path):
        security = {"security": []}
    elif access.tokens is None:
        responses["403"] = _error("No client may request it here.", error)
    else:
        responses["401"] = _error("The token is missing or wrong.", error, _CHALLENGE)
        security = {"security": [{"bearer": []}]}
    operation = {**operation, **security}
    if "requestBody" in operation:
        return {"post": {**operation, "responses": responses}}
    bodiless = {status: _without_content(response) for status, response in responses.items()}
    return {"get": {**operation, "responses": responses}, "head": {**operation, "responses": bodiless}}


def _node_parameters() -> list[Document]:
    return [
        {
            "name": "watch",
            "in": "query",
            "description": "The generation that the client has: answered when it is another one.",
            "schema": _for_clients(msgspec.json.schema(Generation)),
        },
        {
            "name": "timeout_s",
            "in": "query",
            "description": f"With `watch`: 304 after so many seconds; {DEFAULT_TIMEOUT_S:g} unless given.",
            "schema": msgspec.json.schema(TimeoutS),
        },
        {
            "name": "If-None-Match",
            "in": "header",
            "description": "Entity tags that the client has.",
            "schema": {"type": "string"},
        },
    ]


def _json(schema: Mapping[str, Any]) -> Document:
    return {"application/json": {"schema": schema}}


def _ok(content: Document, headers: Document | None = None) -> Document:
    return {"description": "The answer.", "content": content, "headers": headers or {}}


def _error(description: str, schema: Document, headers: Document | None = None) -> Document:
    return {"description": description, "content": _json(schema), "headers": headers or {}}


def _without_content(response: Document) -> Document:
    return {key: value for key, value in response.items() if key != "content"}
