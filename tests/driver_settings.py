"""Settings of a netdev's driver as ethtool(8) shows and sets them, by its ioctls.

Source: Linux `include/uapi/linux/ethtool.h`.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

_SIOCETHTOOL = 0x8946
_GET_TSO, _SET_TSO, _GET_GRO, _SET_GRO = 0x1E, 0x1F, 0x2B, 0x2C
_RINGS, _CHANNELS = (0x10, 0x11), (0x3C, 0x3D)
_NUMBERS = struct.Struct("=9I")
_MAXIMUM, _CURRENT = 1, 5


def features(ifname: str) -> str:
    """Whether TSO and GRO are on."""
    return f"TSO {_ask(ifname, _GET_TSO, 0)[1]}, GRO {_ask(ifname, _GET_GRO, 0)[1]}"


def turn_features_off(ifname: str) -> None:
    """Turn TSO and GRO off, as far as the driver can."""
    for command in (_SET_TSO, _SET_GRO):
        try:
            _ask(ifname, command, 0)
        except OSError:
            continue


def sizes(ifname: str) -> str:
    """Return the first ring's size and the first channel's number, if the driver has some."""
    return ", ".join(
        str(numbers[_CURRENT]) for get, _ in (_RINGS, _CHANNELS) if (numbers := _sizes(ifname, get))
    )


def change_sizes(ifname: str) -> bool:
    """Change the ring's size, or the number of channels; returns whether the driver has either."""
    before = sizes(ifname)
    for get, change in (_RINGS, _CHANNELS):
        numbers = _sizes(ifname, get)
        if not numbers:
            continue
        small, large = (80, numbers[_MAXIMUM]) if get == _RINGS[0] else (1, numbers[_MAXIMUM])
        numbers[0] = change
        numbers[_CURRENT] = small if numbers[_CURRENT] == large else large
        _ask_raw(ifname, _NUMBERS.pack(*numbers))
        if sizes(ifname) != before:
            return True
    return False


def _sizes(ifname: str, command: int) -> list[int]:
    try:
        return list(_NUMBERS.unpack(_ask_raw(ifname, struct.pack("=I", command))))
    except OSError:
        return []


def _ask(ifname: str, command: int, value: int) -> tuple[int, ...]:
    return struct.unpack_from("=II", _ask_raw(ifname, struct.pack("=II", command, value)))


def _ask_raw(ifname: str, question: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(question, _NUMBERS.size)
    request = struct.pack("@16sP16x", ifname.encode(), ctypes.addressof(buffer))
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
    return buffer.raw
