"""MLNX_OFED's `sriov/<N>/config` below a PF: lines of `Key : Value`, one file a VF.

Older versions, and those for InfiniBand, leave out keys that they do not know of.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from k8s_rdma.linux.discovery.vf_settings import NOT_TOLD, VfSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.linux.sysfs import Sysfs


def read_vf_settings(sysfs: Sysfs, pf: PciAddress) -> Mapping[int, VfSettings] | None:
    """Those of a PF's VFs by index; None where there are no such files, as with the kernel's own driver.

    A VF whose file has no value is left out. OSError (EBADMSG) for a file that is not of this form.
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
