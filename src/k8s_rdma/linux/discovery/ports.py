"""Ports of network cards: their speed, their identity, and whether two PFs are one port.

Several PFs may be one port: NVIDIA GB10 and Socket Direct cards have a PF on each PCIe link, cards with NPAR
several on one. Each reports the whole speed, which the port has once. Three identities are compared, the
first that both PFs report decides:

- `phys_port_id`, which a driver makes for this purpose (i40e: the port's MAC, `i40e_get_phys_port_id`);
- `phys_switch_id` and `phys_port_name` together (devlink's physical ports: mlx5 and bnxt_en);
- the RDMA device's `sys_image_guid`, one for a card, and the number of the PCI function, by which mlx5
  numbers its ports if its firmware does not (`mlx5_get_dev_index`, include/linux/mlx5/driver.h, Linux 6.12).

Recorded on GB10: 0000:01:00.0 and 0002:01:00.0 are both `p0`, with one `sys_image_guid` and other node GUIDs
(github.com/NVIDIA/daqiri/pull/108, github.com/geerlingguy/sbc-reviews/issues/92). i40e numbers
`phys_port_name` by PF, so that it does not tell ports apart. PFs of one port that belong to other hosts
(multi-host cards), and those of qede, report nothing in common.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.linux.netlink.queries import USABLE_PORT_STATES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.linux.netlink.rtnl import Link
    from k8s_rdma.linux.sysfs import PciFunction, Sysfs

NO_RESERVATIONS = "it takes no interfaces with a reservation"
"""The consequence of an unknown speed."""

_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec\b.*")
_NOTHING = "0:"
"""Characters of a GUID that a device reports while it has no GUID."""

Speed = tuple[int | None, str]
"""Mb/s and an empty text, or None and the reason why it is unknown."""


def ethernet_speed(sysfs: Sysfs, link: Link) -> Speed:
    """Read a netdev's `speed` (Mb/s; -1 or EINVAL when the driver does not know)."""
    if not (link.is_up and link.carrier):
        state = "has no carrier" if link.is_up else "is set down"
        return None, f"its link {state}; {NO_RESERVATIONS}"
    speed = sysfs.number(f"class/net/{link.name}/speed")
    if speed is None or speed <= 0:
        return None, f"its driver does not report the link's speed; {NO_RESERVATIONS}"
    return speed, ""


def infiniband_speed(sysfs: Sysfs, link: Link, rdma_device: str) -> Speed:
    """Read the RDMA port's `rate`, like `100 Gb/sec (4X EDR)`; it is known while the port is usable.

    `state` is then `4: ACTIVE` or `5: ACTIVE_DEFER`. A port that reports 0 does not know its rate.

    Source: Linux `drivers/infiniband/core/sysfs.c`, rate_show, state_show. `dev_port` of an IPoIB netdev
    counts from 0, ports count from 1.
    """
    number = (sysfs.number_if_any(f"class/net/{link.name}/dev_port") or 0) + 1
    port = f"class/infiniband/{rdma_device}/ports/{number}"
    state = (sysfs.value(f"{port}/state") or "unknown").rpartition(": ")[2]
    if state not in USABLE_PORT_STATES:
        return None, f"its port is {state}, not ACTIVE (is a subnet manager running?); {NO_RESERVATIONS}"
    found = _RATE.fullmatch(sysfs.value(f"{port}/rate") or "")
    rate_mbps = round(float(found[1]) * 1000) if found else 0
    return (rate_mbps, "") if rate_mbps else (None, f"its port does not report its rate; {NO_RESERVATIONS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PortIdentity:
    """The identities that a PF reports of its port, each empty if it is not reported.

    switch_port: `phys_switch_id` and `phys_port_name`.
    image_port: `sys_image_guid` and the PCI function.
    """

    phys_port_id: str = ""
    switch_port: tuple[str, ...] = ()
    image_port: tuple[str, ...] = ()

    def shared_with(self, compared: PortIdentity) -> str:
        """Return the identity that both have, as `phys_port_id 3cfdfe9e7c70`; empty for different ports."""
        if self.phys_port_id and compared.phys_port_id:
            return f"phys_port_id {self.phys_port_id}" if self.phys_port_id == compared.phys_port_id else ""
        if self.switch_port and compared.switch_port:
            if self.switch_port != compared.switch_port:
                return ""
            return "phys_switch_id {} and phys_port_name {}".format(*self.switch_port)
        if self.image_port and self.image_port == compared.image_port:
            return "sys_image_guid {} and PCI function {}".format(*self.image_port)
        return ""


UNKNOWN_PORT = PortIdentity()


def read_identity(function: PciFunction, link: Link, rdma_device: str | None) -> PortIdentity:
    """Read the identities that a PF reports of its port. OSError if they cannot be read."""
    sysfs, netdev = function.sysfs, f"class/net/{link.name}"
    switch, name = (sysfs.value_if_any(f"{netdev}/{file}") for file in ("phys_switch_id", "phys_port_name"))
    image = sysfs.value_if_any(f"class/infiniband/{rdma_device}/sys_image_guid") if rdma_device else None
    return PortIdentity(
        phys_port_id=sysfs.value_if_any(f"{netdev}/phys_port_id") or "",
        switch_port=(switch, name) if switch and name else (),
        image_port=(image, function.pci.rpartition(".")[2]) if image and image.strip(_NOTHING) else (),
    )


@dataclass(frozen=True, slots=True)
class SharedPort:
    """The further PFs of a PF's port, by name, and the identity by which they are recognised."""

    pfs: tuple[str, ...] = ()
    identity: str = ""

    def share(self, speed_mbps: int) -> int:
        """Return the part of the port's speed that may be reserved on each of its PFs."""
        return speed_mbps // (1 + len(self.pfs))


OWN_PORT = SharedPort()


def shared_port(name: str, identities: Mapping[str, PortIdentity]) -> SharedPort:
    """Return the PFs that are one port with the PF of this name; `identities` by the PFs' names."""
    found = {
        pf: shared
        for pf, identity in sorted(identities.items())
        if pf != name and (shared := identities[name].shared_with(identity))
    }
    return SharedPort(tuple(found), next(iter(found.values()), ""))
