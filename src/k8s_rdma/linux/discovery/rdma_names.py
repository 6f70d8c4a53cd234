"""Names of the RDMA devices of functions and netdevs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from k8s_rdma.linux.netlink.queries import RdmaNetlinkDevice
    from k8s_rdma.linux.netlink.rtnl import Link
    from k8s_rdma.linux.sysfs import PciFunction, Sysfs

_CLASS = "class/infiniband"


class RdmaDevices:
    """Snapshot of the RDMA devices that RDMA netlink and sysfs list."""

    def __init__(self, sysfs: Sysfs, reported: Sequence[RdmaNetlinkDevice]) -> None:
        """Index the devices that RDMA netlink reported; empty without RDMA in the kernel."""
        self._sysfs = sysfs
        self._by_name = {device.name: device for device in reported}
        self._by_netdev: dict[int, list[str]] = {}
        for device in sorted(reported, key=lambda device: device.name):
            for port in device.ports:
                if port.netdev_index is not None:
                    self._by_netdev.setdefault(port.netdev_index, []).append(device.name)
        self._soft: dict[str, str] | None = None

    def name_of(self, function: PciFunction, link: Link | None) -> str | None:
        """Return the RDMA device of a function and its netdev, if that is in this namespace.

        First choice is the device with a port on the netdev (of several the function's own: soft ones may
        exist beside it), second the function's own (InfiniBand, where ports have no netdev; RoCE over a bond,
        whose netdev the port has), third a soft one made on the netdev.
        """
        if link is None:
            return next(iter(function.rdma_devices()), None)
        on_netdev = self._by_netdev.get(link.index, ())
        if len(on_netdev) == 1:
            return on_netdev[0]
        own = function.rdma_devices()
        common = [name for name in own if name in on_netdev]
        return next(iter([*common, *on_netdev, *own]), None) or self._soft_devices().get(link.name)

    def on_netdev(self, link: Link) -> Collection[str]:
        """Return the names of the devices with a port on a netdev."""
        return self._by_netdev.get(link.index, ())

    def firmware(self, device: str) -> str:
        """Firmware version; empty if the device does not report it, for example a software device."""
        info = self._by_name.get(device)
        return (info and info.firmware) or self._sysfs.value_if_any(f"{_CLASS}/{device}/fw_ver") or ""

    def _soft_devices(self) -> dict[str, str]:
        """Soft devices by their netdev's name (Linux `drivers/infiniband/sw/rxe/rxe_verbs.c`, parent)."""
        if self._soft is None:
            self._soft = {
                parent: name
                for name in sorted(self._sysfs.names_if_any(_CLASS) or (), reverse=True)
                if (parent := self._sysfs.value_if_any(f"{_CLASS}/{name}/parent"))
            }
        return self._soft
