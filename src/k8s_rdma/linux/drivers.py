"""Drivers of PFs: one row for each, with the rates and settings that it accepts for its VFs.

All is from the kernel's sources.

Netlink sets the minimum and the maximum rate of a VF together (`rtnl_set_vf_rate`, net/core/rtnetlink.c:
EOPNOTSUPP without `ndo_set_vf_rate`, EINVAL for a maximum below the minimum). The rest is each driver's
own. Another setting is in the table when it can be set, holds at once, and can be taken back
(`do_setvfinfo` there: EOPNOTSUPP if the driver has no function for it). Paths below are under
drivers/net/ethernet/. The tables of docs/drivers.md are made from the rows; CONTRIBUTING.md has the recipe.

The sources were read in Linux 6.1 and 6.12.117, those of ionic, hns3 and hinic in the latter; no rule
differs. mlx5's arithmetic of shares is unchanged in 6.13 and later, too, where groups became nodes
(`esw_qos_calculate_min_rate_divider`). Of the drivers of 6.12 that have `ndo_set_vf_rate`, these without RDMA
on VFs have no row: be2net, cxgb4, fm10k, funeth, nfp and qlcnic. Rates by devlink are those of mlx5
and ice alone (`rate_leaf_tx_max_set`).
"""

from __future__ import annotations

import errno as codes
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from k8s_rdma.core.rate_ability import NO_RATE, RateAbility, RateRange
from k8s_rdma.core.types import LinkType, Setting
from k8s_rdma.linux.sysfs import error_name

MLX5_MAX_TSAR_BW_SHARE = 100
"""The largest share of an mlx5 scheduler (`MLX5_CAP_QOS(max_tsar_bw_share)`, include/linux/mlx5/mlx5_ifc.h).

The firmware decides it, and no interface that the agent can read reports it. 100 (0x64) is in the
capabilities that NVIDIA's mlx5ctl shows as its example; not measured here."""

ANY_RATE = RateRange(largest=2**31 - 1)
"""Range of a driver without limits of its own. Netlink has 32 bits for a rate and compares them as a signed
number, so that a larger rate is below any minimum (`rtnl_set_vf_rate`)."""

IGB_82576 = frozenset(
    f"8086:{device}" for device in ("10c9", "10e6", "10e7", "10e8", "1526", "150a", "1518", "150d")
)
"""PCI IDs of the 82576 (intel/igb/e1000_hw.h); the other cards of the driver have no rates."""

_ANY_DRIVER = {
    codes.EOPNOTSUPP: "it sets no rates on VFs of this card",
    codes.EINVAL: "it does not take these rates; any driver refuses a maximum below the minimum",
    codes.EPERM: "the agent lacks CAP_NET_ADMIN in the host's user namespace",
    codes.ENODEV: "the PF no longer exists",
}
"""Errors of `do_setvfinfo` and `rtnl_set_vf_rate` (net/core/rtnetlink.c)."""

_NETDEV = frozenset({Setting.MTU})
"""Settings that are written to the VF's own netdev, not to its PF."""

_COMMON = frozenset({Setting.VLAN, Setting.MAC, Setting.SPOOF_CHECK, Setting.TRUST})
_LINK = frozenset({Setting.LINK_STATE})
_QOS = frozenset({Setting.QOS})
_ANY_DRIVER_OF_SETTINGS = {
    codes.EOPNOTSUPP: "it has no such setting for VFs of this card, or not in this mode of its switch",
    codes.EPROTONOSUPPORT: "it takes no VLAN protocol but 802.1Q",
    codes.EINVAL: "it does not take this value, or has no such VF",
    codes.EPERM: "the agent lacks CAP_NET_ADMIN in the host's user namespace",
    codes.EAGAIN: "the VF is still being reset; try again",
    codes.EBUSY: "the VF is still being reset; try again",
    codes.ENODEV: "the PF no longer exists",
}
"""Errors of `do_setvfinfo` (net/core/rtnetlink.c) and those that mean the same for all drivers."""


