"""What each driver can set on its VFs besides rates, from the kernel's sources.

A setting is in the table when it can be set, holds at once, and can be taken back. Netlink hands each to the
PF's driver (`do_setvfinfo`, net/core/rtnetlink.c: EOPNOTSUPP where that has no function for it). Paths below
are under drivers/net/ethernet/ of Linux 6.1. docs/drivers.md tells operators the same.
"""

from __future__ import annotations

import errno as codes
from collections.abc import Mapping
from dataclasses import dataclass, field

from k8s_rdma.core.options import LinkType, Setting
from k8s_rdma.linux.drivers import meaning

_NETDEV = frozenset({Setting.MTU})
"""What the VF's own netdev is told, and not its PF."""

_COMMON = frozenset({Setting.VLAN, Setting.MAC, Setting.SPOOF_CHECK, Setting.TRUST})
_LINK = frozenset({Setting.LINK_STATE})
_QOS = frozenset({Setting.QOS})
_INFINIBAND = {"mlx5_core": frozenset({Setting.GUID, Setting.LINK_STATE})}
"""Of links of that type (ipoib_netdev_ops_pf, drivers/infiniband/ulp/ipoib/ipoib_main.c: a driver's
`set_vf_guid` and `set_vf_link_state`, which mlx5_ib has, drivers/infiniband/hw/mlx5/ib_virt.c).

None takes a partition key. mlx4 alone gives VFs keys by sysfs (`iov/<function>/ports/<port>/pkey_idx`,
drivers/infiniband/hw/mlx4/sysfs.c): indexes into the PF's table, which the subnet manager fills.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """A row: where it was read, what the driver takes, and what its errors mean.

    switchdev_refuses: what of that it refuses while the embedded switch is in that mode.
    """

    source: str
    takes: frozenset[Setting]
    switchdev_refuses: frozenset[Setting] = frozenset()
    errors: Mapping[int, str] = field(default_factory=dict)


def takes(*, driver: str, link_type: LinkType, switchdev: bool, vfio_pci: bool) -> frozenset[Setting]:
    """What can be asked of the VFs of a PF; of a driver that is not in the table, what a netdev gives.

    vfio_pci: whether the machine can hand its VFs to programs.
    """
    machine = _NETDEV | {Setting.VFIO_PCI} if vfio_pci else _NETDEV
    if link_type is LinkType.INFINIBAND:
        return machine | _INFINIBAND.get(driver, frozenset())
    row = SETTINGS.get(driver)
    if row is None:
        return machine
    return machine | (row.takes - row.switchdev_refuses if switchdev else row.takes)


def explain_setting(driver: str, errno: int) -> str:
    """What it means that a driver refused a setting with this error (a positive number), for an operator."""
    row = SETTINGS.get(driver)
    return meaning(driver, errno, row.errors if row else {}, _ANY_DRIVER)


_ANY_DRIVER = {
    codes.EOPNOTSUPP: "it has no such setting for VFs of this card, or not in this mode of its switch",
    codes.EPROTONOSUPPORT: "it takes no VLAN protocol but 802.1Q",
    codes.EINVAL: "it does not take this value, or has no such VF",
    codes.EPERM: "the agent lacks CAP_NET_ADMIN in the host's user namespace",
    codes.EAGAIN: "the VF is still being reset; try again",
    codes.EBUSY: "the VF is still being reset; try again",
    codes.ENODEV: "the PF is gone",
}
"""net/core/rtnetlink.c, do_setvfinfo, and what drivers agree on."""

SETTINGS: Mapping[str, DriverSettings] = {
    # Legacy mode only, but for the MAC (mlx5_eswitch_set_vport_*). A priority alone tags with VLAN 0.
    # The netdev's MAC is the VF's own to change; with the spoof check on, only frames from the PF's pass.
    "mlx5_core": DriverSettings(
        source="mellanox/mlx5/core/en_main.c, eswitch.c, esw/legacy.c",
        takes=_COMMON | _LINK | _QOS,
        switchdev_refuses=_COMMON - {Setting.MAC} | _LINK | _QOS,
        errors={
            codes.EOPNOTSUPP: "its embedded switch is in switchdev mode, where VFs are configured through "
            "their representors, or the firmware cannot do it",
            codes.EPERM: "this PF does not manage its e-switch (a BlueField whose own cores do?), "
            "or the agent lacks CAP_NET_ADMIN",
            codes.EREMOTEIO: "the firmware refused the change; see the kernel's log for its syndrome",
        },
    ),
    # The spoof check holds from the VF's next start on (mlx4_set_vf_spoofchk), so it is not taken; no
    # ndo_set_vf_trust. 802.1ad depends on the firmware and on the VF's driver, and only its next start shows.
    "mlx4_core": DriverSettings(
        source="mellanox/mlx4/cmd.c",
        takes=frozenset({Setting.VLAN, Setting.MAC}) | _LINK | _QOS,
        errors={
            codes.EPROTONOSUPPORT: "the firmware gives VFs no VLAN, or none of this protocol",
            codes.EPERM: "it refuses this change while the VF has rates or a spoof check that depend on what "
            "was set before",
        },
    ),
    # Resets the VF for MAC, VLAN and trust; EBUSY until that is over (ice_check_vf_ready_for_cfg).
    # 802.1ad in double VLAN mode only (ice_is_supported_port_vlan_proto), which nothing tells.
    "ice": DriverSettings(
        source="intel/ice/ice_sriov.c, ice_vf_lib.c",
        takes=_COMMON | _LINK | _QOS,
        switchdev_refuses=frozenset({Setting.TRUST}),
        errors={
            codes.EOPNOTSUPP: "its embedded switch is in switchdev mode, where it trusts no VF",
            codes.EPROTONOSUPPORT: "it takes 802.1ad only in double VLAN mode, which its DDP package decides",
        },
    ),
    # Resets the VF for MAC, VLAN (which it then keeps over resets) and trust; one change at a time.
    "i40e": DriverSettings(
        source="intel/i40e/i40e_virtchnl_pf.c",
        takes=_COMMON | _LINK | _QOS,
        errors={
            codes.EAGAIN: "the VF is being reset, or another of its operations is under way; try again",
            codes.EINVAL: "it does not take this value, or the card is partitioned (MFP), where it trusts "
            "no VF",
            codes.EIO: "the firmware failed; see the kernel's log",
        },
    ),
    # ndo_set_vf_link_state takes `enable` without doing it, so it is not taken.
    "ixgbe": DriverSettings(source="intel/ixgbe/ixgbe_sriov.c", takes=_COMMON | _QOS),
    # No ndo_set_vf_link_state. Tells the MAC that the VF took as that of the PF; one that the PF gave the VF
    # cannot change unless it is trusted (igb_set_vf_mac_addr), and takes when it is reset.
    "igb": DriverSettings(source="intel/igb/igb_main.c", takes=_COMMON | _QOS),
    # Refuses any priority (bnxt_set_vf_vlan).
    "bnxt_en": DriverSettings(
        source="broadcom/bnxt/bnxt_sriov.c",
        takes=_COMMON | _LINK,
        errors={
            codes.EINVAL: "it does not take this value (a VLAN's priority never), or has no such VF running",
            codes.ENOENT: "the firmware has no such VF",
            codes.EACCES: "the firmware does not let this PF do so",
            codes.EIO: "the firmware failed; see the kernel's log",
        },
    ),
    # Ignores the priority; a MAC cannot be taken back (qede_set_vf_mac refuses zeros), so it is not taken.
    "qede": DriverSettings(
        source="qlogic/qede/qede_main.c, qed/qed_sriov.c",
        takes=frozenset({Setting.VLAN, Setting.SPOOF_CHECK, Setting.TRUST}) | _LINK,
        errors={codes.EINVAL: "it does not take this value, or the VF's driver has not started"},
    ),
}
"""By the kernel module's name, as in sysfs `device/driver`."""
