"""Shapers of a netdev's transmit queues (Linux 6.13), which iavf has for VFs, and netdevs of Azure's mana.

A process with CAP_NET_ADMIN in the netdev's namespace sets them. They move along with it and end with it.

Source: Linux `include/uapi/linux/net_shaper.h`, `net/shaper/shaper.c` (net_shaper_nl_get_dumpit;
net_shaper_flush_netdev in unregister_netdevice_many_notify), `drivers/net/ethernet/intel/iavf/iavf_main.c`
(iavf_shaper_ops), 6.18.
"""

from __future__ import annotations

import errno
import struct

from k8s_rdma.linux.netlink.generic import find_family
from k8s_rdma.linux.netlink.link_attributes import digest
from k8s_rdma.linux.netlink.socket import NetlinkError, NetlinkSocket, attribute, each_attribute, u32
from k8s_rdma.linux.sysfs import error_name

_HEADER = struct.Struct("=BBxx")
_GET, _IFINDEX = 1, 8


def queue_shapers(socket: NetlinkSocket, index: int) -> str | None:
    """Return a digest of the shapers of a netdev of the socket's namespace; empty without shapers.

    None if the kernel or the driver has no shapers. An error of the driver counts as a value, by its name.
    socket: of generic netlink.
    """
    family = find_family(socket, "net-shaper")
    if family is None:
        return None
    body = _HEADER.pack(_GET, 1) + u32(_IFINDEX, index)
    try:
        found = socket.dump(family, body, f"shapers of link #{index}")
    except NetlinkError as error:
        return None if error.errno == errno.EOPNOTSUPP else error_name(error.errno)
    return digest(b"".join(sorted(map(_shaper, found))))


def _shaper(answer: bytes) -> bytes:
    """Return an answer's data of a shaper; the netdev's index changes with its namespace."""
    found = each_attribute(answer, _HEADER.size)
    return b"".join(attribute(kind, value) for kind, value in found if kind != _IFINDEX)
