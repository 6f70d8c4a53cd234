"""The pod annotation `k8s-rdma.io/claim-caps`, caps of a pod's claims, and its status."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from k8s_rdma.core.types import MAX_RATE_MBPS
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.json import decode as decode_json
from k8s_rdma.wire.rates_status import RatesStatus, decode_rates_status, digest

if TYPE_CHECKING:
    from collections.abc import Mapping


_Name = Annotated[str, msgspec.Meta(max_length=15)]

_encoder = msgspec.json.Encoder()

CLAIM_CAPS_ANNOTATION = "k8s-rdma.io/claim-caps"
CLAIM_CAPS_STATUS_ANNOTATION = "k8s-rdma.io/claim-caps-status"

MAX_CAPS_TEXT = 65_536
MAX_CAPS = 1024

_Cap = Annotated[int, msgspec.Meta(ge=0, le=MAX_RATE_MBPS)]
_caps_decoder = msgspec.json.Decoder(Annotated[dict[_Name, _Cap], msgspec.Meta(max_length=MAX_CAPS)])


class CapsRequest(NamedTuple):
    """The two annotations of a pod; a missing one is empty."""

    text: str = ""
    status_text: str = ""

    @classmethod
    def read(cls, annotations: Mapping[str, str]) -> CapsRequest:
        """Read them, not decoded yet."""
        return cls(
            annotations.get(CLAIM_CAPS_ANNOTATION, ""), annotations.get(CLAIM_CAPS_STATUS_ANNOTATION, "")
        )

    def caps(self) -> dict[str, int]:
        """Decode the caps by interface, Mb/s. MalformedError (`MALFORMED_ANNOTATION`) names the field."""
        if not self.text:
            return {}
        if len(self.text) > MAX_CAPS_TEXT:
            msg = f"{CLAIM_CAPS_ANNOTATION}: {len(self.text)} characters, at most {MAX_CAPS_TEXT} are read"
            raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)
        return decode_json(self.text, _caps_decoder, CLAIM_CAPS_ANNOTATION, Reason.MALFORMED_ANNOTATION)

    def status(self) -> RatesStatus | None:
        """Decode the status, if it is of this very text."""
        with suppress(MalformedError):
            status = decode_rates_status(self.status_text)
            if status.request == digest(self.text):
                return status
        return None

    def describe(self) -> str:
        """Describe the outcome for that very text; empty if the pod has neither."""
        if not (self.text or self.status_text):
            return ""
        status = self.status()
        return status.describe() if status else "not decided"


def encode_caps(caps: Mapping[str, int]) -> str:
    """Encode the caps."""
    return _encoder.encode(dict(caps)).decode()
