"""Devlink: what devices there are, and what mode the embedded switch of one is in.

Source: Linux `include/uapi/linux/{genetlink,devlink}.h`, Documentation/networking/devlink, 6.1.
"""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING, NamedTuple, Self

from k8s_rdma.linux.netlink.socket import (
    GENERIC,
    NetlinkError,
    NetlinkSocket,
    attributes,
    connect,
    number,
    string,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONTROLLER, _GETFAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2
_HEADER = struct.Struct("=BBxx")
_GET, _ESWITCH_GET = 1, 29
_BUS_NAME, _DEV_NAME, _ESWITCH_MODE = 1, 2, 25
_MODES = ("legacy", "switchdev")


class DevlinkDevice(NamedTuple):
    """A device by the names of its bus and of itself there: `pci`, `0000:3b:00.0`."""

    bus: str
    name: str


class Devlink:
    """The devlink devices of the calling thread's network namespace. Every failure is a `NetlinkError`."""

    def __init__(self, socket: NetlinkSocket | None = None) -> None:
        """Ask by this socket, or a new one; the family may come later, with the first driver that has it."""
        self._socket = socket or NetlinkSocket(connect(GENERIC))
        self._family: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def eswitch_modes(self, bus: str) -> Mapping[str, str]:
        """`legacy` or `switchdev` by device name on that bus, of those that have an embedded switch.

        Needs CAP_NET_ADMIN (EPERM) where there is any device.
        """
        found = {device.name: self._eswitch_mode(device) for device in self.devices() if device.bus == bus}
        return {name: mode for name, mode in found.items() if mode is not None}

    def devices(self) -> tuple[DevlinkDevice, ...]:
        """All there are; none where the kernel knows no devlink."""
        return tuple(map(device_of, self.dump(_GET, "devlink devices")))

    def dump(self, command: int, what: str) -> list[dict[int, bytes]]:
        """The attributes of all objects of a kind; none where the kernel knows no devlink."""
        family = self._find_family()
        if family is None:
            return []
        return list(map(_attributes, self._socket.dump(family, _HEADER.pack(command, 1), what)))

    def _eswitch_mode(self, device: DevlinkDevice) -> str | None:
        body = _HEADER.pack(_ESWITCH_GET, 1) + text(_BUS_NAME, device.bus) + text(_DEV_NAME, device.name)
        what = f"switch mode of {device.bus}/{device.name}"
        try:
            found = _attributes(self._socket.get(self._find_family() or 0, body, what))
        except NetlinkError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENODEV):  # it has none, or is gone since
                return None
            raise
        mode = number(found[_ESWITCH_MODE])
        return _MODES[mode] if mode < len(_MODES) else str(mode)

    def _find_family(self) -> int | None:
        if self._family is None:
            body = _HEADER.pack(_GETFAMILY, 1) + text(_FAMILY_NAME, "devlink")
            try:
                found = _attributes(self._socket.get(_CONTROLLER, body, "devlink family"))
            except NetlinkError as error:
                if error.errno == errno.ENOENT:
                    return None
                raise
            self._family = number(found[_FAMILY_ID])
        return self._family


def device_of(found: Mapping[int, bytes]) -> DevlinkDevice:
    """Whose object it is."""
    return DevlinkDevice(string(found[_BUS_NAME]), string(found[_DEV_NAME]))


def _attributes(body: bytes) -> dict[int, bytes]:
    return attributes(body, _HEADER.size)
