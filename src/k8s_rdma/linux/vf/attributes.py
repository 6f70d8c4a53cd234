"""Attributes of VFs' netdevs that a pod may have changed: read, and set to those of home."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from k8s_rdma.linux.netlink.dcb import Dcb
from k8s_rdma.linux.netlink.ethtool import Ethtool
from k8s_rdma.linux.netlink.ethtool_settings import FEATURES, EthtoolSettings
from k8s_rdma.linux.netlink.link_attributes import (
    detach_xdp,
    digest,
    read_link_attributes,
    set_link_attributes,
)
from k8s_rdma.linux.netlink.programs import tcx_programs
from k8s_rdma.linux.netlink.shapers import QueueShapers
from k8s_rdma.linux.netlink.socket import NetlinkError, SocketClient
from k8s_rdma.linux.sysfs import error_name

if TYPE_CHECKING:
    from k8s_rdma.core.netdev_attributes import Attributes
    from k8s_rdma.linux.netlink.rtnl import Link, Rtnl
    from k8s_rdma.linux.sysfs import Sysfs

_FILES = ("threaded", "gro_flush_timeout", "napi_defer_hard_irqs")
_QUEUE_FILES = {"rx": ("rps_cpus", "rps_flow_cnt"), "tx": ("tx_maxrate",)}


class NetdevAttributes(SocketClient[EthtoolSettings]):
    """Reads and restores attributes of netdevs of the calling thread's network namespace."""

    def __init__(self, rtnl: Rtnl, sysfs: Sysfs | None = None) -> None:
        """Use this socket. sysfs: of the same namespace; None to leave out those of sysfs."""
        self._rtnl = rtnl
        self._sysfs = sysfs
        self.socket = EthtoolSettings()
        self._shapers = QueueShapers(self.socket.socket)
        self._ioctls = Ethtool()

    def read(self, index: int, operation: str) -> Attributes:
        """Return the attributes that driver and kernel have of the link of that index.

        operation: begins the error, a KernelError, when the link is gone.
        """
        name, found = read_link_attributes(self._rtnl, index, operation)
        found |= self.socket.read(index) | self._ioctls.settings(name) | tcx_programs(index)
        dcb = _dcb(self._rtnl, name)
        if dcb is not None:
            found["DCB"] = dcb
        shapers = self._shapers.read(index)
        if shapers is not None:
            found["shapers of queues"] = shapers
        if self._sysfs is not None:
            found |= _in_files(self._sysfs, f"class/net/{name}")
        return tuple(sorted(found.items()))

    def restore(self, link: Link, home: Attributes, operation: str) -> None:
        """Restore attributes that can be set, and detach programs; refused attributes stay."""
        attributes = dict(home)
        detach_xdp(self._rtnl, link.index, operation)
        set_link_attributes(self._rtnl, link.index, attributes, operation)
        if FEATURES in attributes:
            with suppress(NetlinkError):
                self.socket.want_features(link.index, attributes[FEATURES], operation)

    def close(self) -> None:
        """Close the sockets."""
        self.socket.close()
        self._ioctls.close()


def _dcb(rtnl: Rtnl, name: str) -> str | None:
    """Return a digest of the DCB settings, or the error's name, if the driver has any."""
    try:
        answer = Dcb(rtnl.socket).answer(name)
    except NetlinkError as error:
        return error_name(error.errno)
    return None if answer is None else digest(answer)


def _in_files(sysfs: Sysfs, directory: str) -> dict[str, str]:
    """Return the attributes that only sysfs shows."""
    found = {name: sysfs.value_if_any(f"{directory}/{name}") for name in _FILES}
    queues = sorted(sysfs.names_if_any(f"{directory}/queues") or ())
    values = [
        f"{queue}/{name}: {sysfs.value_if_any(f'{directory}/queues/{queue}/{name}')}"
        for queue in queues
        for name in _QUEUE_FILES.get(queue.partition("-")[0], ())
    ]
    found["steering of queues"] = digest("\n".join(values).encode())
    return {name: value for name, value in found.items() if value is not None}
