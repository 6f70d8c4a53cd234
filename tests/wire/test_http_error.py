"""Errors of HTTP endpoints, as their clients read them."""

from __future__ import annotations

import pytest

from k8s_rdma.wire.http_error import MAX_MESSAGE, message_of


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"reason":"r","message":"no"}}', "no"),
        (b'{"error":{"reason":"r","message":"' + b"x" * 100_000 + b'"}}', "x" * MAX_MESSAGE),
        (b'{"error":{"reason":"\xff","message":"no"}}', ""),
        (b'{"error":' + b"[" * 100_000, ""),
        (b"no", ""),
    ],
    ids=["short", "long", "no UTF-8", "deep", "no JSON"],
)
def test_message_of_an_error_is_read_in_every_form(body: bytes, message: str) -> None:
    assert message_of(body) == message
