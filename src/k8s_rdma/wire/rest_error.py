"""What every HTTP error of ours says: `{"error": {"reason", "message", ...}}`."""

from __future__ import annotations

import msgspec


class Error(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error.

    reason: a stable name: a value of `k8s_rdma.errors.Reason`, or one of HTTP's own (`not_found`).
    message: one sentence for an operator.
    since: how long it has been so (RFC 3339), where that is known.
    problems: what exactly could not be seen, one sentence each.
    """

    reason: str
    message: str
    since: str | msgspec.UnsetType = msgspec.UNSET
    problems: tuple[str, ...] = ()


class ErrorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error."""

    error: Error


_decoder = msgspec.json.Decoder(ErrorDocument)


def message_of(body: bytes) -> str:
    """The message of an error document; empty when it is none."""
    try:
        return _decoder.decode(body).error.message
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""
