"""Receipts as JSON, one row of the ledger each.

Rows of an older program are read by a newer one, so fields are only ever added, with a default.
"""

from __future__ import annotations

import msgspec

from k8s_rdma.core.ledger import Receipt
from k8s_rdma.wire.json import decode

_encoder = msgspec.json.Encoder()
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_decoder = msgspec.json.Decoder(Receipt)


def encode_receipt(receipt: Receipt) -> bytes:
    """The row's bytes."""
    return _encoder.encode(receipt)


def decode_receipt(data: bytes) -> Receipt:
    """Parse a row; MalformedError names the field that does not fit."""
    return decode(_of_now(data), _decoder, "receipt")


def _of_now(data: bytes) -> bytes:
    """The row as it is written now.

    The network's name was once beside the attachment instead of in it; then an attachment had all of the
    pod's interfaces, in the request's order.
    """
    fields = decode(data, _fields, "receipt")
    network = fields.pop("network", None)
    if network is None or not {"attachment", "interfaces"} <= fields.keys():
        return data
    attachment = decode(fields["attachment"], _fields, "receipt: attachment")
    interfaces = decode(fields["interfaces"], _list, "receipt: interfaces")
    fields["attachment"] = msgspec.Raw(_encoder.encode({"network": network, **attachment}))
    numbered = [{"entry": entry, **interface} for entry, interface in enumerate(interfaces)]
    fields["interfaces"] = msgspec.Raw(_encoder.encode(numbered))
    return _encoder.encode(fields)
