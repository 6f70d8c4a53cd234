"""Both frames of `cni.sock`: whole, in pieces, and wrong."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.cni_socket import (
    MAX_ENV_BYTES,
    MAX_STDIN_BYTES,
    MAX_STDOUT_BYTES,
    Reply,
    SocketRequest,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    reply_bytes_missing,
    request_bytes_missing,
)

VALUE = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
KEY = st.from_regex(r"CNI_[A-Z_]{1,20}", fullmatch=True)
REQUESTS = st.builds(
    SocketRequest,
    env=st.dictionaries(KEY, VALUE, max_size=8),
    stdin=st.binary(max_size=300),
    has_netns=st.booleans(),
    deadline_ms=st.integers(0, 2**64 - 1),
)
REPLIES = st.builds(Reply, exit_status=st.integers(0, 255), stdout=st.binary(max_size=300))

WHOLE_REQUEST = encode_request(SocketRequest(env={"CNI_COMMAND": "ADD"}, stdin=b"{}", deadline_ms=5))
WHOLE_REPLY = encode_reply(Reply(exit_status=1, stdout=b"{}"))


def request_header(*, magic=b"KRDC", version=1, flags=0, env_len=0, stdin_len=0, deadline_ms=0) -> bytes:
    return struct.pack("<4sHHIIQ", magic, version, flags, env_len, stdin_len, deadline_ms)


def request_of_env(block: bytes) -> bytes:
    return request_header(env_len=len(block)) + block


def reply_header(*, magic=b"KRDC", version=1, exit_status=0, stdout_len=0) -> bytes:
    return struct.pack("<4sHHI", magic, version, exit_status, stdout_len)


def test_request_has_the_documented_bytes() -> None:
    request = SocketRequest(env={"CNI_COMMAND": "DEL"}, stdin=b"{}", has_netns=True, deadline_ms=0x0102)
    assert encode_request(request).hex(" ", -4) == (
        "4b524443 01000100 10000000 02000000 02010000 00000000 434e495f 434f4d4d 414e443d 44454c00 7b7d"
    )


def test_reply_has_the_documented_bytes() -> None:
    assert encode_reply(Reply(exit_status=1, stdout=b"{}")).hex(" ", -4) == "4b524443 01000100 02000000 7b7d"


@given(REQUESTS)
def test_request_comes_back_as_it_was(request: SocketRequest) -> None:
    assert decode_request(encode_request(request)) == request


@given(REPLIES)
def test_reply_comes_back_as_it_was(reply: Reply) -> None:
    assert decode_reply(encode_reply(reply)) == reply


@given(REQUESTS)
def test_request_is_read_whole_when_the_reader_requests_the_missing_bytes(request: SocketRequest) -> None:
    frame, data = encode_request(request), bytearray()
    while missing := request_bytes_missing(data):
        data += frame[len(data) : len(data) + missing]
    assert bytes(data) == frame


@given(REPLIES)
def test_reply_is_read_whole_when_the_reader_requests_the_missing_bytes(reply: Reply) -> None:
    frame, data = encode_reply(reply), bytearray()
    while missing := reply_bytes_missing(data):
        data += frame[len(data) : len(data) + missing]
    assert bytes(data) == frame


@given(REQUESTS, st.data())
def test_request_is_incomplete_when_cut_anywhere(request: SocketRequest, data: st.DataObject) -> None:
    frame = encode_request(request)
    cut = data.draw(st.integers(0, len(frame) - 1))
    assert 0 < request_bytes_missing(frame[:cut]) <= len(frame) - cut
    with pytest.raises(MalformedError, match="cut short"):
        decode_request(frame[:cut])


@given(REPLIES, st.data())
def test_reply_is_incomplete_when_cut_anywhere(reply: Reply, data: st.DataObject) -> None:
    frame = encode_reply(reply)
    cut = data.draw(st.integers(0, len(frame) - 1))
    assert 0 < reply_bytes_missing(frame[:cut]) <= len(frame) - cut
    with pytest.raises(MalformedError, match="cut short"):
        decode_reply(frame[:cut])


@given(st.binary(max_size=80))
def test_request_decoder_fails_with_malformed_only_when_given_any_bytes(data: bytes) -> None:
    try:
        request = decode_request(request_header()[:6] + data)
    except MalformedError:
        return
    assert decode_request(encode_request(request)) == request


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"HTTP", "magic and version are 48545450"),
        (request_header(magic=b"KRDX"), "magic and version are 4b5244580100, not 4b5244430100"),
        (request_header(version=2), "magic and version"),
        (request_header(flags=2), "flags is 2"),
        (request_header(env_len=MAX_ENV_BYTES + 1), "env_len is 65537, outside 0..65536"),
        (request_header(stdin_len=MAX_STDIN_BYTES + 1), "stdin_len is 8388609, outside 0..8388608"),
        (WHOLE_REQUEST + b"x", "1 bytes follow it"),
    ],
)
def test_request_is_malformed_before_more_is_read_when(data: bytes, message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        request_bytes_missing(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0", "magic and version are 00"),
        (reply_header(magic=b"krdc"), "magic and version"),
        (reply_header(version=0), "magic and version"),
        (reply_header(exit_status=256), "exit_status is 256"),
        (reply_header(stdout_len=MAX_STDOUT_BYTES + 1), "stdout_len is 8388609"),
        (WHOLE_REPLY + b"xy", "2 bytes follow it"),
    ],
)
def test_reply_is_malformed_before_more_is_read_when(data: bytes, message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        reply_bytes_missing(data)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (b"CNI_COMMAND=ADD", "no end"),
        (b"CNI_COMMAND\0", "not KEY=VALUE"),
        (b"=ADD\0", "not KEY=VALUE"),
        (b"CNI_ARGS=\xff\0", "not UTF-8"),
        (b"CNI_A=1\0CNI_A=2\0", "CNI_A comes twice"),
        (b"\0", "not KEY=VALUE"),
    ],
)
def test_request_is_malformed_when_its_environment_is(block: bytes, message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        decode_request(request_of_env(block))


def test_request_keeps_equals_signs_in_a_value() -> None:
    frame = request_of_env(b"CNI_ARGS=K8S_POD_NAME=a;X=b\0CNI_NETNS=\0")
    assert decode_request(frame).env == {"CNI_ARGS": "K8S_POD_NAME=a;X=b", "CNI_NETNS": ""}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (SocketRequest(env={"CNI_ARGS": "a" * MAX_ENV_BYTES}, stdin=b""), "env_len"),
        (SocketRequest(env={}, stdin=bytes(MAX_STDIN_BYTES + 1)), "stdin_len"),
        (SocketRequest(env={}, stdin=b"", deadline_ms=-1), "deadline_ms"),
        (SocketRequest(env={"A=B": ""}, stdin=b""), "KEY=VALUE"),
        (SocketRequest(env={"A": "b\0C=d"}, stdin=b""), "KEY=VALUE"),
    ],
)
def test_request_is_not_encoded_when_it_cannot_be_expressed(request_: SocketRequest, message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        encode_request(request_)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(exit_status=256, stdout=b""), "exit_status"),
        (Reply(exit_status=-1, stdout=b""), "exit_status"),
        (Reply(exit_status=0, stdout=bytes(MAX_STDOUT_BYTES + 1)), "stdout_len"),
    ],
)
def test_reply_is_not_encoded_when_it_cannot_be_expressed(reply: Reply, message: str) -> None:
    with pytest.raises(MalformedError, match=message):
        encode_reply(reply)


def test_frames_hold_the_largest_bodies_allowed() -> None:
    request = SocketRequest(env={"A": "a" * (MAX_ENV_BYTES - 3)}, stdin=bytes(MAX_STDIN_BYTES))
    assert decode_request(encode_request(request)) == request
    reply = Reply(exit_status=255, stdout=bytes(MAX_STDOUT_BYTES))
    assert decode_reply(encode_reply(reply)) == reply
