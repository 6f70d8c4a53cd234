"""PCI IDs of VFs, which alone tell that a function is one in a machine that it was passed into.

`physfn` in sysfs leads to the PF, which only the machine with the PF has. Sources: mlx5/core/main.c
(MLX5_PCI_DEV_IS_VF), mlx4/main.c, broadcom/bnxt/bnxt.c (NETXTREME_*_VF), qlogic/qed (CHIP_NUM_*_IOV),
pensando/ionic/ionic.h, hisilicon/hns3/hnae3.h (HNAE3_DEV_ID_*VF*), all below drivers/net/ethernet/ of Linux
6.18.
"""

from __future__ import annotations

from k8s_rdma.linux.drivers import DRIVERS

_VF_DEVICES = {
    "15b3": "1002 1004 1012 1014 1016 1018 101a 101c 101e a2d3",
    "14e4": "1606 1607 1608 1609 16bd 16c1 16c2 16c3 16c4 16c5 16cb 16d3 16dc 16e1 16e5 16e6 1806 1807 1808 "
    "1809 1819 181b d800",
    "1077": "1664 8090",
    "1dd8": "1003",
    "19e5": "a22e a22f",
}
"""Devices by vendor."""
VF_IDS = frozenset(
    f"{vendor}:{device}" for vendor, devices in _VF_DEVICES.items() for device in devices.split()
)
VF_DRIVERS = frozenset({"i40evf", "mana", *(row.vf_module for row in DRIVERS.values() if row.vf_module)})
"""Drivers of VFs alone."""
BLUEFIELD = frozenset({"15b3:a2d2", "15b3:a2d6", "15b3:a2dc", "15b3:a2df"})
"""PCI IDs of BlueField 1 to 4, which the host and the card's own processors see alike (mlx5/core/main.c)."""


def is_vf(vendor: str, driver: str) -> bool:
    """Report whether a function is a VF. vendor: PCI vendor and device, `15b3:101e`."""
    return vendor in VF_IDS or driver in VF_DRIVERS
