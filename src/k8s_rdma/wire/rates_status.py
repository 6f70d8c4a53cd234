"""The pod annotation `k8s-rdma.io/rates-status`: how far a change of rates has come."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json import decode as decode_json
from k8s_rdma.wire.report import RatesGeneration

if TYPE_CHECKING:
    from collections.abc import Mapping


_encoder = msgspec.json.Encoder()

RATES_STATUS_ANNOTATION = "k8s-rdma.io/rates-status"

MAX_STATUS_MESSAGE = 1024

RatesState = Literal["waiting", "refused", "admitted", "programmed"]


class RatesStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The status of the latest change.

    state: `waiting` for an earlier change to be programmed; `refused`; `admitted`, reserved and signed, and
        not reported as programmed by the node yet; `programmed`.
    generation: of the placement that counts.
    request: `digest` of the annotation that this is about.
    message: why, in words.
    """

    state: RatesState
    generation: RatesGeneration = 0
    request: Annotated[str, msgspec.Meta(max_length=16)] = ""
    message: Annotated[str, msgspec.Meta(max_length=MAX_STATUS_MESSAGE)] = ""

    def describe(self) -> str:
        """Describe the outcome, with its reason if there is one."""
        return f"{self.state}: {self.message}" if self.message else self.state


_status_decoder = msgspec.json.Decoder(RatesStatus)


def digest(request_text: str) -> str:
    """Identify the text of a request annotation."""
    return sha256(request_text.encode()).hexdigest()[:16]


def encode_rates_status(status: RatesStatus) -> str:
    """Encode the status."""
    return _encoder.encode(status).decode()


def describe_rates_status(annotations: Mapping[str, str]) -> str:
    """Describe the outcome of a pod's last change of rates; empty without one."""
    text = annotations.get(RATES_STATUS_ANNOTATION)
    if text is None:
        return ""
    try:
        status = decode_rates_status(text)
    except MalformedError as error:
        return error.message
    return status.describe()


def decode_rates_status(text: str) -> RatesStatus:
    """Decode the status. MalformedError names the field: a pod's owner may have edited it."""
    return decode_json(text, _status_decoder, RATES_STATUS_ANNOTATION)
