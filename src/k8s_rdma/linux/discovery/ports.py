"""What a PF's port can carry at the moment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from k8s_rdma.linux.netlink.rtnl import Link
    from k8s_rdma.linux.sysfs import Sysfs

Speed = tuple[int | None, str]
"""Mb/s and no sentence, or None and why it is unknown."""

_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec\b.*")
_NO_RESERVATIONS = "it takes no interfaces with a reservation"


def ethernet_speed(sysfs: Sysfs, link: Link) -> Speed:
    """By `speed` (Mb/s; -1 or EINVAL when the driver does not know)."""
    if not (link.up and link.carrier):
        state = "has no carrier" if link.up else "is set down"
        return None, f"its link {state}; {_NO_RESERVATIONS}"
    speed = sysfs.number(f"class/net/{link.name}/speed")
    if speed is None or speed <= 0:
        return None, f"its driver does not tell the link's speed; {_NO_RESERVATIONS}"
    return speed, ""


def infiniband_speed(sysfs: Sysfs, link: Link, rdma_device: str) -> Speed:
    """By the RDMA device's port: `rate` as `100 Gb/sec (4X EDR)`, known while `state` is `4: ACTIVE`.

    Source: Linux `drivers/infiniband/core/sysfs.c`, rate_show, state_show. `dev_port` of an IPoIB netdev
    counts from 0, ports count from 1.
    """
    number = (sysfs.number_if_any(f"class/net/{link.name}/dev_port") or 0) + 1
    port = f"class/infiniband/{rdma_device}/ports/{number}"
    state = (sysfs.value(f"{port}/state") or "unknown").rpartition(": ")[2]
    if state != "ACTIVE":
        return None, f"its port is {state}, not ACTIVE (is a subnet manager running?); {_NO_RESERVATIONS}"
    found = _RATE.fullmatch(sysfs.value(f"{port}/rate") or "")
    if not found:
        return None, f"its port does not tell its rate; {_NO_RESERVATIONS}"
    return round(float(found[1]) * 1000), ""
