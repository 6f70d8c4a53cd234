"""Traffic of VFs, from the PF's driver where that counts, from the VF's netdev otherwise.

A PF whose driver counts also counts what passes by the VF's netdev, RDMA above all. The kernel reports
zeros for a driver that does not; then it is the VF's netdev, in whichever namespace it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import VfCounters
from k8s_rdma.core.step import VfRef
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.rtnl import LinkCounters, Rtnl, counters_of_all
from k8s_rdma.linux.vf.locator import netdevs_by_device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.core.kernel import Hardware, PfState
    from k8s_rdma.core.step import NetnsRef
    from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
    from k8s_rdma.linux.netns import Namespaces
    from k8s_rdma.linux.sysfs import Sysfs
    from k8s_rdma.linux.vf.rdma import VfRdma

_LIFESPAN = "lifespan"
"""Among the counters in sysfs: for how many ms their values are kept."""


@dataclass(frozen=True, slots=True)
class _Counted:
    """By a VF's netdev and RDMA device."""

    link: LinkCounters
    rdma: Mapping[str, int] = field(default_factory=dict)


class VfTraffic:
    """Samples counters; nothing is kept in between."""

    def __init__(
        self, *, queries: NetlinkQueries, sysfs: Sysfs, namespaces: Namespaces, rdma: VfRdma
    ) -> None:
        """All of the namespace where VFs are at home."""
        self._queries = queries
        self._sysfs = sysfs
        self._namespaces = namespaces
        self._rdma = rdma

    def sample(self, hardware: Hardware, holders: Mapping[VfRef, NetnsRef]) -> tuple[VfCounters, ...]:
        """The counters of the VFs of this hardware, ordered; see `core.kernel.Kernel.sample`."""
        counted = dict(self._at_home(hardware))
        for netns in dict.fromkeys(holders.values()):
            vfs = {vf: pci for vf, pci in _functions(hardware) if holders.get(vf) == netns}
            with suppress(KernelError):  # VFs in a namespace that cannot be looked into are left out
                counted.update(self._in(netns, vfs))
        for pf in hardware.pfs:
            for vf, link in self._by_pf(pf):
                counted[vf] = _Counted(link, counted[vf].rdma if vf in counted else {})
        return tuple(
            VfCounters(vf=vf, **asdict(counted[vf].link), rdma=counted[vf].rdma) for vf in sorted(counted)
        )

    def _at_home(self, hardware: Hardware) -> Iterator[tuple[VfRef, _Counted]]:
        indexes = {link.name: link.index for link in self._queries.links()}
        counters = counters_of_all(self._queries.rtnl.socket)
        for pf in hardware.pfs:
            for vf in pf.vfs:
                index = indexes.get(vf.netdev or "")
                if index in counters:
                    yield VfRef(pf.pci, vf.index), _Counted(counters[index], self._by_sysfs(vf.rdma_device))

    def _in(self, netns: NetnsRef, vfs: Mapping[VfRef, PciAddress]) -> Iterator[tuple[VfRef, _Counted]]:
        with self._namespaces.opened(netns) as namespace:
            if namespace is None:
                return
            with Rtnl(namespace) as pod_rtnl:
                netdevs = netdevs_by_device(pod_rtnl, namespace)
                counters = counters_of_all(pod_rtnl.socket)
            for vf, pci in vfs.items():
                link = netdevs.get(pci)
                if link is not None and link.index in counters:
                    rdma = self._rdma.counters(pci, link.index, namespace)
                    yield vf, _Counted(counters[link.index], rdma)

    def _by_pf(self, pf: PfState) -> Iterator[tuple[VfRef, LinkCounters]]:
        """Nothing where the driver counts nothing, or cannot tell of all VFs."""
        link = self._queries.rtnl.link(pf.name)
        try:
            stats = self._queries.vf_stats(link.index) if link else ()
        except KernelError:
            return
        if any(vf.rx_packets or vf.tx_packets for vf in stats):
            for vf in stats:
                yield (
                    VfRef(pf.pci, vf.index),
                    LinkCounters(
                        tx_bytes=vf.tx_bytes,
                        rx_bytes=vf.rx_bytes,
                        tx_packets=vf.tx_packets,
                        rx_packets=vf.rx_packets,
                    ),
                )

    def _by_sysfs(self, rdma_device: str | None) -> dict[str, int]:
        """A device's `hw_counters`, those of its first port."""
        directory = f"class/infiniband/{rdma_device}/ports/1/hw_counters"
        names = self._sysfs.names_if_any(directory) if rdma_device else None
        values = {}
        for name in sorted(names or ()):
            with suppress(OSError):  # one that holds no number is left out
                values[name] = self._sysfs.number(f"{directory}/{name}")
        return {name: value for name, value in values.items() if value is not None and name != _LIFESPAN}


def _functions(hardware: Hardware) -> Iterator[tuple[VfRef, PciAddress]]:
    for pf in hardware.pfs:
        for vf in pf.vfs:
            yield VfRef(pf.pci, vf.index), vf.pci
