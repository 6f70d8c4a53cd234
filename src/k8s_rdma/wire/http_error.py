"""Errors of every HTTP endpoint: `{"error": {"reason", "message", ...}}`."""

from __future__ import annotations

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json import decode

MAX_MESSAGE = 2048

MAX_ANSWER_BYTES = 64 << 20
"""The limit that clients have for an answer: the extender's view of 5,000 nodes with eight PFs has 7 MB."""


class Error(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error.

    reason: a stable name: a value of `k8s_rdma.errors.Reason`, or one of HTTP's own (`not_found`).
    message: one sentence for an operator.
    since: how long it has been so (RFC 3339), if that is known.
    problems: the parts that could not be read, one sentence each.
    """

    reason: str
    message: str
    since: str | msgspec.UnsetType = msgspec.UNSET
    problems: tuple[str, ...] = ()


class ErrorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error."""

    error: Error


_error_decoder = msgspec.json.Decoder(ErrorDocument)


def message_of(body: bytes) -> str:
    """Read the message of an error document, `MAX_MESSAGE` of it at most; empty if it is no such document."""
    try:
        return decode(body, _error_decoder, "error").error.message[:MAX_MESSAGE]
    except MalformedError:
        return ""
