"""Devlink: its devices, the mode of their embedded switches, boolean parameters, and rates of VFs.

Source: Linux `include/uapi/linux/{genetlink,devlink}.h`, Documentation/networking/devlink
(devlink-params.rst), `net/devlink/leftover.c` (devlink_nl_rate_fill), 6.1. Rates are in bytes a second;
Linux before 5.14 has none.
"""

from __future__ import annotations

import errno
import struct
import sys
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.types import BYTES_PER_MEGABIT
from k8s_rdma.linux.netlink.generic import find_family
from k8s_rdma.linux.netlink.queries import DevlinkRate
from k8s_rdma.linux.netlink.socket import (
    GENERIC,
    NetlinkError,
    NetlinkSocket,
    SocketClient,
    attributes,
    connect,
    each_attribute,
    number,
    string,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HEADER = struct.Struct("=BBxx")
_DEV_GET, _ESWITCH_GET = 1, 29
_BUS_NAME, _DEV_NAME, _ESWITCH_MODE = 1, 2, 25
_MODES = ("legacy", "switchdev")

_PARAM_GET = 38
_PARAM, _NAME, _TYPE, _VALUES, _VALUE, _DATA, _CMODE = 80, 81, 83, 84, 85, 86, 87
_FLAG = 6
"""Type NLA_FLAG: the attribute is present for true (devlink_nl_param_value_fill_one, net/core/devlink.c)."""

_PORT_GET, _RATE_GET = 5, 74
_PORT_INDEX, _PORT_FLAVOUR, _PORT_VF, _PORT_EXTERNAL = 3, 77, 128, 149
_TX_SHARE, _TX_MAX, _NODE_NAME, _PARENT = 166, 167, 168, 169
_PCI_VF = 4

_Attributes = dict[int, bytes]


class DevlinkDevice(NamedTuple):
    """A devlink device: the name of its bus and its name there, `pci`, `0000:3b:00.0`."""

    bus: str
    name: str


class Devlink(SocketClient[NetlinkSocket]):
    """The devlink devices of the calling thread's network namespace. Every failure is a `NetlinkError`."""

    def __init__(self, socket: NetlinkSocket | None = None) -> None:
        """Use this socket, or a new one; the family may appear later, with the first driver that uses it."""
        self.socket = socket or NetlinkSocket(connect(GENERIC))
        self._family: int | None = None

    def eswitch_modes(self, bus: str) -> Mapping[str, str]:
        """Return `legacy` or `switchdev` by device name on that bus, for devices with an embedded switch.

        Needs CAP_NET_ADMIN (EPERM) if there is any device.
        """
        found = {device.name: self._eswitch_mode(device) for device in self.devices() if device.bus == bus}
        return {name: mode for name, mode in found.items() if mode is not None}

    def devices(self) -> tuple[DevlinkDevice, ...]:
        """Return all devices; empty if the kernel has no devlink."""
        return tuple(map(device_of, self.dump(_DEV_GET, "devlink devices")))

    def dump(self, command: int, operation: str) -> list[dict[int, bytes]]:
        """Return the attributes of all objects of a kind; empty if the kernel has no devlink."""
        family = self._find_family()
        if family is None:
            return []
        return list(map(_attributes, self.socket.dump(family, _HEADER.pack(command, 1), operation)))

    def _eswitch_mode(self, device: DevlinkDevice) -> str | None:
        body = _HEADER.pack(_ESWITCH_GET, 1) + text(_BUS_NAME, device.bus) + text(_DEV_NAME, device.name)
        operation = f"switch mode of {device.bus}/{device.name}"
        try:
            found = _attributes(self.socket.get(self._find_family() or 0, body, operation))
        except NetlinkError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENODEV):  # it has no such object, or no longer exists
                return None
            raise
        mode = number(found[_ESWITCH_MODE])
        return _MODES[mode] if mode < len(_MODES) else str(mode)

    def _find_family(self) -> int | None:
        if self._family is None:
            self._family = find_family(self.socket, "devlink")
        return self._family


