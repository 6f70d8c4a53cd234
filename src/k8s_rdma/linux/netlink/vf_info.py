"""What a PF's netdev tells of its VFs.

Source: Linux `net/core/rtnetlink.c` (rtnl_fill_vf, rtnl_fill_vfinfo) and `include/uapi/linux/if_link.h`, 6.1.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.linux.discovery.queries import VfInfo
from k8s_rdma.linux.netlink.socket import NetlinkError, attributes, each_attribute, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.linux.netlink.rtnl import Rtnl

LINK_STATES = ("auto", "enable", "disable")
VLAN_PROTOCOLS = {"802.1Q": 0x8100, "802.1ad": 0x88A8}

_FILTER_VF, _FILTER_SKIP_STATS = 1, 8
_ADDRESS, _NUM_VF, _VFINFO_LIST, _VF_INFO = 1, 21, 22, 1
_MAC, _VLAN, _TX_RATE, _SPOOF_CHECK, _LINK_STATE, _RATE = 1, 2, 3, 4, 5, 6
_STATS, _TRUST, _NODE_GUID, _PORT_GUID, _VLAN_LIST = 8, 9, 10, 11, 12
_RX_PACKETS, _TX_PACKETS, _RX_BYTES, _TX_BYTES = 0, 1, 2, 3
_ETHERNET_MAC_BYTES = 6

_MLX4_VGT = 4095
"""What mlx4 tells for no VLAN (`MLX4_VGT`, mlx4_get_vf_config); IEEE 802.1Q reserves it."""

_UNTOLD = 0xFFFFFFFF
"""What the kernel puts for a flag that the driver did not fill in."""

_VfAttributes = dict[int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class VfStats:
    """What a PF counted of a VF, in the VF's own direction: `tx` is what its holder sent.

    All 0 as well where the driver counts nothing (no `ndo_get_vf_stats`): the kernel tells no difference.
    """

    index: int
    rx_packets: int
    tx_packets: int
    rx_bytes: int
    tx_bytes: int


def vf_infos(rtnl: Rtnl, index: int) -> tuple[VfInfo, ...]:
    """The VFs of a PF's netdev, ordered by index; none where the driver tells of none (as netdevs of VFs).

    Holds the kernel's RTNL lock 1-2 ms a VF on some drivers. NetlinkError ENODEV when the link is gone,
    EPROTO when the driver told of fewer VFs than there are, as while one is being reset.
    """
    link, vfs = _ask(rtnl, index, _FILTER_VF | _FILTER_SKIP_STATS)
    mac_bytes = len(link.get(_ADDRESS, b"")) or _ETHERNET_MAC_BYTES
    return tuple(_info(vf, vfs[vf], mac_bytes) for vf in sorted(vfs))


def vf_stats(rtnl: Rtnl, index: int) -> tuple[VfStats, ...]:
    """What a PF counted of its VFs; as dear as `vf_infos`, and fails as it does."""
    _, vfs = _ask(rtnl, index, _FILTER_VF)
    return tuple(_counts(vf, attributes(vfs[vf].get(_STATS, b""))) for vf in sorted(vfs))


def _ask(rtnl: Rtnl, index: int, filters: int) -> tuple[_VfAttributes, Mapping[int, _VfAttributes]]:
    """The link's attributes, and those of each VF by its index."""
    what = f"VFs of link #{index}"
    link = rtnl.details(index, filters, what)
    if _VFINFO_LIST not in link:
        return link, {}
    vfs = {}
    for kind, entry in each_attribute(link[_VFINFO_LIST]):
        vf = attributes(entry)
        if kind != _VF_INFO or len(vf.get(_MAC, b"")) < 4:
            raise NetlinkError(what, errno.EPROTO, "an entry that names no VF")
        vfs[number(vf[_MAC][:4])] = vf
    # The kernel leaves out a VF that its driver fails to tell of, and a list above 64 KiB (before Linux 5.11
    # always with counters) overflows its length: neither is a PF with fewer VFs.
    wanted = number(link.get(_NUM_VF, b""))
    if len(vfs) != wanted:
        raise NetlinkError(what, errno.EPROTO, f"the driver told of {len(vfs)} of {wanted} VFs")
    return link, vfs


def _info(index: int, vf: _VfAttributes, mac_bytes: int) -> VfInfo:
    vlan, qos, protocol = _vlan(vf)
    minimum, maximum = _rates(vf)
    return VfInfo(
        index=index,
        mac=vf[_MAC][4 : 4 + mac_bytes].hex(":"),
        vlan=vlan,
        qos=qos,
        vlan_proto=protocol,
        spoof_check=_flag(vf, _SPOOF_CHECK),
        trust=_flag(vf, _TRUST),
        link_state=_link_state(vf),
        min_tx_rate_mbps=minimum,
        max_tx_rate_mbps=maximum,
        node_guid=_guid(vf, _NODE_GUID),
        port_guid=_guid(vf, _PORT_GUID),
    )


def _vlan(vf: _VfAttributes) -> tuple[int, int, str]:
    """VLAN, QoS and protocol; the list has at most one (MAX_VLAN_LIST_LEN)."""
    for _, value in each_attribute(vf.get(_VLAN_LIST, b"")):
        return _tag(value, _protocol_name(int.from_bytes(value[12:14], "big")))
    return _tag(vf[_VLAN], "802.1Q") if _VLAN in vf else (0, 0, "")


def _tag(value: bytes, protocol: str) -> tuple[int, int, str]:
    _, vlan, qos = struct.unpack_from("=III", value)
    if vlan == _MLX4_VGT:
        vlan = 0
    return vlan, qos, protocol if vlan or qos else ""


def _protocol_name(protocol: int) -> str:
    return next((name for name, known in VLAN_PROTOCOLS.items() if known == protocol), f"{protocol:#06x}")


def _rates(vf: _VfAttributes) -> tuple[int, int]:
    if _RATE in vf:
        _, minimum, maximum = struct.unpack_from("=III", vf[_RATE])
        return minimum, maximum
    return 0, _setting(vf, _TX_RATE) or 0


def _flag(vf: _VfAttributes, kind: int) -> bool | None:
    found = _setting(vf, kind)
    return None if found in (None, _UNTOLD) else bool(found)


def _link_state(vf: _VfAttributes) -> str:
    found = _setting(vf, _LINK_STATE) or 0
    return LINK_STATES[found] if found < len(LINK_STATES) else str(found)


def _setting(vf: _VfAttributes, kind: int) -> int | None:
    """The number behind the VF's in a pair of numbers."""
    return number(vf[kind][4:8]) if kind in vf else None


def _guid(vf: _VfAttributes, kind: int) -> str:
    """A number in the machine's byte order, at offset 8 for its alignment."""
    return number(vf[kind][8:16]).to_bytes(8, "big").hex(":") if kind in vf else ""


def _counts(index: int, stats: _VfAttributes) -> VfStats:
    return VfStats(
        index=index,
        rx_packets=number(stats.get(_RX_PACKETS, b"")),
        tx_packets=number(stats.get(_TX_PACKETS, b"")),
        rx_bytes=number(stats.get(_RX_BYTES, b"")),
        tx_bytes=number(stats.get(_TX_BYTES, b"")),
    )
