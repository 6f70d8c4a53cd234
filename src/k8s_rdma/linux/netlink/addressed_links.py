"""Which links somebody gave an address, so that the host is reached, or reaches others, through them.

Source: rtnetlink(7), Linux `include/uapi/linux/{if_addr,rtnetlink}.h` (RT_SCOPE_*), 6.1.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from k8s_rdma.linux.netlink.rtnl import Rtnl

_GETADDR = 22
_IFADDR = struct.Struct("=BBBBI")
_FAMILIES = frozenset({2, 10})
_SCOPE_LINK = 253


def addressed_links(rtnl: Rtnl) -> frozenset[int]:
    """The links with an IPv4 or IPv6 address that counts, by one dump of all addresses."""
    found = set()
    for body in rtnl.socket.dump(_GETADDR, _IFADDR.pack(0, 0, 0, 0, 0), "addresses"):
        family, _, _, scope, index = _IFADDR.unpack_from(body)
        if family in _FAMILIES and counts(scope):
            found.add(index)
    return frozenset(found)


def counts(scope: int) -> bool:
    """Whether an address of this scope serves more than its link or its host.

    Every link that is up gives itself one that does not (IPv6 link-local).
    """
    return scope < _SCOPE_LINK
