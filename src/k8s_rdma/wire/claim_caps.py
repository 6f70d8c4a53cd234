"""Caps of interfaces by ResourceClaim, as the pod's owner wants them while it runs.

`k8s-rdma.io/claim-caps` maps names of interfaces in the pod to caps in Mb/s, 0 for none; an interface that it
does not name has its claim's cap:

    {"rdma0": 800}

The node's agent writes the outcome to `k8s-rdma.io/claim-caps-status`: a `RatesStatus`, `programmed` or
`refused`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from k8s_rdma.core.types import MAX_RATE_MBPS
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.placement_annotation import RatesStatus, decode_rates_status, digest

if TYPE_CHECKING:
    from collections.abc import Mapping

CLAIM_CAPS_ANNOTATION = "k8s-rdma.io/claim-caps"
CLAIM_CAPS_STATUS_ANNOTATION = "k8s-rdma.io/claim-caps-status"

MAX_TEXT = 65_536
MAX_CAPS = 1024

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=15)]
_Mbps = Annotated[int, msgspec.Meta(ge=0, le=MAX_RATE_MBPS)]
_decoder = msgspec.json.Decoder(Annotated[dict[_Name, _Mbps], msgspec.Meta(max_length=MAX_CAPS)])


class CapsRequest(NamedTuple):
    """The two annotations of a pod; empty where it has none."""

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
        if len(self.text) > MAX_TEXT:
            msg = f"{CLAIM_CAPS_ANNOTATION}: has {len(self.text)} characters, and at most {MAX_TEXT} are read"
            raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)
        return decode(self.text, _decoder, CLAIM_CAPS_ANNOTATION, Reason.MALFORMED_ANNOTATION)

    def status(self) -> RatesStatus | None:
        """Decode the status of that very text; None without one."""
        with suppress(MalformedError):
            status = decode_rates_status(self.status_text)
            if status.request == digest(self.text):
                return status
        return None


def encode_caps(caps: Mapping[str, int]) -> str:
    """Encode the caps."""
    return msgspec.json.encode(dict(caps)).decode()
