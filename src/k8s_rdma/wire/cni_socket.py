"""Frames between `k8s-rdma-cni` and the agent on `cni.sock`: a connection has one request and one reply.

Protocol version 1, little endian, every length known before the bytes that it counts:

    request  char magic[4] = "KRDC"; u16 version; u16 flags; u32 env_len; u32 stdin_len; u64 deadline_ms
             env_len bytes: the CNI_* variables as `KEY=VALUE`, each ended by a NUL
             stdin_len bytes: the network configuration as the runtime wrote it
    reply    char magic[4] = "KRDC"; u16 version; u16 exit_status; u32 stdout_len
             stdout_len bytes: the result for the runtime

Flag bit 0 says that an open file descriptor of the pod's network namespace came by SCM_RIGHTS with the
first bytes (unix(7)). The C side is `cni/agent.c`; a test runs the compiled program against this module.
"""

from __future__ import annotations

import struct

import msgspec

from k8s_rdma.errors import MalformedError

MAGIC = b"KRDC"
VERSION = 1
FLAG_NETNS = 1
"""Flag bit 0: a network namespace's descriptor is attached."""

REQUEST_HEADER = struct.Struct("<4sHHIIQ")
REPLY_HEADER = struct.Struct("<4sHHI")

MAX_ENV_BYTES = 64 << 10
MAX_STDIN_BYTES = 8 << 20
MAX_STDOUT_BYTES = 8 << 20
MAX_EXIT_STATUS = 255
"""The largest exit status of a process (wait(2))."""


class SocketRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the runtime, as the shim passes it on.

    env: the CNI_* variables.
    stdin: the network configuration, not parsed.
    has_netns: a descriptor of the pod's network namespace came with it.
    deadline_ms: when the shim stops waiting, milliseconds of CLOCK_MONOTONIC (the clock of `time.monotonic()`
        on Linux, one for all processes of a machine); 0 is never. It is an absolute time, so that a wait in
        the socket's backlog is not counted as fresh time.
    """

    env: dict[str, str]
    stdin: bytes
    has_netns: bool = False
    deadline_ms: int = 0


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The shim's output and exit status."""

    exit_status: int
    stdout: bytes


def request_bytes_missing(data: bytes | bytearray) -> int:
    """Return the least number of bytes missing from a request that begins with `data`; 0 when it is complete.

    MalformedError as soon as the header shows that no request will come of it, so that a limit is
    enforced before its bytes are read.
    """
    if len(data) < REQUEST_HEADER.size:
        _check_start(data, "request")
        return REQUEST_HEADER.size - len(data)
    _, env_len, stdin_len, _ = _request_header(data)
    return _body_missing(data, REQUEST_HEADER.size + env_len + stdin_len, "request")


def decode_request(data: bytes | bytearray) -> SocketRequest:
    """Return the request in exactly these bytes; MalformedError when they are not one whole request."""
    if missing := request_bytes_missing(data):
        msg = f"cni.sock request: cut short, {missing} bytes missing at least"
        raise MalformedError(msg)
    flags, env_len, _, deadline_ms = _request_header(data)
    env_end = REQUEST_HEADER.size + env_len
    return SocketRequest(
        env=_decode_env(bytes(data[REQUEST_HEADER.size : env_end])),
        stdin=bytes(data[env_end:]),
        has_netns=bool(flags & FLAG_NETNS),
        deadline_ms=deadline_ms,
    )


def encode_request(request: SocketRequest) -> bytes:
    """Return the bytes of a request; MalformedError if it exceeds a limit or a variable is invalid."""
    env = b"".join(_encode_variable(key, value) for key, value in request.env.items())
    _check_limit("request", "env_len", len(env), MAX_ENV_BYTES)
    _check_limit("request", "stdin_len", len(request.stdin), MAX_STDIN_BYTES)
    _check_limit("request", "deadline_ms", request.deadline_ms, 2**64 - 1)
    flags = FLAG_NETNS if request.has_netns else 0
    header = REQUEST_HEADER.pack(MAGIC, VERSION, flags, len(env), len(request.stdin), request.deadline_ms)
    return header + env + request.stdin


def reply_bytes_missing(data: bytes | bytearray) -> int:
    """Return the least number of bytes missing from a reply that begins with `data`; 0 when it is complete.

    MalformedError as for `request_bytes_missing`.
    """
    if len(data) < REPLY_HEADER.size:
        _check_start(data, "reply")
        return REPLY_HEADER.size - len(data)
    _, stdout_len = _reply_header(data)
    return _body_missing(data, REPLY_HEADER.size + stdout_len, "reply")