def device_of(found: Mapping[int, bytes]) -> DevlinkDevice:
    """Return the device of an object."""
    return DevlinkDevice(string(found[_BUS_NAME]), string(found[_DEV_NAME]))


def _attributes(body: bytes) -> dict[int, bytes]:
    return attributes(body, _HEADER.size)


def devlink_flags(devlink: Devlink, bus: str, name: str) -> Mapping[str, bool]:
    """Return a parameter by device name on that bus; NetlinkError EPERM without privileges.

    Devices without it are left out. Of several values, that of the lowest configuration mode applies:
    runtime, if set.
    """
    found: dict[str, bool] = {}
    for answer in devlink.dump(_PARAM_GET, "devlink parameters"):
        device, param = device_of(answer), attributes(answer.get(_PARAM, b""))
        if device.bus == bus and string(param.get(_NAME, b"")) == name and number(param[_TYPE]) == _FLAG:
            values = [attributes(value) for kind, value in each_attribute(param[_VALUES]) if kind == _VALUE]
            if values:
                now = min(values, key=lambda value: number(value[_CMODE]))
                found[device.name] = _DATA in now
    return found


def devlink_rates(devlink: Devlink, bus: str) -> Mapping[str, Mapping[int, DevlinkRate]]:
    """Return devlink rates by device name on that bus and VF; VFs without any setting are left out."""
    try:
        messages = devlink.dump(_RATE_GET, "rates by devlink")
    except NetlinkError as error:
        if error.errno == errno.EOPNOTSUPP:
            return {}
        raise
    nodes = {
        (device_of(message), string(message[_NODE_NAME])): message
        for message in messages
        if _NODE_NAME in message
    }
    rates = {
        (device_of(message), number(message[_PORT_INDEX])): rate
        for message in messages
        if _PORT_INDEX in message
        and device_of(message).bus == bus
        and (rate := _rate(message, nodes)) != DevlinkRate()
    }
    found: dict[str, dict[int, DevlinkRate]] = {}
    if rates:
        for device, port, vf in _vf_ports(devlink):
            if (device, port) in rates:
                found.setdefault(device.name, {})[vf] = rates[device, port]
    return found


def _rate(leaf: _Attributes, nodes: Mapping[tuple[DevlinkDevice, str], _Attributes]) -> DevlinkRate:
    above = list(_above(leaf, nodes))
    return DevlinkRate(
        min_tx_rate_mbps=_mbps(leaf, _TX_SHARE),
        max_tx_rate_mbps=_mbps(leaf, _TX_MAX),
        group=string(leaf.get(_PARENT, b"")),
        group_rated=any(_mbps(node, kind) for node in above for kind in (_TX_SHARE, _TX_MAX)),
    )


def _above(
    rate: _Attributes, nodes: Mapping[tuple[DevlinkDevice, str], _Attributes]
) -> Iterator[_Attributes]:
    """Yield the groups above a rate object; the kernel permits no cycle."""
    parent = nodes.get((device_of(rate), string(rate.get(_PARENT, b""))))
    if parent is not None:
        yield parent
        yield from _above(parent, nodes)


def _mbps(rate: _Attributes, kind: int) -> int:
    """Convert to Mb/s, rounded up because 0 would mean no rate."""
    return -(-int.from_bytes(rate.get(kind, b""), sys.byteorder) // BYTES_PER_MEGABIT)


def _vf_ports(devlink: Devlink) -> Iterator[tuple[DevlinkDevice, int, int]]:
    """Yield device, port and VF; VFs of another machine, as of a SmartNIC's host, are left out."""
    for port in devlink.dump(_PORT_GET, "devlink ports"):
        is_vf = number(port.get(_PORT_FLAVOUR, b"")) == _PCI_VF and _PORT_VF in port
        if is_vf and not number(port.get(_PORT_EXTERNAL, b"")):
            yield device_of(port), number(port[_PORT_INDEX]), number(port[_PORT_VF])
