"""Driver, firmware, device, pause frames, the driver's statistics and its flow rules of a netdev.

Queried by ioctl: netlink reports the device since Linux 5.14 (IFLA_PARENT_DEV_NAME), driver, firmware and
flow rules never. Source: Linux `include/uapi/linux/ethtool.h` (struct ethtool_drvinfo, ethtool_pauseparam,
ethtool_sset_info, ethtool_gstrings, ethtool_stats, ethtool_rxnfc, ethtool_tunable), netdevice(7).
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
_RXNFC_BYTES, _RULE_COUNT, _RULES, _FLOW_HASH = 192, 184, 0x2E, 0x29
_FLOW = struct.Struct("=IIQ")
_FLOW_TYPES = {"TCP": 1, "UDP": 2, "SCTP": 3, "TCP over IPv6": 5, "UDP over IPv6": 6, "SCTP over IPv6": 7}
_TUNABLE, _RX_COPYBREAK, _TX_COPYBREAK, _U32 = struct.Struct("=IIIII"), 1, 2, 3
_GTUNABLE = 0x48
_SPARE = 1024
"""Room for statistics that a driver adds after it was asked how many there are: the kernel writes as many as
there are then, whatever was asked for."""

_PAUSE_FRAMES = re.compile(r"(rx|tx)_prio([0-7])_pause")
"""The names of mlx5 (Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverInfo:
    """Information that a netdev's driver reports about itself; empty fields are not reported.

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
                raise DriverError("any netdev", error.errno or errno.EIO) from error

    def driver_info(self, name: str) -> DriverInfo | None:
        """Return a netdev's driver information, if there is any.

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

    def settings(self, name: str) -> dict[str, str]:
        """Return the settings that only ioctls show, by name; without those that the driver does not have.

        Errors of the driver count as values, by their names. KernelError when there is no such netdev.
        """
        rules = struct.pack("=I", _RULES).ljust(_RXNFC_BYTES, b"\0")
        found = {"flow rules": self._setting(name, rules, _RULE_COUNT)}
        for flow, kind in _FLOW_TYPES.items():
            question = _FLOW.pack(_FLOW_HASH, kind, 0).ljust(_RXNFC_BYTES, b"\0")
            found[f"hashed fields of {flow}"] = self._setting(name, question, _FLOW.size - 8)
        for tunable, kind in (("rx-copybreak", _RX_COPYBREAK), ("tx-copybreak", _TX_COPYBREAK)):
            question = _TUNABLE.pack(_GTUNABLE, kind, _U32, 4, 0)
            found[tunable] = self._setting(name, question, _TUNABLE.size - 4)
        return {setting: value for setting, value in found.items() if value is not None}

    def _setting(self, name: str, question: bytes, offset: int) -> str | None:
        """Return the number at this offset of the answer as text, if the driver has such a setting."""
        try:
            answer = self._request(name, question)
        except DriverError as error:
            if error.errno == errno.ENODEV:
                raise
            return error_name(error.errno)
        return None if answer is None else str(struct.unpack_from("=I", answer, offset)[0])

    def pause_frames(self, name: str) -> dict[int, PauseFrames]:
        """Return pause frames by priority, of drivers that count them; else as with `driver_info`."""
        return pause_frames_in(self.statistics(name))

    def _request(self, name: str, question: bytes) -> bytes | None:
        packed = name.encode(errors="surrogateescape")  # as `socket.string` has it
        if len(packed) >= _IFNAME_BYTES:
            raise DriverError(name, errno.ENODEV)
        answer = array.array("B", question)
        try:
            fcntl.ioctl(self.socket, _SIOCETHTOOL, _IFREQ.pack(packed, answer.buffer_info()[0]))
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return None
            raise DriverError(name, error.errno or errno.EIO) from error
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


class DriverError(KernelError):
    """A netdev's driver refused a question; `errno` as in errno(3)."""

    def __init__(self, name: str, number: int) -> None:
        """Describe the failure for this netdev."""
        super().__init__(f"driver of {name}: {error_name(number)}: {os.strerror(number)}")
        self.errno = number
