"""`state.sock`: what the agent and its readers say to each other.

Each message is its kind (one byte), a little-endian 32-bit length, and as many bytes:

    REPORT    from the agent: a `NodeReport` (`wire.rest`), at once on connect and after every change
    COUNTERS  from the agent: `Counters`, the answer to each SAMPLE
    SAMPLE    from a reader: no bytes; all that a reader may ask for

Whole reports rather than changes: a reader can never be out of step, and a node's report is some tens of
kilobytes.
"""

from __future__ import annotations

import struct
from enum import IntEnum, unique

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.rest import Pod

SAMPLE_EVERY_S = 15.0
"""A sample is taken no sooner than this after the one before, whoever asks."""

SOON_S = 1.0
"""An agent that is asked this much too early waits, and is asked so early: readers are themselves asked
every 15 s as a rule, and would otherwise see every second sample only."""

HEADER = struct.Struct("<BI")

MAX_BODY_BYTES = 16 << 20
"""Ten times what 1,024 VFs and as many pods take."""


@unique
class Kind(IntEnum):
    """The kind of a message."""

    REPORT = 1
    COUNTERS = 2
    SAMPLE = 3


class VfTraffic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The traffic of a VF, as `core.kernel.VfCounters`, and its holder at that time.

    pf: PCI address. pf_name: empty for a PF that is not there any more. ifname: the interface's name in
        the pod.
    """

    pf: str
    pf_name: str
    vf: int
    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int
    rdma: dict[str, int] = {}
    pod: Pod | None = None
    ifname: str = ""


class ScanCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Looks at the hardware since the agent started.

    failed: those that could not see everything. seconds: what all of them took together.
    """

    total: int
    failed: int
    seconds: float


class CapCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Caps that software keeps: put back since the agent started, and those that do not hold now."""

    restored: int = 0
    lost: int = 0


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """The latest sample of traffic, and how the agent's looks at the hardware go.

    age_s: how old the sample was when this was sent; null, and no `vfs`, while there is none.
    failed_samples: since the agent started.
    """

    node: str
    age_s: float | None
    failed_samples: int
    scans: ScanCounts
    caps: CapCounts = CapCounts()
    vfs: tuple[VfTraffic, ...] = ()


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Counters)


def encode_message(kind: Kind, body: bytes = b"") -> bytes:
    """A message's bytes; MalformedError when its body is longer than any reader takes."""
    _check_length(kind, len(body))
    return HEADER.pack(kind, len(body)) + body


def decode_header(header: bytes) -> tuple[Kind, int]:
    """The kind of a message and the length of its body, from its first `HEADER.size` bytes.

    MalformedError when no message begins so.
    """
    number, length = HEADER.unpack(header)
    try:
        kind = Kind(number)
    except ValueError as error:
        msg = f"state.sock: message of unknown kind {number}"
        raise MalformedError(msg) from error
    _check_length(kind, length)
    return kind, length


def encode_counters(counters: Counters) -> bytes:
    """The body of a COUNTERS message."""
    return _encoder.encode(counters)


def decode_counters(body: bytes) -> Counters:
    """Parse the body of a COUNTERS message; MalformedError names the field that does not fit."""
    return decode(body, _decoder, "counters")


def _check_length(kind: Kind, length: int) -> None:
    limit = 0 if kind is Kind.SAMPLE else MAX_BODY_BYTES
    if length > limit:
        msg = f"state.sock: {kind.name.lower()} of {length} bytes; at most {limit}"
        raise MalformedError(msg)
