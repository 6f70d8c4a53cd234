"""JSON with errors that name the field."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from k8s_rdma.errors import MalformedError

T = TypeVar("T")


def decode(data: bytes | str, decoder: msgspec.json.Decoder[T], what: str) -> T:
    """Decode a document; MalformedError `<what>: <reason, with the field's path>` when it does not fit."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        msg = f"{what}: {error}"
        raise MalformedError(msg) from error
