"""Settings that a PF stores for a VF, from netlink or from MLNX_OFED's files, in one spelling.

The spelling is MLNX_OFED's, which `/getpfs` has always shown. Its files are `sriov/<N>/config` below a PF,
one a VF, with lines of `Key : Value`; older versions, and those for InfiniBand, leave out keys that they do
not know.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.types import PciAddress
    from k8s_rdma.linux.netlink.queries import VfInfo
    from k8s_rdma.linux.sysfs import Sysfs

NOT_TOLD = "N/A"
"""Value of a flag that the driver does not report, and of the VLAN protocol without a VLAN."""

_ETHERNET_MAC_CHARACTERS = 17
_LINK_STATES = {"auto": "Follow", "enable": "Up", "disable": "Down"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VfSettings:
    """Settings of one VF, with the fields of `core.kernel.Vf`.

    mac: the administrative MAC, zeros when the VF chooses its own; on InfiniBand the port GUID.
    node_guid: on InfiniBand; empty elsewhere, and where the driver does not report it.
    by_devlink: its devlink rates in one clause, or empty.
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
"""Settings of a VF for which its PF has no entry."""


def from_netlink(info: VfInfo) -> VfSettings:
    """Convert an entry of `IFLA_VFINFO_LIST`, which has neither VGT+ nor rate groups."""
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
    """Return the MAC that a PF stores for a VF; on InfiniBand the VF's port GUID, if it has one.

    On InfiniBand the kernel reports the PF's own address for every VF, and only the VF's own interface knows
    the first four octets (its queue pair) of the VF's address (Linux
    `drivers/infiniband/ulp/ipoib/ipoib_main.c`, ipoib_get_vf_config, 6.1).
    """
    if len(info.mac) == _ETHERNET_MAC_CHARACTERS:
        return info.mac
    return _guid(info.port_guid)


def _guid(reported: str) -> str:
    """Return a GUID, empty for zeros, which mlx5 reports until a GUID is set."""
    return reported if reported.strip("0:") else ""


def _flag(value: bool | None) -> str:
    if value is None:
        return NOT_TOLD
    return "ON" if value else "OFF"


def read_vf_settings(sysfs: Sysfs, pf: PciAddress) -> Mapping[int, VfSettings] | None:
    """Read the settings of a PF's VFs by index, if there are such files; the kernel's driver has none.

    A VF whose file has no value is left out. OSError (EBADMSG) for a file of another format.
    """
    directory = f"bus/pci/devices/{pf}/sriov"
    indexes = sorted(int(name) for name in sysfs.names_if_any(directory) or () if name.isdecimal())
    texts = {index: sysfs.value_if_any(f"{directory}/{index}/config") for index in indexes}
    found = {index: _parse(text, f"{directory}/{index}/config") for index, text in texts.items() if text}
    return found or None


def _parse(text: str, path: str) -> VfSettings:
    pairs = (line.partition(":") for line in text.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in pairs}

    def number(key: str) -> int:
        value = fields.get(key, "0")
        if not value.isdecimal():
            raise OSError(errno.EBADMSG, f"{key}: not a number: {value!r}", path)
        return int(value)

    if "MAC" not in fields:
        raise OSError(errno.EBADMSG, "no line with the key MAC", path)
    return VfSettings(
        mac=fields["MAC"].lower(),
        vlan=number("VLAN"),
        qos=number("QoS"),
        vlan_proto=fields.get("VLAN Proto", NOT_TOLD),
        spoof_check=fields.get("SpoofCheck", NOT_TOLD),
        trust=fields.get("Trust", NOT_TOLD),
        link_state=fields.get("LinkState", NOT_TOLD),
        min_tx_rate_mbps=number("MinTxRate"),
        max_tx_rate_mbps=number("MaxTxRate"),
        vgt_plus=fields.get("VGT+", "OFF"),
        rate_group=number("RateGroup"),
    )
