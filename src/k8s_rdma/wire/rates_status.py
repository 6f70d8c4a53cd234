"""The pod annotation `k8s-rdma.io/rates-status`: what became of a change of a running pod's rates.

The extender writes it, people and `k8s-rdma rates` read it; nothing is decided by it.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Literal

import msgspec

from k8s_rdma.wire.json import decode
from k8s_rdma.wire.rest import RatesGeneration

RATES_STATUS_ANNOTATION = "k8s-rdma.io/rates-status"

MAX_MESSAGE = 1024

State = Literal["waiting", "refused", "admitted", "programmed"]


class RatesStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The status of the latest change.

    state: `waiting` for an earlier change to be programmed; `refused`; `admitted`, reserved and signed, and
        not reported as programmed by the node yet; `programmed`.
    generation: of the placement that counts. request: `digest` of the annotation that this is about.
    message: why, in words.
    """

    state: State
    generation: RatesGeneration = 0
    request: Annotated[str, msgspec.Meta(max_length=16)] = ""
    message: Annotated[str, msgspec.Meta(max_length=MAX_MESSAGE)] = ""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(RatesStatus)


def digest(request_text: str) -> str:
    """Identify the text of a request annotation."""
    return sha256(request_text.encode()).hexdigest()[:16]


def encode_rates_status(status: RatesStatus) -> str:
    """Encode the status."""
    return _encoder.encode(status).decode()


def decode_rates_status(text: str) -> RatesStatus:
    """Decode the status. MalformedError names the field: a pod's owner may have edited it."""
    return decode(text.encode(), _decoder, RATES_STATUS_ANNOTATION)
