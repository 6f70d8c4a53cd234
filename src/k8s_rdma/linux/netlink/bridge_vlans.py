"""VLANs of bridges and their ports, where the kernel's bridges know any.

Source: Linux `net/bridge/br_netlink.c` and `include/uapi/linux/{if_bridge,if_link}.h`, 6.1.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from k8s_rdma.linux.netlink.rtnl import of_kind
from k8s_rdma.linux.netlink.socket import attribute, attributes, each_attribute, nested, u32

if TYPE_CHECKING:
    from k8s_rdma.linux.netlink.rtnl import Rtnl

_DELLINK, _GETLINK, _SETLINK = 17, 18, 19
_AF_BRIDGE = 7
_AF_SPEC, _EXT_MASK = 26, 29
_FILTER_BRIDGE_VLANS = 2
_VLAN_INFO = 2
_PVID, _UNTAGGED = 2, 4
_INFO_DATA, _VLAN_FILTERING, _DEFAULT_PVID = 2, 7, 39

_IFINFO = struct.Struct("=BxHiII")
_VLAN = struct.Struct("=HH")


def vlan_bridge(default: int) -> bytes:
    """What makes a new bridge keep VLANs apart; frames without a tag are in `default` on a new port.

    A kernel without such bridges (CONFIG_BRIDGE_VLAN_FILTERING) refuses it with EOPNOTSUPP.
    """
    data = attribute(_VLAN_FILTERING, b"\1"), attribute(_DEFAULT_PVID, struct.pack("=H", default))
    return of_kind("bridge", nested(_INFO_DATA, *data))


def add_untagged(rtnl: Rtnl, port: int, vlan: int, operation: str) -> None:
    """Have a port in a VLAN, its own: what comes without a tag is in it, what is in it leaves without one."""
    rtnl.socket.request(_SETLINK, _attribute(port, vlan, _PVID | _UNTAGGED), operation)


def add_tagged(rtnl: Rtnl, port: int, vlan: int, operation: str) -> None:
    """Let a port carry a VLAN, tagged; holds when it does."""
    rtnl.socket.request(_SETLINK, _attribute(port, vlan), operation)


def remove(rtnl: Rtnl, port: int, vlan: int, operation: str) -> None:
    """Let a port carry a VLAN no longer; holds when it does not."""
    rtnl.socket.request(_DELLINK, _attribute(port, vlan), operation)


def vlans(rtnl: Rtnl, operation: str) -> dict[int, frozenset[int]]:
    """The VLANs of every port of every bridge, by the port's index."""
    body = _IFINFO.pack(_AF_BRIDGE, 0, 0, 0, 0) + u32(_EXT_MASK, _FILTER_BRIDGE_VLANS)
    return dict(_vlans_of(answer) for answer in rtnl.socket.dump(_GETLINK, body, operation))


def _vlans_of(answer: bytes) -> tuple[int, frozenset[int]]:
    _, _, index, _, _ = _IFINFO.unpack_from(answer)
    spec = attributes(answer, _IFINFO.size).get(_AF_SPEC, b"")
    vlan_infos = (_VLAN.unpack(value) for kind, value in each_attribute(spec) if kind == _VLAN_INFO)
    return index, frozenset(vlan for _, vlan in vlan_infos)


def _attribute(port: int, vlan: int, flags: int = 0) -> bytes:
    info = nested(_AF_SPEC, attribute(_VLAN_INFO, _VLAN.pack(flags, vlan)))
    return _IFINFO.pack(_AF_BRIDGE, 0, port, 0, 0) + info
