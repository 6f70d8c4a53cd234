"""A bound of our own on the levels of JSON documents.

Decoders recurse, and the interpreter's bound on that is of its version: 1,000 levels less the callers in
Python 3.11, and 5,000 to 20,000 later. A document that is read under one version must be read under each.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any

MAX_LEVELS = 64
"""Objects and arrays within each other; a network configuration has six, an annotation three."""

TOO_DEEP = f"nested deeper than {MAX_LEVELS} levels"

_PRUNED_BELOW = 2 * MAX_LEVELS
"""The level of `pruned`. A part with a bound of its own, such as a claim's parameters, still exceeds it."""

_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)


class NestingError(ValueError):
    """A document has more than `MAX_LEVELS` levels."""

    def __init__(self) -> None:
        super().__init__(TOO_DEEP)


def require_shallow(document: bytes | str) -> None:
    """Raise NestingError if a document has more than `MAX_LEVELS` levels.

    Text that is no JSON passes, or raises NestingError as well. A document with more brackets than that is
    read a second time for this, which takes far longer than to decode it into a model. So documents of many
    megabytes, which programs write, are read without this bound: `wire.json.decode_large`.
    """
    if isinstance(document, str):
        if document.count("[") + document.count("{") <= MAX_LEVELS:
            return
        document = document.encode(errors="surrogatepass")
    if document.count(b"[") + document.count(b"{") > MAX_LEVELS and _levels(document) > MAX_LEVELS:
        raise NestingError


def load(document: bytes | str) -> Any:
    """Read JSON into plain values; ValueError if it is no JSON, NestingError as `require_shallow`."""
    require_shallow(document)
    return json.loads(document)


def pruned(text: str) -> str:
    """Replace values that are nested deeper than any reader looks by null, for decoders that recurse."""
    parts, depth, begin = [], 0, 0
    for token in _STRING_OR_BRACKET.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth == _PRUNED_BELOW:
                parts += [text[begin : token.start()], "null"]
                begin = len(text)
        elif token[0] in "]}":
            if depth == _PRUNED_BELOW:
                begin = token.end()
            depth -= 1
    return "".join([*parts, text[begin:]])


def _levels(text: bytes) -> int:
    """Count the levels. A quote within a string has a backslash before it, and so has that backslash."""
    outside_strings = text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]
    brackets = b"".join(outside_strings).translate(None, _NO_BRACKETS)
    return max(accumulate(_STEPS[bracket] for bracket in brackets), default=0)
