"""What a PF has set for a VF, from netlink or from MLNX_OFED's file, in one spelling.

The spelling is MLNX_OFED's, which `/getpfs` has always shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from k8s_rdma.linux.discovery.queries import VfInfo

NOT_TOLD = "N/A"
"""Of a flag that the driver does not tell, and of the VLAN protocol without a VLAN."""

_ETHERNET_MAC_CHARACTERS = 17
_LINK_STATES = {"auto": "Follow", "enable": "Up", "disable": "Down"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VfSettings:
    """As in `core.kernel.Vf`.

    mac: the one that the PF gives, zeros when it leaves that to the VF; on InfiniBand the port GUID.
    node_guid: of InfiniBand; empty elsewhere, and where the driver does not tell.
    by_devlink: what somebody has told devlink of its rates, in one clause, or empty.
    """

    mac: str
    vlan: int = 0
    qos: int = 0
    vlan_proto: str = NOT_TOLD
    spoof_check: str = NOT_TOLD
    trust: str = NOT_TOLD
    link_state: str = NOT_TOLD
    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0
    vgt_plus: str = "OFF"
    rate_group: int = 0
    node_guid: str = ""
    by_devlink: str = ""


NOTHING_TOLD = VfSettings(mac="")
"""Of a VF that its PF has no entry of."""


def from_netlink(info: VfInfo) -> VfSettings:
    """An entry of `IFLA_VFINFO_LIST`; it knows neither VGT+ nor rate groups."""
    return VfSettings(
        mac=_mac(info),
        vlan=info.vlan,
        qos=info.qos,
        vlan_proto=info.vlan_proto or NOT_TOLD,
        spoof_check=_flag(info.spoof_check),
        trust=_flag(info.trust),
        link_state=_LINK_STATES.get(info.link_state, info.link_state),
        min_tx_rate_mbps=info.min_tx_rate_mbps,
        max_tx_rate_mbps=info.max_tx_rate_mbps,
        node_guid=_guid(info.node_guid),
    )


def _mac(info: VfInfo) -> str:
    """The MAC that a PF has for a VF; on InfiniBand the VF's port GUID, empty while it has none.

    There the kernel tells the PF's own address for every VF, and the first four octets of a VF's (its queue
    pair) are known to its own interface alone (Linux `drivers/infiniband/ulp/ipoib/ipoib_main.c`,
    ipoib_get_vf_config, 6.1).
    """
    if len(info.mac) == _ETHERNET_MAC_CHARACTERS:
        return info.mac
    return _guid(info.port_guid)


def _guid(told: str) -> str:
    """Empty for zeros: mlx5 tells those until one was set."""
    return told if told.strip("0:") else ""


def _flag(value: bool | None) -> str:
    if value is None:
        return NOT_TOLD
    return "ON" if value else "OFF"
