"""JSON errors and suggestions."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest

from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.json import decode, line_of

NUMBERS = msgspec.json.Decoder(list[int])
NOTHINGS = msgspec.json.Decoder(list[None])
NULLS = b"[null" + b",null" * 1_000_000


def test_decode_returns_the_value_when_it_fits() -> None:
    assert decode(b"[1,2]", NUMBERS, "numbers") == [1, 2]


@pytest.mark.parametrize("data", [NULLS, bytearray(NULLS), NULLS.decode()], ids=["bytes", "bytearray", "str"])
def test_decode_takes_little_memory_for_long_text_that_is_no_json(data: bytes | bytearray | str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError, match=r"^numbers: no valid JSON: .* truncated"):
            decode(data, NOTHINGS, "numbers")
        assert tracemalloc.get_traced_memory()[1] < 4 * len(NULLS)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("data", [b"", b"[1", b'["a"]', b"\xff", '"\ud800"', "\ud800", b"[" * 100_000])
def test_decode_raises_malformed_when_it_does_not_fit(data: bytes | str) -> None:
    with pytest.raises(MalformedError, match=r"^numbers: ") as refused:
        decode(data, NUMBERS, "numbers", Reason.INVALID_NETCONF)
    assert refused.value.reason is Reason.INVALID_NETCONF
    assert refused.value.message.encode()


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("", 1),
        ("a", 2),
        ("b[0].c", 4),
        ("b[1].c", 5),
        ("b[1].absent", 5),
        ("b[9].c", 3),
        ("b.c", 3),
        ("a.b", 2),
        ("d[0].f", 7),
        ("e}\\", 9),
    ],
)
@pytest.mark.parametrize("blank", ["\n", "\r\n", " \n\t"])
def test_line_of_a_field_is_found_whatever_is_before_it(path: str, line: int, blank: str) -> None:
    rows = [
        "{",
        '"a": "{[\\"]}",',
        '"b" :[',
        '{"c": {}} ,',
        '{"c":[],"x":null}],',
        '"d": [',
        '{"f": -1.5e3',
        "}],",
        '"e}\\\\":true}',
    ]
    assert line_of(blank.join(rows), path) == line
