"""VFs through their PF's netdev: reads settings and counters, and writes settings.

Source: Linux `net/core/rtnetlink.c` (do_setlink, do_setvfinfo, rtnl_fill_vf, rtnl_fill_vfinfo) and
`include/uapi/linux/if_link.h`, 6.1.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.linux.netlink.queries import VfInfo
from k8s_rdma.linux.netlink.socket import NetlinkError, attribute, attributes, each_attribute, nested, number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from k8s_rdma.core.step import VfRate
    from k8s_rdma.linux.netlink.rtnl import Rtnl

LINK_STATES = ("auto", "enable", "disable")
VLAN_PROTOCOLS = {"802.1Q": 0x8100, "802.1ad": 0x88A8}

_FILTER_VF, _FILTER_SKIP_STATS = 1, 8
_ADDRESS, _NUM_VF = 1, 21
_VLAN, _TX_RATE = 2, 3
_STATS = 8
_RX_PACKETS, _TX_PACKETS, _RX_BYTES, _TX_BYTES = 0, 1, 2, 3
_RX_DROPPED, _TX_DROPPED = 7, 8
_ETHERNET_MAC_BYTES = 6

_MLX4_VGT = 4095
"""VLAN ID with which mlx4 reports no VLAN (`MLX4_VGT`, mlx4_get_vf_config); IEEE 802.1Q reserves it."""

_UNTOLD = 0xFFFFFFFF
"""Value of a flag that the driver did not fill in."""

_VfAttributes = dict[int, bytes]

_VFINFO_LIST, _VF_INFO = 22, 1
_MAC, _SPOOF_CHECK, _LINK_STATE, _RATE = 1, 4, 5, 6
_TRUST, _NODE_GUID, _PORT_GUID, _VLAN_LIST, _VLAN_INFO = 9, 10, 11, 12, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VfStats:
    """Counters that a PF keeps of a VF, in the VF's direction: `tx` is sent by the VF.

    All are 0 as well if the driver has no counters (no `ndo_get_vf_stats`); the kernel reports no
    difference.
    """

    index: int
    rx_packets: int
    tx_packets: int
    rx_bytes: int
    tx_bytes: int
    rx_dropped: int
    tx_dropped: int


def vf_infos(rtnl: Rtnl, index: int) -> tuple[VfInfo, ...]:
    """Return the VFs of a PF's netdev, by index; empty if the driver reports none (netdevs of VFs).

    Holds the RTNL lock for 1-2 ms per VF on some drivers. NetlinkError ENODEV when the link no longer exists,
    EPROTO when the driver reported fewer VFs than exist, as while one is being reset.
    """
    link, vfs = _query(rtnl, index, _FILTER_VF | _FILTER_SKIP_STATS)
    mac_bytes = len(link.get(_ADDRESS, b"")) or _ETHERNET_MAC_BYTES
    return tuple(_info(vf, vfs[vf], mac_bytes) for vf in sorted(vfs))


def vf_stats(rtnl: Rtnl, index: int) -> tuple[VfStats, ...]:
    """Return the counters of a PF's VFs; costs and errors as with `vf_infos`."""
    _, vfs = _query(rtnl, index, _FILTER_VF)
    return tuple(_counts(vf, attributes(vfs[vf].get(_STATS, b""))) for vf in sorted(vfs))


def _query(rtnl: Rtnl, index: int, filters: int) -> tuple[_VfAttributes, Mapping[int, _VfAttributes]]:
    """Return the link's attributes, and those of each VF by its index."""
    operation = f"VFs of link #{index}"
    link = rtnl.details(index, filters, operation)
    if _VFINFO_LIST not in link:
        return link, {}
    vfs = {}
    for kind, entry in each_attribute(link[_VFINFO_LIST]):
        vf = attributes(entry)
        if kind != _VF_INFO or len(vf.get(_MAC, b"")) < 4:
            raise NetlinkError(operation, errno.EPROTO, "an entry that names no VF")
        vfs[number(vf[_MAC][:4])] = vf
    # The kernel leaves out a VF that its driver fails to report, and a list above 64 KiB (before Linux 5.11
    # always with counters) overflows its length: neither is a PF with fewer VFs.
    vf_count = number(link.get(_NUM_VF, b""))
    if len(vfs) != vf_count:
        raise NetlinkError(operation, errno.EPROTO, f"the driver reported {len(vfs)} of {vf_count} VFs")
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
        node_guid=_read_guid(vf, _NODE_GUID),
        port_guid=_read_guid(vf, _PORT_GUID),
    )


def _vlan(vf: _VfAttributes) -> tuple[int, int, str]:
    """Decode VLAN, QoS and protocol; the list has at most one entry (MAX_VLAN_LIST_LEN)."""
    for _, value in each_attribute(vf.get(_VLAN_LIST, b"")):
        return _tag(value, _protocol_name(int.from_bytes(value[12:14], "big")))
    return _tag(vf[_VLAN], "802.1Q") if _VLAN in vf else (0, 0, "")


def _tag(value: bytes, protocol: str) -> tuple[int, int, str]:
    _, vlan, qos = struct.unpack_from("=III", value)
    if vlan == _MLX4_VGT:
        vlan = 0
    return vlan, qos, protocol if vlan or qos else ""


def _protocol_name(protocol: int) -> str:
    return next((name for name, number in VLAN_PROTOCOLS.items() if number == protocol), f"{protocol:#06x}")


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
    """Decode the number after the VF's in a pair of numbers."""
    return number(vf[kind][4:8]) if kind in vf else None


