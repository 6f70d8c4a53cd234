"""The PCIe link of a function: the bandwidth that is left of a port behind it.

Source: Linux `drivers/pci/pci.c`, pcie_bandwidth_available, `drivers/pci/pci.h`, PCIE_SPEED2MBS_ENC, and
`drivers/pci/pci-sysfs.c`, current_link_speed_show, current_link_width_show, 6.12. As there, the slowest link
on the way to the root port counts. Packet headers are included; they take 24 of 280 bytes with the usual
payload of 256.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.types import PciAddress

if TYPE_CHECKING:
    from k8s_rdma.linux.sysfs import PciFunction, Sysfs

_SPEED = re.compile(r"(\d+(?:\.\d+)?) GT/s(?: PCIe)?")
_LANE_MBPS = {
    "2.5": 2500 * 8 // 10,
    "5.0": 5000 * 8 // 10,
    "8.0": 8000 * 128 // 130,
    "16.0": 16000 * 128 // 130,
    "32.0": 32000 * 128 // 130,
    "64.0": 64000,
    "128.0": 128000,
}
"""Mb/s of a lane by transfers, after its encoding (8b/10b, 128b/130b, from 64 GT/s on FLIT)."""
_OLD_SPEEDS = {"5": "5.0", "8": "8.0", "16": "16.0", "32": "32.0"}
"""Speeds as kernels before 5.7 wrote them."""
_MOST_LANES = 32
"""The widest link (PCI Express Base Specification, 7.5.3.8); a larger number means that it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieLink:
    """A link. pci: the function below it, or the port above it. speed: GT/s, as `8.0`. width: lanes."""

    pci: PciAddress
    speed: str
    width: int
    mbps: int

    def __str__(self) -> str:
        """Return the text `8.0 GT/s x8 at 0000:3b:00.0`."""
        return f"{self.speed} GT/s x{self.width} at {self.pci}"


def slowest_link(function: PciFunction) -> PcieLink | None:
    """Return the slowest link between a function and its root port, if a speed is reported.

    A link that is not reported (`Unknown`, a virtual bridge) is no limit. OSError if one cannot be read.
    """
    links = (link_of(function.sysfs, pci) for pci in (function.pci, *reversed(function.pcie_path())))
    return min((link for link in links if link is not None), key=lambda link: link.mbps, default=None)


def link_of(sysfs: Sysfs, pci: PciAddress) -> PcieLink | None:
    """Return a function's link upwards, or a port's downwards, if it is known."""
    directory = f"bus/pci/devices/{pci}"
    speed = _SPEED.fullmatch(sysfs.value_if_any(f"{directory}/current_link_speed") or "")
    width = sysfs.value_if_any(f"{directory}/current_link_width") or ""
    if not speed or not width.isdecimal():
        return None
    transfers, lanes = _OLD_SPEEDS.get(speed[1], speed[1]), int(width)
    lane_mbps = _LANE_MBPS.get(transfers)
    if not lane_mbps or not 0 < lanes <= _MOST_LANES:
        return None
    return PcieLink(pci=pci, speed=transfers, width=lanes, mbps=lanes * lane_mbps)
