"""JSON as Go's encoding/json writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from k8s_rdma.sim.cluster.objects import JsonObject

# json.Marshal escapes these inside strings, so that the text is safe in HTML and JavaScript.
_ESCAPED = {
    b"&": rb"\u0026",
    b"<": rb"\u003c",
    b">": rb"\u003e",
    "\u2028".encode(): rb"\u2028",
    "\u2029".encode(): rb"\u2029",
}


def go_json(value: object, *, order: Literal["deterministic"] | None = None) -> bytes:
    """Encode without white space; order "deterministic" sorts all keys, as Go does with maps."""
    encoded = msgspec.json.encode(value, order=order)
    for raw, escape in _ESCAPED.items():
        encoded = encoded.replace(raw, escape)
    return encoded


def go_quote(text: str) -> str:
    """`%q`: the text in double quotes, with what cannot be printed escaped."""
    return msgspec.json.encode(text).decode()


def fields_regardless_of_case(obj: JsonObject) -> JsonObject:
    """The object with lower-case keys and without nulls, as json.Unmarshal reads it into a struct."""
    return {name.lower(): value for name, value in obj.items() if value is not None}
