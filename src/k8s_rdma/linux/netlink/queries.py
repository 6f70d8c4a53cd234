"""Queries to the kernel beside sysfs and their answers as values; a recorded machine implements them as well.

`NetlinkQueries` queries the running kernel, a recorded machine of the tests answers from a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from k8s_rdma.linux.netlink.rtnl import Link

USABLE_PORT_STATES = frozenset({"ACTIVE", "ACTIVE_DEFER"})
"""States in which a port sends, in the second one for some time without a physical link.

Source: `enum ib_port_state`, include/rdma/ib_verbs.h."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VfInfo:
    """One entry of a PF's `IFLA_VFINFO_LIST` (Linux `include/uapi/linux/if_link.h`, 6.1).

    mac: `aa:bb:cc:dd:ee:ff`, or 20 bytes in this form for InfiniBand. Rates in Mb/s.
    vlan_proto: `802.1Q`, `802.1ad`; empty without a VLAN. Flags are None if the driver does not report them.
    link_state: `auto`, `enable` or `disable`. GUIDs (InfiniBand only) as `ip link` prints them: eight octets
        `00:11:22:33:44:55:66:77`.
    """

    index: int
    mac: str
    vlan: int = 0
    qos: int = 0
    vlan_proto: str = ""
    spoof_check: bool | None = None
    trust: bool | None = None
    link_state: str = "auto"
    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0
    node_guid: str = ""
    port_guid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevlinkRate:
    """Devlink rates of a VF (Documentation/networking/devlink/devlink-port.rst, Linux 6.1).

    Rates in Mb/s, 0 for none.
    group: the rate node that contains it, or empty.
    group_rated: whether that node or one above it has rates.
    """

    min_tx_rate_mbps: int = 0
    max_tx_rate_mbps: int = 0
    group: str = ""
    group_rated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaPort:
    """A port of an RDMA device. state: `ACTIVE`, `DOWN`, `INIT`, `ARMED`. netdev_index: of its netdev."""

    number: int
    state: str
    netdev_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaNetlinkDevice:
    """A device of RDMA netlink (Linux `include/uapi/rdma/rdma_netlink.h`, RDMA_NLDEV_CMD_GET, PORT_GET).

    node_guid: as `rdma dev` and sysfs print it, `0011:2233:4455:6677`.
    """

    index: int
    name: str
    node_guid: str = ""
    firmware: str = ""
    ports: tuple[RdmaPort, ...] = ()


class Queries(Protocol):
    """Queries about one network namespace, the host's; KernelError when one cannot be answered."""

    def links(self) -> Sequence[Link]:
        """Return all netdevs, without VF information."""
        ...

    def vf_infos(self, index: int) -> Sequence[VfInfo]:
        """Return the VFs of a PF's netdev by index; holds the RTNL lock for 1-2 ms per VF on some drivers."""
        ...

    def default_route_links(self) -> frozenset[int]:
        """Return the links of the default routes, IPv4 and IPv6, and the links below them (bond, bridge)."""
        ...

    def addressed_links(self) -> frozenset[int]:
        """Return the links with an IPv4 or IPv6 address of more than link scope."""
        ...

    def rdma_devices(self) -> Sequence[RdmaNetlinkDevice]:
        """Return all RDMA devices; empty if the kernel has no RDMA."""
        ...

    def eswitch_modes(self) -> Mapping[str, str]:
        """Return `legacy` or `switchdev` by PCI address, for devices with an embedded switch (devlink)."""
        ...

    def devlink_rates(self) -> Mapping[str, Mapping[int, DevlinkRate]]:
        """Return the devlink rates by PCI address and VF."""
        ...

    def firmware(self, name: str) -> str:
        """Return a netdev's firmware version (ETHTOOL_GDRVINFO), if its driver reports it."""
        ...
