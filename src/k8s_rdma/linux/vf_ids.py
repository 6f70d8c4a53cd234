"""PCI IDs and drivers by which a function is a VF, also in a machine that it was passed into."""

from __future__ import annotations

from k8s_rdma.linux.drivers import DRIVERS

VF_IDS = frozenset().union(*(row.vf_ids for row in DRIVERS.values()))
"""PCI vendor and device of VFs."""
VF_DRIVERS = frozenset({"i40evf", "mana", *(row.vf_module for row in DRIVERS.values() if row.vf_module)})
"""Drivers of VFs alone."""
BLUEFIELD = frozenset({"15b3:a2d2", "15b3:a2d6", "15b3:a2dc", "15b3:a2df"})
"""PCI IDs of BlueField 1 to 4, which the host and the card's own processors see alike (mlx5/core/main.c)."""


def is_vf(vendor: str, driver: str) -> bool:
    """Report whether a function is a VF. vendor: PCI vendor and device, `15b3:101e`."""
    return vendor in VF_IDS or driver in VF_DRIVERS
