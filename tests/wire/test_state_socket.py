from __future__ import annotations

import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.report import ReportedPod
from k8s_rdma.wire.state_socket import (
    HEADER,
    MAX_BODY_BYTES,
    MAX_PLACEMENT_BYTES,
    Counters,
    MessageKind,
    ScanCounts,
    VfTraffic,
    decode_counters,
    decode_header,
    encode_counters,
    encode_message,
)

COUNTERS = Counters(
    node="w1",
    age_s=0.5,
    failed_samples=1,
    scans=ScanCounts(total=3, failed=1, seconds=0.25),
    vfs=(
        VfTraffic(
            pf="0000:03:00.0",
            pf_name="f0",
            vf=1,
            tx_bytes=2**64 - 1,
            rx_bytes=2,
            tx_packets=3,
            rx_packets=4,
            rdma={"out_of_buffer": 5},
            pod=ReportedPod(namespace="default", name="p", uid="u"),
            ifname="rdma0",
        ),
    ),
)


@pytest.mark.parametrize("kind", MessageKind)
def test_message_begins_with_its_kind_and_length(kind: MessageKind) -> None:
    body = b"" if kind is MessageKind.SAMPLE else b"body"
    message = encode_message(kind, body)
    assert decode_header(message[: HEADER.size]) == (kind, len(body))
    assert message[HEADER.size :] == body


def test_message_is_these_bytes() -> None:
    assert encode_message(MessageKind.REPORT, b"{}") == b"\x01\x02\x00\x00\x00{}"


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (HEADER.pack(0, 0), "unknown kind 0"),
        (HEADER.pack(6, 0), "unknown kind 6"),
        (
            HEADER.pack(MessageKind.PLACEMENT, MAX_PLACEMENT_BYTES + 1),
            f"placement of {MAX_PLACEMENT_BYTES + 1} bytes",
        ),
        (
            HEADER.pack(MessageKind.REPORT, MAX_BODY_BYTES + 1),
            f"report of {MAX_BODY_BYTES + 1} bytes; at most",
        ),
        (HEADER.pack(MessageKind.SAMPLE, 1), "sample of 1 bytes; at most 0"),
    ],
)
def test_header_that_begins_no_message_is_refused(header: bytes, words: str) -> None:
    with pytest.raises(MalformedError, match=words):
        decode_header(header)


def test_message_beyond_the_limit_is_not_made() -> None:
    with pytest.raises(MalformedError, match="at most 0"):
        encode_message(MessageKind.SAMPLE, b"x")


def test_counters_are_read_as_they_were_written() -> None:
    assert decode_counters(encode_counters(COUNTERS)) == COUNTERS


def test_counters_that_are_wrong_are_refused_by_field() -> None:
    body = encode_counters(COUNTERS).replace(b'"tx_packets":3', b'"tx_packets":"3"')
    with pytest.raises(MalformedError, match=r"counters: .*\$\.vfs\[0\]\.tx_packets"):
        decode_counters(body)
