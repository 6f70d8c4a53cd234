"""What is set on a VF, and what of it differs from what the PF has for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.options import LinkType
from k8s_rdma.init.identity import vf_guid, vf_mac
from k8s_rdma.linux.vf.creation import GuidOf, VfGuid, VfLinkState, VfMac, VfTrust

if TYPE_CHECKING:
    from k8s_rdma.linux.discovery.queries import VfInfo
    from k8s_rdma.linux.vf.creation import Setting


def wanted(link_type: LinkType, pf_address: str, index: int, trust: bool | None) -> tuple[Setting, ...]:
    """What a VF is to have, addresses first.

    On InfiniBand its port follows the PF's; mlx5 has it down until it is told otherwise.
    pf_address: the PF's permanent hardware address; of InfiniBand's the last 8 of 20 bytes are its port GUID
    (RFC 4391, 9.1.1).
    """
    if link_type is LinkType.ETHERNET:
        settings: tuple[Setting, ...] = (VfMac(vf_mac(pf_address, index)),)
    else:
        port_guid = pf_address[-23:]
        guids = (VfGuid(which, vf_guid(port_guid, index, which)) for which in GuidOf)
        settings = (*guids, VfLinkState("auto"))
    return settings if trust is None else (*settings, VfTrust(trust))


def differs(setting: Setting, info: VfInfo) -> bool | None:
    """Whether the PF has something else for the VF; None where its driver does not tell."""
    if isinstance(setting, VfMac):
        return info.mac != setting.value
    if isinstance(setting, VfTrust):
        return None if info.trust is None else info.trust is not setting.value
    if isinstance(setting, VfLinkState):
        return info.link_state != setting.value
    found = info.node_guid if setting.which is GuidOf.NODE else info.port_guid
    return found != setting.value if found else None


def taken_over(setting: Setting, netdev_address: str) -> bool:
    """Whether the VF's netdev has it; a driver takes addresses when it is bound, and not later."""
    match setting:
        case VfMac(value):
            return netdev_address == value
        case VfGuid(GuidOf.PORT, value):
            return netdev_address.endswith(value)
        case _:
            return True