def decode_reply(data: bytes | bytearray) -> Reply:
    """Return the reply in exactly these bytes; MalformedError when they are not one whole reply."""
    if missing := reply_bytes_missing(data):
        msg = f"cni.sock reply: cut short, {missing} bytes missing at least"
        raise MalformedError(msg)
    exit_status, _ = _reply_header(data)
    return Reply(exit_status=exit_status, stdout=bytes(data[REPLY_HEADER.size :]))


def encode_reply(reply: Reply) -> bytes:
    """Return the bytes of a reply; MalformedError when it exceeds a limit."""
    _check_limit("reply", "exit_status", reply.exit_status, MAX_EXIT_STATUS)
    _check_limit("reply", "stdout_len", len(reply.stdout), MAX_STDOUT_BYTES)
    return REPLY_HEADER.pack(MAGIC, VERSION, reply.exit_status, len(reply.stdout)) + reply.stdout


def _request_header(data: bytes | bytearray) -> tuple[int, int, int, int]:
    """flags, env_len, stdin_len, deadline_ms; every one of them checked."""
    _check_start(data, "request")
    _, _, flags, env_len, stdin_len, deadline_ms = REQUEST_HEADER.unpack_from(data)
    _check_limit("request", "flags", flags, FLAG_NETNS)
    _check_limit("request", "env_len", env_len, MAX_ENV_BYTES)
    _check_limit("request", "stdin_len", stdin_len, MAX_STDIN_BYTES)
    return flags, env_len, stdin_len, deadline_ms


def _reply_header(data: bytes | bytearray) -> tuple[int, int]:
    """Decode exit_status and stdout_len, and check both."""
    _check_start(data, "reply")
    _, _, exit_status, stdout_len = REPLY_HEADER.unpack_from(data)
    _check_limit("reply", "exit_status", exit_status, MAX_EXIT_STATUS)
    _check_limit("reply", "stdout_len", stdout_len, MAX_STDOUT_BYTES)
    return exit_status, stdout_len


def _check_start(data: bytes | bytearray, subject: str) -> None:
    """Refuse bytes that cannot begin a frame of this protocol; as much is checked as has come."""
    expected = MAGIC + struct.pack("<H", VERSION)
    start = bytes(data[: len(expected)])
    if not expected.startswith(start):
        msg = f"cni.sock {subject}: magic and version are {start.hex()}, not {expected.hex()}"
        raise MalformedError(msg)


def _check_limit(subject: str, field: str, value: int, limit: int) -> None:
    if not 0 <= value <= limit:
        msg = f"cni.sock {subject}: {field} is {value}, outside 0..{limit}"
        raise MalformedError(msg)


def _body_missing(data: bytes | bytearray, size: int, subject: str) -> int:
    """Bytes missing to `size`; MalformedError when there are more than that."""
    if len(data) > size:
        msg = f"cni.sock {subject}: {len(data) - size} bytes follow it, a connection carries one"
        raise MalformedError(msg)
    return size - len(data)


def _encode_variable(key: str, value: str) -> bytes:
    if not key or "=" in key or "\0" in key + value:
        msg = f"cni.sock request: {key!r} cannot be written as KEY=VALUE"
        raise MalformedError(msg)
    return f"{key}={value}\0".encode()


def _decode_env(block: bytes) -> dict[str, str]:
    """Return the variables; MalformedError when one is not `KEY=VALUE` in UTF-8, or comes twice.

    Twice is refused because C's getenv takes the first and others the last: two programs would each
    believe another container ID.
    """
    if not block:
        return {}
    if not block.endswith(b"\0"):
        msg = "cni.sock request: the last variable has no end"
        raise MalformedError(msg)
    env: dict[str, str] = {}
    for entry in block[:-1].split(b"\0"):
        key, value = _decode_variable(entry)
        if key in env:
            msg = f"cni.sock request: variable {key} comes twice"
            raise MalformedError(msg)
        env[key] = value
    return env


def _decode_variable(entry: bytes) -> tuple[str, str]:
    try:
        key, separator, value = entry.decode().partition("=")
    except UnicodeDecodeError as error:
        msg = f"cni.sock request: variable {entry!r} is not UTF-8"
        raise MalformedError(msg) from error
    if not key or not separator:
        msg = f"cni.sock request: variable {entry!r} is not KEY=VALUE"
        raise MalformedError(msg)
    return key, value
