"""BPF programs of tests, by bpf(2) and rtnetlink alone, so that no tested code attaches them.

Source: bpf(2), Linux `include/uapi/linux/{bpf,if_link}.h`.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import struct
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_libc = ctypes.CDLL(None, use_errno=True)
_CALL = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _PROG_LOAD, _OBJ_PIN, _PROG_ATTACH, _LINK_CREATE = 0, 1, 2, 5, 6, 8, 28
_XDP_PROGRAM, _CLASSIFIER, _XDP, _TCX_INGRESS = 6, 3, 37, 46
_ARRAY, _ATTRIBUTES = 2, 144
XDP_DROP, XDP_PASS, TCX_NEXT = 1, 2, -1
GENERIC = 2
"""XDP_FLAGS_SKB_MODE."""


def bpf(command: int, attributes: bytes) -> int:
    """The system call. OSError when it fails."""
    buffer = ctypes.create_string_buffer(attributes, _ATTRIBUTES)
    result = _libc.syscall(_CALL[os.uname().machine], command, buffer, _ATTRIBUTES)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


def instruction(code: int, *, dst: int = 0, src: int = 0, offset: int = 0, number: int = 0) -> bytes:
    """One instruction of eight bytes (Documentation/bpf/standardization/instruction-set.rst)."""
    return struct.pack("=BBhi", code, dst | src << 4, offset, number)


def returning(number: int) -> bytes:
    """Return a program that only returns."""
    return instruction(0xB7, number=number) + instruction(0x95)


def load(code: bytes, kind: int = _XDP_PROGRAM, attach_type: int = _XDP) -> int:
    """A loaded program's descriptor."""
    text = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"GPL")
    beginning = (kind, len(code) // 8, ctypes.addressof(text), ctypes.addressof(licence), 0, 0, 0, 0, 0)
    return bpf(_PROG_LOAD, struct.pack("=IIQQIIQII16sII", *beginning, b"", 0, attach_type))


def attach_xdp(ifname: str, program: int, flags: int = 0) -> None:
    """Attach by netlink, in the calling thread's namespace: it stays when the caller ends."""
    settings = struct.pack("=HHiHHI", 8, 1, program, 8, 3, flags)
    body = struct.pack("=BxHiII", 0, 0, socket.if_nametoindex(ifname), 0, 0)
    body += struct.pack("=HH", 4 + len(settings), 43 | 0x8000) + settings
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.send(struct.pack("=IHHII", 16 + len(body), 19, 5, 1, 0) + body)
        status = struct.unpack_from("=i", netlink.recv(4096), 16)[0]
    if status:
        raise OSError(-status, f"XDP on {ifname}: {os.strerror(-status)}")


def link_xdp(ifname: str, program: int, flags: int = 0) -> int:
    """Attach by a bpf_link, which only its descriptors' end removes. Returns one."""
    return bpf(_LINK_CREATE, struct.pack("=IIII", program, socket.if_nametoindex(ifname), _XDP, flags))


def attach_tcx(ifname: str) -> None:
    """Attach a classifier at ingress that passes everything; skips the test before Linux 6.6."""
    program = load(returning(TCX_NEXT), _CLASSIFIER, _TCX_INGRESS)
    question = struct.pack("=IIIIIIQ", socket.if_nametoindex(ifname), program, _TCX_INGRESS, 0, 0, 0, 0)
    try:
        bpf(_PROG_ATTACH, question)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        pytest.skip("needs tcx, Linux 6.6")
    finally:
        os.close(program)


def spy() -> tuple[int, int]:
    """A map, and an XDP program that passes everything and writes bytes 42 to 49 of each frame into it.

    These are the first eight bytes of data of a UDP datagram over IPv4.
    """
    array = bpf(_MAP_CREATE, struct.pack("=IIIII", _ARRAY, 4, 8, 1, 0))
    return array, load(b"".join(_spying(array)))


def _spying(array: int) -> Iterator[bytes]:
    yield instruction(0xBF, dst=6, src=1)
    yield instruction(0x61, dst=7, src=6)  # the frame's beginning
    yield instruction(0x61, dst=8, src=6, offset=4)  # its end
    yield instruction(0xBF, dst=1, src=7)
    yield instruction(0x07, dst=1, number=50)
    yield instruction(0x2D, dst=1, src=8, offset=9)  # shorter: pass
    yield instruction(0x79, dst=9, src=7, offset=42)
    yield instruction(0x62, dst=10, offset=-4)
    yield instruction(0xBF, dst=2, src=10)
    yield instruction(0x07, dst=2, number=-4)
    yield instruction(0x18, dst=1, src=1, number=array)
    yield instruction(0)
    yield instruction(0x85, number=1)  # bpf_map_lookup_elem
    yield instruction(0x15, offset=1)
    yield instruction(0x7B, src=9)
    yield instruction(0xB7, number=XDP_PASS)
    yield instruction(0x95)


def seen_by(array: int) -> bytes:
    """Return the content of a spy's map."""
    key, value = ctypes.create_string_buffer(4), ctypes.create_string_buffer(8)
    bpf(_MAP_LOOKUP, struct.pack("=IIQQQ", array, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
    return value.raw


def clear(array: int) -> None:
    """Empty a spy's map: until its interface is clean, frames of IPv6 reach it, too."""
    key, value = ctypes.create_string_buffer(4), ctypes.create_string_buffer(8)
    bpf(_MAP_UPDATE, struct.pack("=IIQQQ", array, 0, ctypes.addressof(key), ctypes.addressof(value), 0))


def pin(descriptor: int, path: str) -> None:
    """Have a program or link stay without any process, in a BPF file system."""
    text = ctypes.create_string_buffer(path.encode())
    bpf(_OBJ_PIN, struct.pack("=QII", ctypes.addressof(text), descriptor, 0))


_AF_XDP, _SOL_XDP = 44, 283
_RX_RING, _UMEM_REG, _FILL_RING, _COMPLETION_RING = 2, 4, 5, 6
_FRAMES, _FRAME_BYTES = 16, 4096


def bind_xdp_socket(ifname: str) -> tuple[socket.socket, mmap.mmap]:
    """An AF_XDP socket for an interface's first queue, in the calling thread's namespace; and its memory."""
    memory = mmap.mmap(-1, _FRAMES * _FRAME_BYTES)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    xdp = socket.socket(_AF_XDP, socket.SOCK_RAW)
    xdp.setsockopt(_SOL_XDP, _UMEM_REG, struct.pack("=QQIIII", address, len(memory), _FRAME_BYTES, 0, 0, 0))
    for ring in (_FILL_RING, _COMPLETION_RING, _RX_RING):
        xdp.setsockopt(_SOL_XDP, ring, _FRAMES)
    name = struct.pack("=HHIII", _AF_XDP, 0, socket.if_nametoindex(ifname), 0, 0)
    if _libc.bind(xdp.fileno(), name, len(name)):
        number = ctypes.get_errno()
        xdp.close()
        raise OSError(number, os.strerror(number))
    return xdp, memory