class PortFacts(NamedTuple):
    """Facts on which a driver's ability depends; see `ability`."""

    link_type: LinkType
    link_mbps: int | None
    vendor: str
    vst: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A row of the table.

    cards: the cards that it drives, for operators.
    linux: the versions of Linux whose sources were read.
    ability: the rates that it accepts on a port.
    rates_source, settings_source: the files that show it.
    settings: the settings that VFs support on Ethernet links, and `infiniband_settings` on InfiniBand links
        (ipoib_netdev_ops_pf, drivers/infiniband/ulp/ipoib/ipoib_main.c). No driver accepts a partition key.
        mlx4 alone sets keys of VFs by sysfs (`iov/<function>/ports/<port>/pkey_idx`,
        drivers/infiniband/hw/mlx4/sysfs.c): indexes into the PF's table, which the subnet manager fills.
    switchdev_refuses: settings that it refuses while the embedded switch is in switchdev mode.
    errors: meanings of errors of rates and of settings.
    rate_errors, setting_errors: of one of them alone.
    vf_module: the module that drives its VFs, if that is another one.
    rdma_module: the module that makes its RDMA devices (drivers/infiniband/hw, Linux 6.18), if any.
    tells_link_speed: whether it reports the link's speed as the maximum of a VF without one.
    own_groups: whether it shows its scheduler by devlink as groups, with each VF in one
        (`ice_devlink_rate_init_tx_topology`, drivers/net/ethernet/intel/ice/devlink/devlink.c, Linux 6.12).
    vf_ids: PCI IDs of its VFs, from its table of devices in Linux 6.18. They alone tell that a function is a
        VF in a machine that it was passed into, because `physfn` in sysfs leads to the PF, which only the
        machine with the PF has. Empty if `vf_module` tells the same.
    """

    cards: str
    linux: str = "6.1, 6.12"
    ability: Callable[[PortFacts], RateAbility]
    rates_source: str
    settings: frozenset[Setting]
    settings_source: str
    infiniband_settings: frozenset[Setting] = frozenset()
    switchdev_refuses: frozenset[Setting] = frozenset()
    errors: Mapping[int, str] = field(default_factory=dict)
    rate_errors: Mapping[int, str] = field(default_factory=dict)
    setting_errors: Mapping[int, str] = field(default_factory=dict)
    vf_module: str = ""
    rdma_module: str = ""
    tells_link_speed: bool = False
    own_groups: bool = False
    vf_ids: frozenset[str] = frozenset()


def _devices(vendor: str, devices: str) -> frozenset[str]:
    return frozenset(f"{vendor}:{device}" for device in devices.split())


def ability(
    *,
    driver: str,
    link_type: LinkType = LinkType.ETHERNET,
    link_mbps: int | None,
    vendor: str = "",
    vst: bool = False,
) -> RateAbility:
    """Return the rates that can be programmed on the VFs of a PF; no rates for an unknown driver.

    link_mbps: None while the link is down.
    vendor: PCI vendor and device, `15b3:1017`.
    vst: whether all its VFs have a VLAN that the PF gives them (mlx4's VST mode).

    The mode of the embedded switch (legacy, switchdev) makes no difference to any driver of the table: mlx5's
    uplink keeps `mlx5e_netdev_ops`, ice and bnxt_en do not check it (6.1 and 6.12). In switchdev mode mlx5,
    and ice of 6.12, accept rates by devlink as well: see `linux.discovery.observation`.
    """
    if link_type is LinkType.INFINIBAND:
        return NO_RATE  # IPoIB has no ndo_set_vf_rate (drivers/infiniband/ulp/ipoib/ipoib_main.c)
    return row_of(driver).ability(PortFacts(link_type, link_mbps, vendor, vst))


def explain(driver: str, errno: int) -> str:
    """Explain to an operator the error (a positive number) with which a driver refused rates."""
    row = row_of(driver)
    return _meaning(driver, errno, {**row.errors, **row.rate_errors}, _ANY_DRIVER)


def explain_setting(driver: str, errno: int) -> str:
    """Explain to an operator the error (a positive number) with which a driver refused a setting."""
    row = row_of(driver)
    return _meaning(driver, errno, {**row.errors, **row.setting_errors}, _ANY_DRIVER_OF_SETTINGS)


def _meaning(driver: str, errno: int, own: Mapping[int, str], common: Mapping[int, str]) -> str:
    text = own.get(errno) or common.get(errno) or os.strerror(errno)
    return f"{driver or 'the driver'} answers {error_name(errno)}: {text}"


def understood_max(driver: str, max_tx_rate_mbps: int, link_mbps: int | None) -> int:
    """Return a VF's maximum rate as the kernel reports it, Mb/s; 0 if it is only the link's speed."""
    no_maximum = row_of(driver).tells_link_speed and max_tx_rate_mbps == link_mbps
    return 0 if no_maximum else max_tx_rate_mbps


def supported_settings(
    *, driver: str, link_type: LinkType, switchdev: bool, vfio_pci: bool
) -> frozenset[Setting]:
    """Return the settings that VFs of a PF support; without a row in the table, those of any netdev.

    vfio_pci: whether the machine can hand its VFs to programs.
    """
    machine = _NETDEV | {Setting.VFIO_PCI} if vfio_pci else _NETDEV
    row = row_of(driver)
    if link_type is LinkType.INFINIBAND:
        return machine | row.infiniband_settings
    return machine | (row.settings - row.switchdev_refuses if switchdev else row.settings)


def _mlx5(_: PortFacts) -> RateAbility:
    """Minimum rates become shares of a scheduler, and their sum is not checked: see `core.programming`."""
    return RateAbility(min=ANY_RATE, max=ANY_RATE, weights=MLX5_MAX_TSAR_BW_SHARE)


def _mlx4(port: PortFacts) -> RateAbility:
    """A maximum is stored in any mode, but enforced and reported for VFs in VST mode only."""
    return RateAbility(max=ANY_RATE) if port.vst else NO_RATE


def _ice(port: PortFacts) -> RateAbility:
    """No rate, nor the sum of the minima, may exceed the link speed, which is 0 while the link is down."""
    rates = RateRange(largest=min(port.link_mbps or 100_000, 100_000))  # ICE_SCHED_MAX_BW
    return RateAbility(min=rates, max=rates, sum_checked=True, needs_link=True)


def _i40e(port: PortFacts) -> RateAbility:
    """Maxima are rounded down to multiples of 50 Mb/s, at least 50; more than the link speed is refused."""
    largest = (port.link_mbps or 40_000) // 50 * 50
    return RateAbility(max=RateRange(step=50, smallest=50, largest=largest)) if largest else NO_RATE


def _ixgbe(port: PortFacts) -> RateAbility:
    """Rates are accepted only on a link at 10 Gb/s, and all are reset when its speed changes."""
    if port.link_mbps not in (None, 10_000):
        return RateAbility(needs_link=True)
    return RateAbility(max=RateRange(smallest=11, largest=10_000), needs_link=True)


def _igb(port: PortFacts) -> RateAbility:
    """Only the 82576 has rates, only while its link is up (10 Mb/s count as 0); a new speed resets them."""
    if port.vendor not in IGB_82576 or port.link_mbps not in (None, 100, 1000):
        return NO_RATE
    return RateAbility(max=RateRange(largest=port.link_mbps or 1000), needs_link=True)


def _bnxt(port: PortFacts) -> RateAbility:
    """No rate may exceed the link speed; the sum is not checked, and the firmware may round silently."""
    rates = ANY_RATE if port.link_mbps is None else RateRange(largest=port.link_mbps)
    return RateAbility(min=rates, max=rates)


def _ionic(_: PortFacts) -> RateAbility:
    """Any maximum is passed to the firmware; no minimum."""
    return RateAbility(max=ANY_RATE)


def _hns3(port: PortFacts) -> RateAbility:
    """A maximum up to the fastest speed of the port, which is no less than the present one; no minimum."""
    return RateAbility(max=ANY_RATE if port.link_mbps is None else RateRange(largest=port.link_mbps))


def _hinic(port: PortFacts) -> RateAbility:
    """No maximum may exceed the link speed. No rate, not even 0, is accepted while the link is down."""
    rates = ANY_RATE if port.link_mbps is None else RateRange(largest=port.link_mbps)
    return RateAbility(min=rates, max=rates, needs_link=True)


def _qede(_: PortFacts) -> RateAbility:
    """The driver ignores 0, so that no rate could be reset when a pod ends: rates are not programmed.

    It would accept a maximum, and minima in whole percent of the link with 1 % left to every VF without one.
    A VF without a maximum is read back with the link's speed as its maximum.
    """
    return NO_RATE


def row_of(driver: str) -> Driver:
    """Return a driver's row; for a driver that is not in the table, one without rates and settings."""
    return DRIVERS.get(driver, _ANY_OTHER)


_ANY_OTHER = Driver(
    cards="", ability=lambda _: NO_RATE, rates_source="", settings=frozenset(), settings_source=""
)
DRIVERS: Mapping[str, Driver] = {
    # Settings in legacy mode only, but for the MAC (mlx5_eswitch_set_vport_*). A priority alone tags with
    # VLAN 0. The netdev's MAC is the VF's own to change; with the spoof check on, only frames from the PF's
    # pass. On InfiniBand: set_vf_guid and set_vf_link_state (drivers/infiniband/hw/mlx5/ib_virt.c).
    "mlx5_core": Driver(
        cards="ConnectX-4 and later",
        ability=_mlx5,
        rates_source="mellanox/mlx5/core/esw/qos.c",
        settings=_COMMON | _LINK | _QOS,
        settings_source="mellanox/mlx5/core/en_main.c, eswitch.c, esw/legacy.c",
        infiniband_settings=frozenset({Setting.GUID, Setting.LINK_STATE}),
        switchdev_refuses=_COMMON - {Setting.MAC} | _LINK | _QOS,
        errors={
            codes.EPERM: "this PF does not manage its e-switch (a BlueField whose own cores do?), "
            "or the agent lacks CAP_NET_ADMIN",
            codes.EREMOTEIO: "the firmware refused the change; see the kernel's log for its syndrome",
        },
        rate_errors={
            codes.EOPNOTSUPP: "the card's firmware has no e-switch QoS, or no bandwidth shares; "
            "look for a newer firmware",
            codes.EIO: "the firmware did not set up the VF's scheduler; see the kernel's log",
        },
        setting_errors={
            codes.EOPNOTSUPP: "its embedded switch is in switchdev mode, where VFs are configured through "
            "their representors, or the firmware cannot do it",
        },
        rdma_module="mlx5_ib",
        vf_ids=_devices("15b3", "1012 1014 1016 1018 101a 101c 101e a2d3"),  # MLX5_PCI_DEV_IS_VF, main.c
    ),
    # The spoof check holds from the VF's next start on (mlx4_set_vf_spoofchk), so it is not taken; no
    # ndo_set_vf_trust. 802.1ad depends on the firmware and on the VF's driver, and only its next start shows.
    "mlx4_core": Driver(
        cards="ConnectX-3",
        ability=_mlx4,
        rates_source="mellanox/mlx4/cmd.c",
        settings=frozenset({Setting.VLAN, Setting.MAC}) | _LINK | _QOS,
        settings_source="mellanox/mlx4/cmd.c",
        rate_errors={
            codes.EPROTONOSUPPORT: "it takes no minimum rates, and no maximum if the firmware lacks "
            "QoS for VFs (QOS_VPP)",
            codes.EINVAL: "the firmware has no QoS resources left for this VF, or there is no such VF",
        },
        setting_errors={
            codes.EPROTONOSUPPORT: "the firmware supports no VLANs for VFs, or not this protocol",
            codes.EPERM: "it refuses this change while the VF has rates or a spoof check that depend on what "
            "was set before",
        },
        rdma_module="mlx4_ib",
        vf_ids=_devices("15b3", "1002 1004"),  # mlx4/main.c
    ),
    # Resets the VF for MAC, VLAN and trust; EBUSY until that is over (ice_check_vf_ready_for_cfg).
    # 802.1ad in double VLAN mode only (ice_is_supported_port_vlan_proto), which no interface reports.
    "ice": Driver(
        cards="E810",
        ability=_ice,
        rates_source="intel/ice/ice_sriov.c, ice_lib.c",
        settings=_COMMON | _LINK | _QOS,
        settings_source="intel/ice/ice_sriov.c, ice_vf_lib.c",
        switchdev_refuses=frozenset({Setting.TRUST}),
        rate_errors={
            codes.EINVAL: "a rate is above the present link speed, or the minimum rates of all VFs together "
            "are (while the link is down or slower than they are, it takes no change at all, not even to 0)",
            codes.EBUSY: "the VF is being reset; try again",
            codes.EOPNOTSUPP: "DCB is on at this PF, which excludes minimum rates; turn it off",
        },
        setting_errors={
            codes.EOPNOTSUPP: "its embedded switch is in switchdev mode, where it trusts no VF",
            codes.EPROTONOSUPPORT: "it takes 802.1ad only in double VLAN mode, which its DDP package decides",
        },
        vf_module="iavf",
        rdma_module="irdma",
        own_groups=True,
    ),
    # Resets the VF for MAC, VLAN (which it then keeps over resets) and trust; one change at a time.
    "i40e": Driver(
        cards="X710, XL710",
        ability=_i40e,
        rates_source="intel/i40e/i40e_virtchnl_pf.c, i40e_main.c",
        settings=_COMMON | _LINK | _QOS,
        settings_source="intel/i40e/i40e_virtchnl_pf.c",
        errors={
            codes.EAGAIN: "the VF is being reset, or another of its operations is under way; try again",
        },
        rate_errors={codes.EINVAL: "it takes no minimum rates, and no maximum above the link speed"},
        setting_errors={
            codes.EINVAL: "it does not take this value, or the card is partitioned (MFP), where it trusts "
            "no VF",
            codes.EIO: "the firmware failed; see the kernel's log",
        },
        vf_module="iavf",
        rdma_module="irdma",
    ),
    # ndo_set_vf_link_state takes `enable` without doing it, so it is not taken.
    "ixgbe": Driver(
        cards="82599, X540, X550",
        ability=_ixgbe,
        rates_source="intel/ixgbe/ixgbe_sriov.c",
        settings=_COMMON | _QOS,
        settings_source="intel/ixgbe/ixgbe_sriov.c",
        rate_errors={
            codes.EINVAL: "it takes rates only while the link is up at 10000 Mb/s (0 as well), "
            "no minimum, and a maximum of 11 to 10000 Mb/s",
        },
        vf_module="ixgbevf",
    ),
    # No ndo_set_vf_link_state. Tells the MAC that the VF took as that of the PF; one that the PF gave the VF
    # cannot change unless it is trusted (igb_set_vf_mac_addr), and takes when it is reset.
    "igb": Driver(
        cards="82576 only",
        ability=_igb,
        rates_source="intel/igb/igb_main.c",
        settings=_COMMON | _QOS,
        settings_source="intel/igb/igb_main.c",
        rate_errors={
            codes.EOPNOTSUPP: "only the 82576 among its cards has rates",
            codes.EINVAL: "it takes rates only while the link is up (without a cable not even 0), "
            "no minimum, and no maximum above the link speed",
        },
        vf_module="igbvf",
    ),
    # Refuses any priority (bnxt_set_vf_vlan).
    "bnxt_en": Driver(
        cards="BCM57xxx",
        ability=_bnxt,
        rates_source="broadcom/bnxt/bnxt_sriov.c, bnxt_hwrm.c",
        settings=_COMMON | _LINK,
        settings_source="broadcom/bnxt/bnxt_sriov.c",
        errors={
            codes.EACCES: "the firmware does not permit this PF to do so",
            codes.EIO: "the firmware failed; see the kernel's log",
        },
        rate_errors={
            codes.EINVAL: "a rate is above the link speed, or the firmware does not take it",
            codes.EOPNOTSUPP: "the firmware sets no bandwidth on VFs",
            codes.ENOSPC: "the firmware has no resources left for it",
            codes.EAGAIN: "the firmware is busy or being reset; try again",
        },
        setting_errors={
            codes.EINVAL: "it does not take this value (a VLAN's priority never), or has no such VF running",
            codes.ENOENT: "the firmware has no such VF",
        },
        rdma_module="bnxt_re",
        vf_ids=_devices(  # NETXTREME_*_VF, broadcom/bnxt/bnxt.c
            "14e4",
            "1606 1607 1608 1609 16bd 16c1 16c2 16c3 16c4 16c5 16cb 16d3 16dc 16e1 16e5 16e6 1806 1807 1808 "
            "1809 1819 181b d800",
        ),
    ),
    # Refuses any priority and any protocol but 802.1Q (ionic_set_vf_vlan).
    "ionic": Driver(
        cards="AMD Pensando DSC, Pollara (RDMA from Linux 6.18 on)",
        linux="6.12",
        ability=_ionic,
        rates_source="pensando/ionic/ionic_lif.c",
        settings=_COMMON | _LINK,
        settings_source="pensando/ionic/ionic_lif.c",
        errors={codes.EBUSY: "the firmware is being reset; try again"},
        rate_errors={
            codes.EINVAL: "it takes no minimum rates, or there is no such VF",
            codes.ETIMEDOUT: "the firmware did not answer; see the kernel's log",
        },
        setting_errors={
            codes.EINVAL: "it does not take this value (a VLAN's priority never), or has no such VF",
        },
        rdma_module="ionic_rdma",
        vf_ids=_devices("1dd8", "1003"),  # pensando/ionic/ionic.h
    ),
    # A MAC takes when the VF is reset, whose driver then changes it no more (hclge_set_vf_mac,
    # hns3_nic_net_set_mac_address), so it is not taken. 802.1Q alone; the first generation has no VF VLANs.
    "hns3": Driver(
        cards="HiSilicon Kunpeng",
        linux="6.12",
        ability=_hns3,
        rates_source="hisilicon/hns3/hns3pf/hclge_main.c",
        settings=frozenset({Setting.VLAN, Setting.SPOOF_CHECK, Setting.TRUST}) | _LINK | _QOS,
        settings_source="hisilicon/hns3/hns3pf/hclge_main.c",
        rate_errors={
            codes.EINVAL: "it takes no minimum rates, and no maximum above the port's fastest speed"
        },
        setting_errors={codes.EOPNOTSUPP: "this generation of the card does not have it"},
        rdma_module="hns_roce_hw_v2",
        vf_ids=_devices("19e5", "a22e a22f"),  # HNAE3_DEV_ID_*VF*, hisilicon/hns3/hnae3.h
    ),
    # A MAC holds only after the VF's driver is loaded again, and cannot be taken back: zeros are refused
    # (hinic_ndo_set_vf_mac), and an untrusted VF can change it no more (hinic_set_vf_mac_msg_handler). So it
    # is not taken.
    "hinic": Driver(
        cards="Huawei IN200 (Hi1822)",
        linux="6.12",
        ability=_hinic,
        rates_source="huawei/hinic/hinic_sriov.c",
        settings=frozenset({Setting.VLAN, Setting.SPOOF_CHECK, Setting.TRUST}) | _LINK | _QOS,
        settings_source="huawei/hinic/hinic_sriov.c",
        rate_errors={
            codes.EPERM: "it takes no rate, not even 0, while the link is down, or the agent lacks "
            "CAP_NET_ADMIN",
            codes.EINVAL: "it takes no maximum above the link speed",
            codes.EIO: "the firmware takes no minimum rates, or has no rate profile left; see the "
            "kernel's log",
        },
        setting_errors={
            codes.EOPNOTSUPP: "the firmware is too old for the spoof check",
            codes.EFAULT: "the firmware failed; see the kernel's log",
            codes.EIO: "the firmware failed; see the kernel's log",
        },
        vf_ids=_devices("19e5", "375e"),  # HINIC_DEV_ID_VF, huawei/hinic/hinic_main.c
    ),
    # Ignores the priority; a MAC cannot be taken back (qede_set_vf_mac refuses zeros), so it is not taken.
    # The maximum of a VF without one: qed_get_vf_config (qlogic/qed/qed_sriov.c).
    "qede": Driver(
        cards="FastLinQ",
        ability=_qede,
        rates_source="qlogic/qed/qed_sriov.c, qed_dev.c",
        settings=frozenset({Setting.VLAN, Setting.SPOOF_CHECK, Setting.TRUST}) | _LINK,
        settings_source="qlogic/qede/qede_main.c, qed/qed_sriov.c",
        rate_errors={
            codes.EINVAL: "a minimum is below 1 % of the link, or would leave less than 1 % for a VF without "
            "one, or this VF's driver has not started; it takes none at all on cards with two engines",
        },
        setting_errors={
            codes.EINVAL: "it does not take this value, or the VF's driver has not started",
        },
        rdma_module="qedr",
        tells_link_speed=True,
        vf_ids=_devices("1077", "1664 8090"),  # CHIP_NUM_*_IOV, qlogic/qede/qede_main.c
    ),
}
"""The table, by the kernel module's name as in sysfs `device/driver`."""
