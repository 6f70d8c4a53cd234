"""What devlink was told of the rates of VFs, which drivers take from it in switchdev mode.

Source: Linux `include/uapi/linux/devlink.h`, `net/devlink/leftover.c` (devlink_nl_rate_fill), 6.1; rates are
in bytes a second there. Linux before 5.14 has none.
"""

from __future__ import annotations

import errno
import sys
from typing import TYPE_CHECKING

from k8s_rdma.linux.discovery.queries import DevlinkRate
from k8s_rdma.linux.netlink.devlink import device_of
from k8s_rdma.linux.netlink.socket import NetlinkError, number, string

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from k8s_rdma.linux.netlink.devlink import Devlink, DevlinkDevice

_PORT_GET, _RATE_GET = 5, 74
_PORT_INDEX, _PORT_FLAVOUR, _PORT_VF, _PORT_EXTERNAL = 3, 77, 128, 149
_TX_SHARE, _TX_MAX, _NODE_NAME, _PARENT = 166, 167, 168, 169
_PCI_VF = 4
_BYTES_OF_A_MEGABIT = 125_000

_Attributes = dict[int, bytes]


def devlink_rates(devlink: Devlink, bus: str) -> Mapping[str, Mapping[int, DevlinkRate]]:
    """By device name on that bus and VF; of VFs that devlink was told nothing of, nothing."""
    try:
        told = devlink.dump(_RATE_GET, "rates by devlink")
    except NetlinkError as error:
        if error.errno == errno.EOPNOTSUPP:
            return {}
        raise
    nodes = {(device_of(each), string(each[_NODE_NAME])): each for each in told if _NODE_NAME in each}
    rates = {
        (device_of(each), number(each[_PORT_INDEX])): rate
        for each in told
        if _PORT_INDEX in each
        and device_of(each).bus == bus
        and (rate := _rate(each, nodes)) != DevlinkRate()
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
    """The groups that it is in; the kernel lets none be in itself."""
    parent = nodes.get((device_of(rate), string(rate.get(_PARENT, b""))))
    if parent is not None:
        yield parent
        yield from _above(parent, nodes)


def _mbps(rate: _Attributes, kind: int) -> int:
    """Rounded up: what is less than one is not none."""
    return -(-int.from_bytes(rate.get(kind, b""), sys.byteorder) // _BYTES_OF_A_MEGABIT)


def _vf_ports(devlink: Devlink) -> Iterator[tuple[DevlinkDevice, int, int]]:
    """Device, port and VF; not of VFs that another machine has, as those of a SmartNIC's host."""
    for port in devlink.dump(_PORT_GET, "devlink ports"):
        is_vf = number(port.get(_PORT_FLAVOUR, b"")) == _PCI_VF and _PORT_VF in port
        if is_vf and not number(port.get(_PORT_EXTERNAL, b"")):
            yield device_of(port), number(port[_PORT_INDEX]), number(port[_PORT_VF])