def _read_guid(vf: _VfAttributes, kind: int) -> str:
    """Decode a number in the machine's byte order, at offset 8 for its alignment."""
    return number(vf[kind][8:16]).to_bytes(8, "big").hex(":") if kind in vf else ""


def _counts(index: int, stats: _VfAttributes) -> VfStats:
    return VfStats(
        index=index,
        rx_packets=number(stats.get(_RX_PACKETS, b"")),
        tx_packets=number(stats.get(_TX_PACKETS, b"")),
        rx_bytes=number(stats.get(_RX_BYTES, b"")),
        tx_bytes=number(stats.get(_TX_BYTES, b"")),
        rx_dropped=number(stats.get(_RX_DROPPED, b"")),
        tx_dropped=number(stats.get(_TX_DROPPED, b"")),
    )


@dataclass(frozen=True, slots=True)
class VfSetting:
    """A setting for one VF: its description, and its attribute of `IFLA_VF_INFO`."""

    label: str
    attribute: bytes


def set_vfs(rtnl: Rtnl, pf: int, operation: str, settings: Sequence[VfSetting]) -> None:
    """Write settings of VFs of one PF (its netdev's index), in this order and in one message.

    NetlinkError begins with `operation` and names the refused setting; those before it are written, those
    after it are not.
    """
    try:
        _send(rtnl, pf, operation, settings)
    except NetlinkError:
        # The kernel stops at the one that the driver refuses, without a word which. Once more, one by one:
        # those that it took it takes again.
        for setting in settings:
            _send(rtnl, pf, f"{operation}: {setting.label}", (setting,))


def set_rates(rtnl: Rtnl, pf: int, operation: str, rates: Sequence[VfRate]) -> None:
    """Program the minimum and maximum rate of VFs of one PF; fails as `set_vfs` does.

    The meaning of errno depends on the driver (`linux.drivers`); EINVAL also for a maximum below its minimum.
    """
    set_vfs(rtnl, pf, operation, [rate(vf_rate) for vf_rate in rates])


def rate(vf: VfRate) -> VfSetting:
    """Set both rates, in Mb/s: netlink cannot set only one of them."""
    return VfSetting(
        f"VF {vf.index}: min rate {vf.min_tx_rate_mbps}, max rate {vf.max_tx_rate_mbps} Mb/s",
        attribute(_RATE, struct.pack("=III", vf.index, vf.min_tx_rate_mbps, vf.max_tx_rate_mbps)),
    )


def mac(vf: int, address: str) -> VfSetting:
    """Set the administrative MAC, `aa:bb:cc:dd:ee:ff`, which the VF's driver uses once bound again."""
    packed = bytes.fromhex(address.replace(":", ""))
    return VfSetting(f"VF {vf}: MAC {address}", attribute(_MAC, struct.pack("=I32s", vf, packed)))


def vlan(vf: int, number: int, qos: int = 0, protocol: str = "802.1Q") -> VfSetting:
    """Set a VLAN (0 for none), transparent to the VF, and its priority 0-7."""
    value = struct.pack("=III", vf, number, qos) + VLAN_PROTOCOLS[protocol].to_bytes(2, "big") + bytes(2)
    return VfSetting(
        f"VF {vf}: VLAN {number}, QoS {qos}, {protocol}", nested(_VLAN_LIST, attribute(_VLAN_INFO, value))
    )


def trust(vf: int, *, on: bool) -> VfSetting:
    """Set whether the VF has the rights of trusted VFs, such as promiscuous mode."""
    return _switch(vf, "trust", _TRUST, on=on)


def spoof_check(vf: int, *, on: bool) -> VfSetting:
    """Set whether frames from another source MAC than the VF's are dropped."""
    return _switch(vf, "spoof check", _SPOOF_CHECK, on=on)


def link_state(vf: int, state: str) -> VfSetting:
    """Set the VF's link: that of the port (`auto`), always up (`enable`), always down (`disable`)."""
    value = struct.pack("=II", vf, LINK_STATES.index(state))
    return VfSetting(f"VF {vf}: link state {state}", attribute(_LINK_STATE, value))


def node_guid(vf: int, guid: str) -> VfSetting:
    """Set the GUID of its RDMA device (InfiniBand), eight octets `00:11:22:33:44:55:66:77`."""
    return _guid(vf, "node GUID", _NODE_GUID, guid)


def port_guid(vf: int, guid: str) -> VfSetting:
    """Set the GUID of its port (InfiniBand); the subnet manager brings no port up without one."""
    return _guid(vf, "port GUID", _PORT_GUID, guid)


def _switch(vf: int, label: str, kind: int, *, on: bool) -> VfSetting:
    setting = f"VF {vf}: {label} {'on' if on else 'off'}"
    return VfSetting(setting, attribute(kind, struct.pack("=II", vf, on)))


def _guid(vf: int, label: str, kind: int, guid: str) -> VfSetting:
    value = struct.pack("=IxxxxQ", vf, int.from_bytes(bytes.fromhex(guid.replace(":", "")), "big"))
    return VfSetting(f"VF {vf}: {label} {guid}", attribute(kind, value))


def _send(rtnl: Rtnl, pf: int, operation: str, settings: Sequence[VfSetting]) -> None:
    infos = (nested(_VF_INFO, setting.attribute) for setting in settings)
    rtnl.change(pf, operation, nested(_VFINFO_LIST, *infos))
