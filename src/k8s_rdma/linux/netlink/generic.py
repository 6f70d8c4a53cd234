"""Families of generic netlink, which the kernel numbers when it registers them.

Source: Linux `include/uapi/linux/genetlink.h`, `net/netlink/genetlink.c` (CTRL_CMD_GETFAMILY).
"""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING

from k8s_rdma.linux.netlink.socket import NetlinkError, attributes, number, text

if TYPE_CHECKING:
    from k8s_rdma.linux.netlink.socket import NetlinkSocket

_CONTROLLER, _GETFAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2
_HEADER = struct.Struct("=BBxx")


def find_family(socket: NetlinkSocket, name: str) -> int | None:
    """Return a family's number, if this kernel has it. socket: of generic netlink."""
    body = _HEADER.pack(_GETFAMILY, 1) + text(_FAMILY_NAME, name)
    try:
        answer = socket.get(_CONTROLLER, body, f"{name} family")
    except NetlinkError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    return number(attributes(answer, _HEADER.size)[_FAMILY_ID])
