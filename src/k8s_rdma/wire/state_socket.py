"""Messages between the agent and the readers of its `state.sock`.

Each message is its kind (one byte), a little-endian 32-bit length, and as many bytes:

    REPORT    from the agent: a `NodeReport` (`wire.report`), at once on connect and after every change
    COUNTERS  from the agent: `Counters`, the answer to each SAMPLE
    SAMPLE    from a reader: no bytes
    PLACEMENT from a reader: the text of a signed placement (`wire.placement_annotation`), to an agent whose
              report has `takes_placements`; an older agent closes the connection
    VERDICT   from the agent: `PlacementVerdict`, the answer to each PLACEMENT

Whole reports rather than changes: a reader can never be out of step, and a node's report is some tens of
kilobytes.
"""

from __future__ import annotations

import struct
from enum import IntEnum, unique

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.report import ReportedPod

_encoder = msgspec.json.Encoder()

SAMPLE_EVERY_S = 15.0
"""The minimum interval between two samples, for all clients together."""

SOON_S = 1.0
"""An agent that is asked this much too early waits, and is asked so early: readers are themselves asked
every 15 s as a rule, and would otherwise see every second sample only."""

HEADER = struct.Struct("<BI")

MAX_BODY_BYTES = 16 << 20
"""Ten times the size for 1,024 VFs and as many pods."""

MAX_PLACEMENT_BYTES = 256 << 10
"""The API server's limit for all annotations of a pod."""


@unique
class MessageKind(IntEnum):
    """The kind of a message."""

    REPORT = 1
    COUNTERS = 2
    SAMPLE = 3
    PLACEMENT = 4
    VERDICT = 5


_MAX_BYTES = {MessageKind.SAMPLE: 0, MessageKind.PLACEMENT: MAX_PLACEMENT_BYTES}


class VfTraffic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The traffic of a VF, as `core.kernel.VfCounters`, and its holder at that time.

    pf: PCI address.
    pf_name: empty for a PF that is not there any more.
    ifname: the interface's name in the pod.
    """

    pf: str
    pf_name: str
    vf: int
    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int
    tx_dropped: int | None = None
    rx_dropped: int | None = None
    rdma: dict[str, int] = {}
    pod: ReportedPod | None = None
    ifname: str = ""


class PfPauses(msgspec.Struct, frozen=True, kw_only=True):
    """Pause frames of a PF at one priority. pf: PCI address."""

    pf: str
    pf_name: str
    priority: int
    tx_frames: int
    rx_frames: int


class ScanCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Scans of the hardware since the agent started.

    failed: those that could not read everything.
    seconds: the time that all of them took together.
    """

    total: int
    failed: int
    seconds: float


class PlacementVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The agent's answer to a placement: the reason for its refusal and a message, both empty without one."""

    reason: str = ""
    message: str = ""


class RateChangeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of running pods' rates.

    made, refused: since the agent's start.
    refused: attempts, failed ones included.
    waiting: how many are not made now.
    """

    made: int = 0
    refused: int = 0
    waiting: int = 0


class CapCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Caps that software keeps: put back since the agent started, and those that do not hold now."""

    restored: int = 0
    lost: int = 0


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """The latest sample of traffic, and figures on the agent's scans of the hardware.

    age_s: how old the sample was when this was sent; null, and no `vfs`, while there is no sample.
    failed_samples: since the agent started.
    """

    node: str
    age_s: float | None
    failed_samples: int
    scans: ScanCounts
    caps: CapCounts = CapCounts()
    rate_changes: RateChangeCounts = RateChangeCounts()
    vfs: tuple[VfTraffic, ...] = ()
    pauses: tuple[PfPauses, ...] = ()


_decoder = msgspec.json.Decoder(Counters)
_verdict_decoder = msgspec.json.Decoder(PlacementVerdict)


def encode_message(kind: MessageKind, body: bytes = b"") -> bytes:
    """Return a message's bytes; MalformedError when its body is longer than any reader takes."""
    _check_length(kind, len(body))
    return HEADER.pack(kind, len(body)) + body


def decode_header(header: bytes) -> tuple[MessageKind, int]:
    """Return the kind of a message and the length of its body, from its first `HEADER.size` bytes.

    MalformedError when no message begins so.
    """
    number, length = HEADER.unpack(header)
    try:
        kind = MessageKind(number)
    except ValueError as error:
        msg = f"state.sock: message of unknown kind {number}"
        raise MalformedError(msg) from error
    _check_length(kind, length)
    return kind, length


def encode_counters(counters: Counters) -> bytes:
    """Return the body of a COUNTERS message."""
    return _encoder.encode(counters)


def decode_counters(body: bytes) -> Counters:
    """Parse the body of a COUNTERS message; MalformedError names the field that does not fit."""
    return decode(body, _decoder, "counters")


def encode_verdict(verdict: PlacementVerdict) -> bytes:
    """Return the body of a VERDICT message."""
    return _encoder.encode(verdict)


def decode_verdict(body: bytes) -> PlacementVerdict:
    """Parse the body of a VERDICT message; MalformedError names the field that does not fit."""
    return decode(body, _verdict_decoder, "verdict")


def _check_length(kind: MessageKind, length: int) -> None:
    limit = _MAX_BYTES.get(kind, MAX_BODY_BYTES)
    if length > limit:
        msg = f"state.sock: {kind.name.lower()} of {length} bytes; at most {limit}"
        raise MalformedError(msg)
