"""The traffic counters of a namespace's links.

Source: Linux `include/uapi/linux/if_link.h` (6.1), `struct if_stats_msg`, `struct rtnl_link_stats64`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.linux.netlink.socket import attributes

if TYPE_CHECKING:
    from k8s_rdma.linux.netlink.socket import NetlinkSocket

_GETSTATS = 94
_LINK_64 = 1
_LINK_64_ONLY = 1 << (_LINK_64 - 1)
_MESSAGE = struct.Struct("=BxxxII")
_FIRST_COUNTERS = struct.Struct("=QQQQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCounters:
    """What a link has sent and received, as it sees it itself."""

    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int

    @property
    def opposite(self) -> LinkCounters:
        """As the other end of a pair sees it."""
        return LinkCounters(
            tx_bytes=self.rx_bytes,
            rx_bytes=self.tx_bytes,
            tx_packets=self.rx_packets,
            rx_packets=self.tx_packets,
        )


def counters_of_all(socket: NetlinkSocket) -> dict[int, LinkCounters]:
    """Those of all links by index, in the namespace of this socket."""
    answers = socket.dump(_GETSTATS, _MESSAGE.pack(0, 0, _LINK_64_ONLY), "counters of links")
    return dict(map(_counters, answers))


def _counters(body: bytes) -> tuple[int, LinkCounters]:
    _, index, _ = _MESSAGE.unpack_from(body)
    rx_packets, tx_packets, rx_bytes, tx_bytes = _FIRST_COUNTERS.unpack_from(
        attributes(body, _MESSAGE.size)[_LINK_64]
    )
    return index, LinkCounters(
        tx_bytes=tx_bytes, rx_bytes=rx_bytes, tx_packets=tx_packets, rx_packets=rx_packets
    )
