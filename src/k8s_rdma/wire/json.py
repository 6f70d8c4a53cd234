"""JSON with errors that name the field."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

import msgspec

from k8s_rdma.errors import MalformedError, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

_SHOWN = 60
"""Characters of a foreign key that a message shows; the rest is whoever wrote it, at any length."""

_EXPLAINED = 1 << 20
"""Bytes or characters of text whose syntax is explained."""


def decode(
    data: bytes | bytearray | str | msgspec.Raw,
    decoder: msgspec.json.Decoder[T],
    subject: str,
    reason: Reason = Reason.MALFORMED_REQUEST,
) -> T:
    """Decode a document; MalformedError `<what>: <cause, with the field's path>` when it does not fit.

    Text that is no Unicode (lone surrogates) and nesting beyond the interpreter's stack are such errors too.
    """
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        is_json = isinstance(error, msgspec.ValidationError) or not isinstance(error, msgspec.DecodeError)
        msg = f"{subject}: {error if is_json else f'no valid JSON: {_syntax(data) or error}'}"
        raise MalformedError(msg, reason=reason) from error


def describe_unknown(key: str, allowed: Iterable[str]) -> str:
    """`unknown key; did you mean <the nearest known one>?`, or the known ones when none is near.

    Letter case and the choice between `-` and `_` do not count as a difference.
    """
    names = tuple(allowed)
    near = nearest(key, names)
    if near:
        return f"unknown key; did you mean {near}?"
    return f"unknown key; known are {', '.join(names)}"


def nearest(key: str, allowed: Iterable[str]) -> str | None:
    """The known one that a foreign one may stand for, if any is near; as in `describe_unknown`."""
    by_folded = {_folded(name): name for name in allowed}
    found = get_close_matches(_folded(key[:_SHOWN]), by_folded, n=1)
    return by_folded[found[0]] if found else None


def shown(key: str) -> str:
    """A foreign key as a message may hold it: escaped where it is not printable, and of bounded length."""
    clipped = key if len(key) <= _SHOWN else key[:_SHOWN] + "..."
    return clipped if clipped.isprintable() and clipped.isascii() and clipped else ascii(clipped)


def _syntax(data: bytes | bytearray | str | msgspec.Raw) -> str:
    """Where text stops being JSON, as people count characters; empty where Python's reader takes it.

    Empty as well for what is too long to be read a second time, into several times its memory.
    """
    if len(data if isinstance(data, str) else memoryview(data)) > _EXPLAINED:
        return ""
    text = data if isinstance(data, str) else bytes(data).decode(errors="replace")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        if not text[error.pos :].strip():
            return "ends too early"
        return f"{error.msg.removesuffix(' starting at')} at character {error.pos + 1}"
    except (ValueError, RecursionError):
        pass
    return ""


def _folded(key: str) -> str:
    return key.casefold().replace("-", "_")
