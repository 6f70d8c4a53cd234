"""Receipts as JSON, one row of the ledger each.

Rows of an older program are read by a newer one, so fields are only ever added, with a default.
"""

from __future__ import annotations

import msgspec

from k8s_rdma.core.ledger import Receipt
from k8s_rdma.wire.json import decode

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Receipt)


def encode_receipt(receipt: Receipt) -> bytes:
    """The row's bytes."""
    return _encoder.encode(receipt)


def decode_receipt(data: bytes) -> Receipt:
    """Parse a row; MalformedError names the field that does not fit."""
    return decode(data, _decoder, "receipt")
