"""Data Center Bridging of a PF (DCB), by route netlink."""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass

from k8s_rdma.linux.netlink.socket import (
    NetlinkError,
    NetlinkSocket,
    SocketClient,
    attributes,
    each_attribute,
    text,
)

_RTM_GETDCB, _IEEE_GET = 78, 21
_DCB_IFNAME, _IEEE, _PFC, _APP_TABLE = 1, 13, 2, 3
_HEADER = struct.Struct("=BBxx")
_PFC_BEGINNING = struct.Struct("=BB")
_APP = struct.Struct("=BBH")
_BY_DSCP = 5
_PRIORITIES = range(8)
_SAYS_NOTHING = (errno.EOPNOTSUPP, errno.ENODEV)


@dataclass(frozen=True, slots=True, kw_only=True)
class DcbState:
    """DCB settings. pfc: priorities with priority flow control, if the driver reports them.

    by_dscp: whether DSCP determines the priority of any frame, for which drivers trust DSCP (mlx5:
    `mlx5e_dcbnl_ieee_setapp`, drivers/net/ethernet/mellanox/mlx5/core/en_dcbnl.c).
    """

    pfc: tuple[int, ...] | None
    by_dscp: bool


class Dcb(SocketClient[NetlinkSocket]):
    """Queries netdevs of the calling thread's network namespace. Every failure is a `NetlinkError`."""

    def __init__(self, socket: NetlinkSocket | None = None) -> None:
        """Use this socket, or a new one."""
        self.socket = socket or NetlinkSocket()

    def state(self, netdev: str) -> DcbState | None:
        """Return the settings that a netdev's driver reports, if there are DCB and such a netdev."""
        answer = self.answer(netdev)
        return None if answer is None else decode_dcb(answer)

    def answer(self, netdev: str) -> bytes | None:
        """Return all settings, encoded, if `state` has a result."""
        body = _HEADER.pack(0, _IEEE_GET) + text(_DCB_IFNAME, netdev)
        try:
            return self.socket.get(_RTM_GETDCB, body, f"DCB of {netdev}")
        except NetlinkError as error:
            if error.errno in _SAYS_NOTHING:
                return None
            raise


def decode_dcb(answer: bytes) -> DcbState:
    """Decode the answer to DCB_CMD_IEEE_GET."""
    ieee = attributes(attributes(answer, _HEADER.size).get(_IEEE, b""))
    pfc = ieee.get(_PFC)
    apps = (_APP.unpack_from(value) for _, value in each_attribute(ieee.get(_APP_TABLE, b"")))
    return DcbState(
        pfc=None if pfc is None else _priorities(_PFC_BEGINNING.unpack_from(pfc)[1]),
        by_dscp=any(selector == _BY_DSCP for selector, _, _ in apps),
    )


def _priorities(bits: int) -> tuple[int, ...]:
    return tuple(priority for priority in _PRIORITIES if bits >> priority & 1)
