"""Shapers of a netdev's transmit queues (Linux 6.13), which iavf has for VFs, and netdevs of Azure's mana.

A process with CAP_NET_ADMIN in the netdev's namespace sets them. They move along with it and end with it.

Source: Linux `include/uapi/linux/net_shaper.h`, `net/shaper/shaper.c` (net_shaper_nl_get_dumpit;
net_shaper_flush_netdev in unregister_netdevice_many_notify), `drivers/net/ethernet/intel/iavf/iavf_main.c`
(iavf_shaper_ops), 6.18.
"""

from __future__ import annotations

import errno
import struct
from functools import cached_property

from k8s_rdma.linux.netlink.generic import find_family
from k8s_rdma.linux.netlink.link_attributes import digest
from k8s_rdma.linux.netlink.socket import NetlinkError, NetlinkSocket, attribute, each_attribute, u32
from k8s_rdma.linux.sysfs import error_name

_HEADER = struct.Struct("=BBxx")
_GET, _IFINDEX = 1, 8


class QueueShapers:
    """Reads shapers of netdevs of a socket's namespace.

    The kernel has their family from its start or never: it is no module's (NET_SHAPER, net/Kconfig).
    """

    def __init__(self, socket: NetlinkSocket) -> None:
        """Use this socket, of generic netlink."""
        self._socket = socket

    @cached_property
    def _family(self) -> int | None:
        return find_family(self._socket, "net-shaper")

    def read(self, index: int) -> str | None:
        """Return a digest of the shapers of a netdev; empty without shapers.

        None if the kernel or the driver has no shapers. An error of the driver counts as a value, by its
        name.
        """
        if self._family is None:
            return None
        body = _HEADER.pack(_GET, 1) + u32(_IFINDEX, index)
        try:
            found = self._socket.dump(self._family, body, f"shapers of link #{index}")
        except NetlinkError as error:
            return None if error.errno == errno.EOPNOTSUPP else error_name(error.errno)
        return digest(b"".join(sorted(map(_shaper, found))))


def _shaper(answer: bytes) -> bytes:
    """Return an answer's data of a shaper; the netdev's index changes with its namespace."""
    found = each_attribute(answer, _HEADER.size)
    return b"".join(attribute(kind, value) for kind, value in found if kind != _IFINDEX)
