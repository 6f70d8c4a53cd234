"""`GET /openapi.json`: the REST face for programs, as OpenAPI 3.1.

Schemas are those of the structs that are sent, so that they cannot disagree with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma import __version__
from k8s_rdma.server.watch import DEFAULT_TIMEOUT_S, TimeoutS
from k8s_rdma.wire.rest import GenerationText, LegacyPf, NodeReport
from k8s_rdma.wire.rest_error import ErrorDocument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.http_server.access import Access

    Document = dict[str, Any]

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


def openapi_document(access: Access) -> Document:
    """The document, with what each path demands."""
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
            "schemas": components,
            **({"securitySchemes": _BEARER} if access.tokens else {}),
        },
    }


def _get_operation(summary: str, responses: Document, parameters: list[Document] | None = None) -> Document:
    return {"summary": summary, "responses": responses, "parameters": parameters or []}


def _complete(path: str, operation: Document, error: Document, access: Access) -> Document:
    """The path's operations, with what all of them have in common."""
    responses = {**operation["responses"], "default": _error("Any other error.", error)}
    security: Document = {}
    if access.is_open(path):
        security = {"security": []}
    elif access.tokens is None:
        responses["403"] = _error("Nobody may ask for it here.", error)
    else:
        responses["401"] = _error("The token is missing or wrong.", error, _CHALLENGE)
        security = {"security": [{"bearer": []}]}
    operation = {**operation, **security}
    bodiless = {status: _without_content(response) for status, response in responses.items()}
    return {"get": {**operation, "responses": responses}, "head": {**operation, "responses": bodiless}}


def _node_parameters() -> list[Document]:
    return [
        {
            "name": "watch",
            "in": "query",
            "description": "The generation that the client has: answered when it is another one.",
            "schema": msgspec.json.schema(GenerationText),
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
