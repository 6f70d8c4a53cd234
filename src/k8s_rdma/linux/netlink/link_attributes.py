"""Attributes of a link that stay when it moves into another network namespace, read and set in one message.

Source: rtnetlink(7), Linux `include/uapi/linux/{if,if_link}.h`, `net/core/rtnetlink.c` (rtnl_fill_ifinfo,
do_setlink), `net/core/dev.c` (__dev_change_flags, __dev_change_net_namespace), 6.18.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING
from urllib.parse import quote_from_bytes, unquote_to_bytes

from k8s_rdma.core.netdev_attributes import XDP
from k8s_rdma.linux.netlink.rtnl import xdp_programs
from k8s_rdma.linux.netlink.socket import (
    NetlinkError,
    attribute,
    attributes,
    nested,
    number,
    string,
    u32,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.linux.netlink.rtnl import Rtnl

_GETLINK, _SETLINK, _SKIP_STATS, _EXT_MASK = 18, 19, 8, 29
_IFINFO = struct.Struct("=BxHiII")
_IFNAME, _BROADCAST, _LINKMODE, _LINKINFO, _IFALIAS, _PROTO_DOWN, _XDP = 3, 2, 17, 18, 20, 39, 43
_INFO_DATA = 2
_COUNTS = {"promiscuity": 30, "allmulti": 61}
"""Numbers of those who want all frames, or all multicast ones, beside the flags: a macvlan in mode passthru
that was moved to another namespace is seen by nothing else."""

_NUMBERS = {
    "txqueuelen": 13,
    "group": 27,
    "gso_max_segs": 40,
    "gso_max_size": 41,
    "gro_max_size": 58,
    "gso_ipv4_max_size": 63,
    "gro_ipv4_max_size": 64,
}
"""Attributes that are numbers of 32 bits, in the order in which the kernel sets them: the size for IPv4
follows the other one."""

_FLAGS = 0x4 | 0x20 | 0x80 | 0x100 | 0x200 | 0x1000 | 0x2000 | 0x4000 | 0x8000
"""Flags that may be set beside IFF_UP: DEBUG, NOTRAILERS, NOARP, PROMISC, ALLMULTI, MULTICAST, PORTSEL,
AUTOMEDIA, DYNAMIC."""

_ALIAS_AS_IT_IS = " !\"#$&'()*+,/:;<=>?@[\\]^`{|}"
"""Characters of an alias that are not encoded. It may be any bytes, while receipts hold text (RFC 3986)."""

_XDP_FD, _XDP_FLAGS = 1, 3
_XDP_MODES = (2, 4, 8)
"""Flags that select a mode of XDP: generic, driver, hardware."""


def read_link_attributes(rtnl: Rtnl, index: int, operation: str) -> tuple[str, dict[str, str]]:
    """Return the name of a link, and its attributes as far as this kernel has them."""
    body = _IFINFO.pack(0, 0, index, 0, 0) + u32(_EXT_MASK, _SKIP_STATS)
    answer = rtnl.socket.get(_GETLINK, body, operation)
    *_, flags, _ = _IFINFO.unpack_from(answer)
    found = attributes(answer, _IFINFO.size)
    numbers = (_NUMBERS | _COUNTS).items()
    read = {name: str(number(found[kind])) for name, kind in numbers if kind in found}
    return string(found[_IFNAME]), read | {
        "flags": f"{flags & _FLAGS:#x}",
        "broadcast address": found.get(_BROADCAST, b"").hex(":"),
        "alias": quote_from_bytes(found.get(_IFALIAS, b"").rstrip(b"\0"), _ALIAS_AS_IT_IS),
        "link mode": str(number(found.get(_LINKMODE, b""))),
        "protodown": str(number(found.get(_PROTO_DOWN, b""))),
        "settings of its kind": digest(attributes(found.get(_LINKINFO, b"")).get(_INFO_DATA, b"")),
        XDP: xdp_programs(found.get(_XDP, b"")),
    }


def set_link_attributes(rtnl: Rtnl, index: int, home: Mapping[str, str], operation: str) -> None:
    """Set the attributes of a link to those that it had at home; programs are detached.

    Attributes that the kernel refuses stay: the caller reads them again.
    """
    settings = [u32(kind, int(home[name])) for name, kind in _NUMBERS.items() if name in home]
    settings.append(attribute(_IFALIAS, unquote_to_bytes(home.get("alias", ""))))
    if broadcast := bytes.fromhex(home.get("broadcast address", "").replace(":", "")):
        settings.append(attribute(_BROADCAST, broadcast))
    header = _IFINFO.pack(0, 0, index, int(home.get("flags", "0x1000"), 16), _FLAGS)
    with suppress(NetlinkError):
        rtnl.socket.request(_SETLINK, header + b"".join(settings), operation)


def detach_xdp(rtnl: Rtnl, index: int, operation: str) -> None:
    """Detach the XDP programs of a link in each mode; one that a bpf_link holds stays."""
    header = _IFINFO.pack(0, 0, index, 0, 0)
    for flag in _XDP_MODES:
        nothing = attribute(_XDP_FD, struct.pack("=i", -1))
        with suppress(NetlinkError):
            rtnl.socket.request(_SETLINK, header + nested(_XDP, nothing, u32(_XDP_FLAGS, flag)), operation)


def digest(value: bytes) -> str:
    """Return a short text that differs if the value does; empty for an empty value."""
    return blake2b(value, digest_size=6).hexdigest() if value else ""
