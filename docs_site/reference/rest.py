"""The page of the node's REST API, from its OpenAPI document."""

from __future__ import annotations

from typing import Any

from docs_site.reference.schemas import properties_table
from docs_site.reference.tables import code, table
from k8s_rdma.http_server.asgi import Access, Tokens
from k8s_rdma.server.app import openapi_document

TOKENS_DEMANDED = Access(tokens=lambda: Tokens(()))

HEAD = """# REST of a node

Made of the document that each server shows as `/openapi.json`; [the node's server](../server.md) says more.
Paths with `GET` take `HEAD` as well. Rates are in Mb/s.
"""


def rest_page() -> str:
    """Return paths with their answers and parameters, then the schemas of the answers."""
    document = openapi_document(TOKENS_DEMANDED)
    paths = [_path(path, *operation_of(item)) for path, item in document["paths"].items()]
    schemas = document["components"]["schemas"]
    kinds = [_kind(name, schema) for name, schema in schemas.items() if "properties" in schema]
    return "\n".join([HEAD, *paths, *kinds])


def _kind(name: str, schema: dict[str, Any]) -> str:
    return "\n\n".join([f"## {name}", schema.get("description", ""), properties_table(schema)])


def operation_of(item: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the method of a path, and the document's description of it."""
    method = "get" if "get" in item else "post"
    return method.upper(), item[method]


def _path(path: str, method: str, operation: dict[str, Any]) -> str:
    rows = [[code(status), _answer(answer)] for status, answer in operation["responses"].items()]
    parts = [f"## {method} {path}", f"{operation['summary']}."]
    if not operation.get("security"):
        parts.append("Needs no token.")
    if operation.get("parameters"):
        parameters = [
            [code(each["name"]), each["in"], each["description"]] for each in operation["parameters"]
        ]
        parts.append(table(("parameter", "in", "meaning"), parameters))
    return "\n\n".join([*parts, table(("status", "answer"), rows)])


def _answer(answer: dict[str, Any]) -> str:
    kinds = ", ".join(map(code, answer.get("content", {})))
    return " ".join(filter(None, [answer["description"], kinds and f"({kinds})"]))
