"""Driver, firmware, device, pause frames and the driver's statistics of a netdev.

Queried by ioctl: netlink reports the device since Linux 5.14 (IFLA_PARENT_DEV_NAME), driver and firmware
never. Source: Linux `include/uapi/linux/ethtool.h` (struct ethtool_drvinfo, ethtool_pauseparam,
ethtool_sset_info, ethtool_gstrings, ethtool_stats), netdevice(7).
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import re
import socket
import struct
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import PauseFrames
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.socket import SocketClient, string
from k8s_rdma.linux.netns import entered
from k8s_rdma.linux.sysfs import error_name

if TYPE_CHECKING:
    from collections.abc import Mapping

_SIOCETHTOOL, _GDRVINFO, _GPAUSEPARAM = 0x8946, 3, 0x12
_DRVINFO = struct.Struct("=I32s32s32s32s32s12s5I")
_PAUSE = struct.Struct("=4I")
_IFREQ = struct.Struct("@16sP16x")
_IFNAME_BYTES = 16
_GSTRINGS, _GSTATS, _GSSET_INFO, _SS_STATS = 0x1B, 0x1D, 0x37, 1
_STRING_SETS = struct.Struct("=IIQI4x")
_STRINGS, _STRING_BYTES = struct.Struct("=III"), 32
_STATISTICS = struct.Struct("=II")
_SPARE = 1024
"""Room for statistics that a driver adds after it was asked how many there are: the kernel writes as many as
there are then, whatever was asked for."""

_PAUSE_FRAMES = re.compile(r"(rx|tx)_prio([0-7])_pause")
"""The names of mlx5 (Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverInfo:
    """Information that a netdev's driver reports about itself; empty where it reports nothing.

    bus_info: the address of a PCI function; free text for other devices.
    """

    driver: str
    firmware: str
    bus_info: str


class Ethtool(SocketClient[socket.socket]):
    """Queries netdevs of one namespace and keeps that alive; close it soon unless it is one's own."""

    def __init__(self, namespace: int | None = None) -> None:
        """Open a socket in the namespace of this descriptor, by default in the calling thread's own.

        KernelError when no socket can be opened.
        """
        with nullcontext() if namespace is None else entered(namespace):
            try:
                self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            except OSError as error:
                raise _failure("any netdev", error.errno or errno.EIO) from error

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

    def statistics(self, name: str) -> dict[str, int]:
        """Return the counters that a netdev's driver has, by its own names; else as with `driver_info`."""
        sets = self._request(name, _STRING_SETS.pack(_GSSET_INFO, 0, 1 << _SS_STATS, 0))
        count = 0 if sets is None else _STRING_SETS.unpack(sets)[3]
        if not count:
            return {}
        room = count + _SPARE
        texts = bytes(room * _STRING_BYTES)
        strings = self._request(name, _STRINGS.pack(_GSTRINGS, _SS_STATS, count) + texts)
        values = self._request(name, _STATISTICS.pack(_GSTATS, count) + bytes(room * 8))
        if strings is None or values is None:
            return {}
        starts = range(_STRINGS.size, _STRINGS.size + count * _STRING_BYTES, _STRING_BYTES)
        names = (_text(strings[start : start + _STRING_BYTES]) for start in starts)
        counters = struct.unpack_from(f"={count}Q", values, _STATISTICS.size)
        return dict(zip(names, counters, strict=True))

    def pause_frames(self, name: str) -> dict[int, PauseFrames]:
        """Return pause frames by priority, of drivers that count them; else as with `driver_info`."""
        return pause_frames_in(self.statistics(name))

    def _request(self, name: str, question: bytes) -> bytes | None:
        packed = name.encode(errors="surrogateescape")  # as `socket.string` has it
        if len(packed) >= _IFNAME_BYTES:
            raise _failure(name, errno.ENODEV)
        answer = array.array("B", question)
        try:
            fcntl.ioctl(self.socket, _SIOCETHTOOL, _IFREQ.pack(packed, answer.buffer_info()[0]))
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return None
            raise _failure(name, error.errno or errno.EIO) from error
        return answer.tobytes()


def pause_frames_in(statistics: Mapping[str, int]) -> dict[int, PauseFrames]:
    """Find the pause frames by priority among a driver's statistics; of priorities with both directions."""
    counts = {
        (found[1], int(found[2])): value
        for name, value in statistics.items()
        if (found := _PAUSE_FRAMES.fullmatch(name))
    }
    return {
        priority: PauseFrames(sent=counts["tx", priority], received=received)
        for (direction, priority), received in counts.items()
        if direction == "rx" and ("tx", priority) in counts
    }


def _text(value: bytes) -> str:
    """Decode a text; drivers write `N/A` for an unknown one, which becomes empty."""
    found = string(value.partition(b"\0")[0])
    return "" if found == "N/A" else found


def _failure(name: str, number: int) -> KernelError:
    return KernelError(f"driver of {name}: {error_name(number)}: {os.strerror(number)}")
