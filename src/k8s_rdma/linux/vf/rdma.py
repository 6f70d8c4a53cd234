"""Moves of VFs' RDMA devices into pods' namespaces and back.

Devices move only in exclusive mode, where each namespace has its own; in shared mode every namespace sees
all. Source: Linux `drivers/infiniband/core/device.c` (6.1), `rdma_dev_change_netns`; rdma-system(8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.devices.rdma_devices import NetnsMode
from k8s_rdma.linux.netlink.rdma import RdmaNetlink
from k8s_rdma.linux.sysfs import Sysfs, is_absent

if TYPE_CHECKING:
    from k8s_rdma.core.types import PciAddress
    from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries


class VfRdma:
    """Finds and moves the RDMA devices of VFs.

    A namespace that ends returns its RDMA devices before its netdevs: `rdma_dev_net_ops` are registered after
    `default_device_ops`, and exit in reverse order.
    """

    def __init__(self, *, queries: NetlinkQueries, sysfs: Sysfs, host: int) -> None:
        """Work with these, all of the host's namespace; `host` is its descriptor."""
        self._queries = queries
        self._sysfs = sysfs
        self._host = host

    def move_to_pod(self, pci: PciAddress, netdev: int | None, namespace: int, operation: str) -> None:
        """Move a VF's RDMA device from the host's namespace into another (a descriptor).

        netdev: the index of the VF's netdev if that is in the host's namespace as well.
        """
        host_rdma = self._exclusive()
        if host_rdma is not None:
            _move(self._devices_of(pci, netdev, host_rdma), host_rdma, namespace, operation)

    def bring_home(self, pci: PciAddress, netdev: int | None, namespace: int, operation: str) -> None:
        """Move a VF's RDMA device from that namespace to the host's; `netdev` is an index there."""
        if self._exclusive() is not None:
            with RdmaNetlink(namespace) as pod_rdma:
                _move(self._devices_of(pci, netdev, pod_rdma), pod_rdma, self._host, operation)

    def counters(self, pci: PciAddress, netdev: int | None, namespace: int) -> dict[str, int]:
        """Return the `hw_counters` of a VF's RDMA device in that namespace; `netdev` is an index there."""
        if self._queries.rdma() is None:
            return {}
        with RdmaNetlink(namespace) as pod_rdma:
            for index in self._devices_of(pci, netdev, pod_rdma).values():
                return pod_rdma.hw_counters(index)
        return {}

    def elsewhere(self, pci: PciAddress) -> str:
        """Return the name of the VF's RDMA device if it is in another namespace; empty otherwise."""
        if self._exclusive() is None:
            return ""
        names = self.names(pci)
        return next((name for name in sorted(names) if not self._is_present(name)), "")

    def _exclusive(self) -> RdmaNetlink | None:
        host_rdma = self._queries.rdma()
        return host_rdma if host_rdma is not None and host_rdma.netns_mode() is NetnsMode.EXCLUSIVE else None

    def _devices_of(self, pci: PciAddress, netdev: int | None, rdma: RdmaNetlink) -> dict[str, int]:
        """Return name and index of the VF's devices among those that a namespace sees."""
        names = self.names(pci)
        if names:
            return {name: index for name, index in rdma.indexes().items() if name in names}
        if netdev is None:
            return {}
        # Soft devices have no PCI function, and without ib_uverbs sysfs shows none of them.
        return {
            device.name: device.index
            for device in rdma.devices()
            if any(port.netdev_index == netdev for port in device.ports)
        }

    def names(self, pci: PciAddress) -> set[str]:
        """Return the names of a function's RDMA devices, in other namespaces by their character devices."""
        function = f"bus/pci/devices/{pci}"
        names = set(self._sysfs.names_if_any(f"{function}/infiniband") or ())
        for verbs in self._sysfs.names_if_any(f"{function}/infiniband_verbs") or ():
            name = self._sysfs.value_if_any(f"{function}/infiniband_verbs/{verbs}/ibdev")
            if name:
                names.add(name)
        return names

    def _is_present(self, name: str) -> bool:
        try:
            self._sysfs.names(f"class/infiniband/{name}")
        except OSError as error:
            if is_absent(error):
                return False
            raise
        return True


def _move(devices: dict[str, int], rdma: RdmaNetlink, namespace: int, operation: str) -> None:
    for name, index in devices.items():
        rdma.move(index, namespace, f"{operation}: RDMA device {name}")
