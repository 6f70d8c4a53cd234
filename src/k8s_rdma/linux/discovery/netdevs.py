"""Netdevs of a function: its own one, and representors that its driver puts beside that."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from k8s_rdma.linux.netlink.rtnl import Link
    from k8s_rdma.linux.sysfs import PciFunction, Sysfs

_REPRESENTOR = re.compile(r"(?:c\d+)?pf\d+(?:(?:vf|sf)\d+|hpf)?")
"""`phys_port_name` of the host's end of a VF, a subfunction or a host PF (Linux `net/core/devlink.c`,
__devlink_port_phys_port_name_get); drivers put these beside the PF's own netdev."""

_HOST_PORT = re.compile(r"(?:c\d+)?pf\d+hpf|c\d+pf\d+")


def vf_link(function: PciFunction, netdevs: Iterable[str], links: Mapping[str, Link]) -> Link | None:
    """Return a VF's own netdev as `own_link` does, without a look at the port of an only one."""
    found = _listed(function, netdevs, links)
    return found[0] if len(found) == 1 else own_link(function, netdevs, links)


def _listed(function: PciFunction, netdevs: Iterable[str], links: Mapping[str, Link]) -> list[Link]:
    return [links[name] for name in netdevs if name in links and links[name].device in ("", function.pci)]


def own_link(function: PciFunction, netdevs: Iterable[str], links: Mapping[str, Link]) -> Link | None:
    """Return a function's own netdev, of those that sysfs names and netlink lists for it.

    Beside it, or without it, there may be representors of VFs, IPoIB interfaces of other partitions (whose
    peer it is), and the netdev of a second port (mlx4 has both on one function).
    """
    sysfs = function.sysfs

    def is_own(link: Link) -> bool:
        return not link.peer and not is_representor(sysfs, link.name)

    def port(link: Link) -> tuple[int, int]:
        return sysfs.number_if_any(f"class/net/{link.name}/dev_port") or 0, link.index

    return min(filter(is_own, _listed(function, netdevs, links)), key=port, default=None)


def is_representor(sysfs: Sysfs, netdev: str) -> bool:
    """Report whether a netdev is the host's end of a VF, a subfunction or another host's PF."""
    port_name = sysfs.value_if_any(f"class/net/{netdev}/phys_port_name")
    return port_name is not None and _REPRESENTOR.fullmatch(port_name) is not None


def is_host_port(sysfs: Sysfs, netdev: str) -> bool:
    """Report whether a netdev leads to a host's PF, on the processor of its smart NIC (`pf0hpf`, `c1pf0`)."""
    return _HOST_PORT.fullmatch(sysfs.value_if_any(f"class/net/{netdev}/phys_port_name") or "") is not None
