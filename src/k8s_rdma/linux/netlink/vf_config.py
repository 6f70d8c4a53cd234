"""Settings of VFs, made through their PF's netdev.

Source: Linux `net/core/rtnetlink.c` (do_setlink, do_setvfinfo) and `include/uapi/linux/if_link.h`, 6.1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.linux.netlink.socket import NetlinkError, attribute, nested
from k8s_rdma.linux.netlink.vf_info import LINK_STATES, VLAN_PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.step import VfRate
    from k8s_rdma.linux.netlink.rtnl import Rtnl

_VFINFO_LIST, _VF_INFO = 22, 1
_MAC, _SPOOF_CHECK, _LINK_STATE, _RATE = 1, 4, 5, 6
_TRUST, _NODE_GUID, _PORT_GUID, _VLAN_LIST, _VLAN_INFO = 9, 10, 11, 12, 1


@dataclass(frozen=True, slots=True)
class VfSetting:
    """One thing to be set on one VF: in words, and as an attribute of `IFLA_VF_INFO`."""

    words: str
    attribute: bytes


def set_vfs(rtnl: Rtnl, pf: int, what: str, settings: Sequence[VfSetting]) -> None:
    """Make settings on VFs of one PF (its netdev's index), in this order and in one message.

    NetlinkError begins with `what` and names the setting that was refused; those before it are made, those
    after it are not.
    """
    try:
        _send(rtnl, pf, what, settings)
    except NetlinkError:
        # The kernel stops at the one that the driver refuses, without a word which. Once more, one by one:
        # those that it took it takes again.
        for setting in settings:
            _send(rtnl, pf, f"{what}: {setting.words}", (setting,))


def set_rates(rtnl: Rtnl, pf: int, what: str, rates: Sequence[VfRate]) -> None:
    """Program the minimum and maximum rate of VFs of one PF; fails as `set_vfs` does.

    What errno means is the driver's affair (`linux.drivers`); EINVAL also for a maximum below its minimum.
    """
    set_vfs(rtnl, pf, what, [rate(each) for each in rates])


def rate(vf: VfRate) -> VfSetting:
    """Rates in Mb/s, both at once: netlink sets no one of them."""
    return VfSetting(
        f"VF {vf.index}: min rate {vf.min_tx_rate_mbps}, max rate {vf.max_tx_rate_mbps} Mb/s",
        attribute(_RATE, struct.pack("=III", vf.index, vf.min_tx_rate_mbps, vf.max_tx_rate_mbps)),
    )


def mac(vf: int, address: str) -> VfSetting:
    """The administrative MAC, `aa:bb:cc:dd:ee:ff`: the driver of the VF takes it when next it binds."""
    packed = bytes.fromhex(address.replace(":", ""))
    return VfSetting(f"VF {vf}: MAC {address}", attribute(_MAC, struct.pack("=I32s", vf, packed)))


def vlan(vf: int, number: int, qos: int = 0, protocol: str = "802.1Q") -> VfSetting:
    """A VLAN (0 for none) that the VF's frames get and lose unseen, and their priority 0-7."""
    value = struct.pack("=III", vf, number, qos) + VLAN_PROTOCOLS[protocol].to_bytes(2, "big") + bytes(2)
    return VfSetting(
        f"VF {vf}: VLAN {number}, QoS {qos}, {protocol}", nested(_VLAN_LIST, attribute(_VLAN_INFO, value))
    )


def trust(vf: int, *, on: bool) -> VfSetting:
    """Whether the VF may do what only trusted ones may, such as be promiscuous."""
    return _switch(vf, "trust", _TRUST, on=on)


def spoof_check(vf: int, *, on: bool) -> VfSetting:
    """Whether frames from another source MAC than the VF's are dropped."""
    return _switch(vf, "spoof check", _SPOOF_CHECK, on=on)


def link_state(vf: int, state: str) -> VfSetting:
    """What link the VF sees: the port's (`auto`), always one (`enable`), never one (`disable`)."""
    value = struct.pack("=II", vf, LINK_STATES.index(state))
    return VfSetting(f"VF {vf}: link state {state}", attribute(_LINK_STATE, value))


def node_guid(vf: int, guid: str) -> VfSetting:
    """InfiniBand: the GUID of its RDMA device, eight octets `00:11:22:33:44:55:66:77`."""
    return _guid(vf, "node GUID", _NODE_GUID, guid)


def port_guid(vf: int, guid: str) -> VfSetting:
    """InfiniBand: the GUID of its port; the subnet manager brings no port up that has none."""
    return _guid(vf, "port GUID", _PORT_GUID, guid)


def _switch(vf: int, words: str, kind: int, *, on: bool) -> VfSetting:
    setting = f"VF {vf}: {words} {'on' if on else 'off'}"
    return VfSetting(setting, attribute(kind, struct.pack("=II", vf, on)))


def _guid(vf: int, words: str, kind: int, guid: str) -> VfSetting:
    value = struct.pack("=IxxxxQ", vf, int.from_bytes(bytes.fromhex(guid.replace(":", "")), "big"))
    return VfSetting(f"VF {vf}: {words} {guid}", attribute(kind, value))


def _send(rtnl: Rtnl, pf: int, what: str, settings: Sequence[VfSetting]) -> None:
    infos = (nested(_VF_INFO, setting.attribute) for setting in settings)
    rtnl.change(pf, what, nested(_VFINFO_LIST, *infos))
