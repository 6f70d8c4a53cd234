"""Driver, firmware, device and pause frames of a netdev.

Queried by ioctl: netlink reports the device since Linux 5.14 (IFLA_PARENT_DEV_NAME), driver and firmware
never. Source: Linux `include/uapi/linux/ethtool.h` (struct ethtool_drvinfo, ethtool_pauseparam),
netdevice(7).
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Self

from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.socket import string
from k8s_rdma.linux.netns import entered
from k8s_rdma.linux.sysfs import error_name

_SIOCETHTOOL, _GDRVINFO, _GPAUSEPARAM = 0x8946, 3, 0x12
_DRVINFO = struct.Struct("=I32s32s32s32s32s12s5I")
_PAUSE = struct.Struct("=4I")
_IFREQ = struct.Struct("@16sP16x")
_IFNAME_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverInfo:
    """Information that a netdev's driver reports about itself; empty where it reports nothing.

    bus_info: the address of a PCI function; free text for other devices.
    """

    driver: str
    firmware: str
    bus_info: str


class Ethtool:
    """Queries netdevs of one namespace and keeps that alive; close it soon unless it is one's own."""

    def __init__(self, namespace: int | None = None) -> None:
        """Open a socket in the namespace of this descriptor, by default in the calling thread's own.

        KernelError when no socket can be opened.
        """
        with nullcontext() if namespace is None else entered(namespace):
            try:
                self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            except OSError as error:
                raise _failure("any netdev", error.errno or errno.EIO) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def driver_info(self, name: str) -> DriverInfo | None:
        """Return a netdev's driver information; None without any.

        KernelError when there is no such netdev.
        """
        answer = self._request(name, _DRVINFO.pack(_GDRVINFO, *[b""] * 6, *[0] * 5))
        if answer is None:
            return None
        _, driver, _, firmware, bus_info, *_ = _DRVINFO.unpack(answer)
        return DriverInfo(driver=_text(driver), firmware=_text(firmware), bus_info=_text(bus_info))

    def pauses(self, name: str) -> bool | None:
        """Return True when global pause frames are sent or obeyed; else as with `driver_info`."""
        answer = self._request(name, _PAUSE.pack(_GPAUSEPARAM, 0, 0, 0))
        return None if answer is None else any(_PAUSE.unpack(answer)[2:])

    def _request(self, name: str, question: bytes) -> bytes | None:
        packed = name.encode(errors="surrogateescape")  # as `socket.string` has it
        if len(packed) >= _IFNAME_BYTES:
            raise _failure(name, errno.ENODEV)
        answer = array.array("B", question)
        try:
            fcntl.ioctl(self._socket, _SIOCETHTOOL, _IFREQ.pack(packed, answer.buffer_info()[0]))
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return None
            raise _failure(name, error.errno or errno.EIO) from error
        return answer.tobytes()


def _text(value: bytes) -> str:
    """Decode a text; drivers write `N/A` for an unknown one, which becomes empty."""
    found = string(value.partition(b"\0")[0])
    return "" if found == "N/A" else found


def _failure(name: str, number: int) -> KernelError:
    return KernelError(f"driver of {name}: {error_name(number)}: {os.strerror(number)}")
