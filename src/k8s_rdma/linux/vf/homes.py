"""VFs at home as they were before a pod had them: attributes of netdevs are restored, or the netdev ends.

An attribute that cannot be restored, or is not known, ends with the netdev: the VF is bound to its driver
anew. So does a BPF program that a bpf_link holds, which netlink cannot detach (EBUSY, `dev_xdp_attach`,
net/core/dev.c, Linux 6.18).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.netdev_attributes import differences, faults, programs
from k8s_rdma.errors import KernelError, printable
from k8s_rdma.linux.vf.netdev import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.netdev_attributes import Attributes
    from k8s_rdma.core.step import BringHome, CleanVf, VfRef
    from k8s_rdma.linux.netlink.rtnl import Link
    from k8s_rdma.linux.vf.attributes import NetdevAttributes
    from k8s_rdma.linux.vf.binding import VfBinding
    from k8s_rdma.linux.vf.moves import VfLocator, VfRdma


RDMA_DEVICE = "RDMA device"
"""The attribute that is the name of a VF's RDMA device."""


class VfHomes:
    """Restores VFs that are in the host's namespace."""

    def __init__(
        self, *, attributes: NetdevAttributes, places: VfLocator, rdma: VfRdma, binding: VfBinding
    ) -> None:
        """Work with these, all of the host's namespace."""
        self._attributes = attributes
        self._rdma = rdma
        self._places = places
        self._binding = binding
        self._new: dict[VfRef, int] = {}  # index of the netdev by which it was bound anew, until it is given

    def attributes(self, vf: VfRef) -> Attributes:
        """Return the attributes of a VF's netdev, and its RDMA device's name if it has one.

        KernelError when the netdev is not in this namespace.
        """
        link = self._link(vf)
        found = self._attributes.read(link.index, f"{describe(vf)}: {link.name}")
        names = printable(" ".join(sorted(self._rdma.names(self._places.function(vf).pci))))
        return tuple(sorted((*found, (RDMA_DEVICE, names)))) if names else found

    def clean(self, step: CleanVf) -> None:
        """Apply the step; KernelError when a BPF program stays."""
        self._new.pop(step.vf, None)
        if self._places.at_home(step.vf) is None:
            return
        why = faults(self.attributes(step.vf), step.home.attributes)
        if why:
            self._renew(step, why, mac=None)

    def restore(self, step: BringHome, links_above: Sequence[str]) -> Attributes | None:
        """Restore the attributes of a VF that has returned, or bind it again.

        Returns the attributes of a netdev that had those of home, else None.

        links_above: links of the pod that are made on its netdev, and would stay.
        """
        link, home = self._link(step.vf), step.home.attributes
        if self._new.get(step.vf) == link.index:
            return None
        operation = f"{describe(step.vf)}: attributes as at home"
        why: Sequence[str] = [f"the pod has {printable(name)} on it" for name in links_above[:1]]
        if home is None:
            why = why or ["its attributes at home were not noted"]
        elif not why:
            if self.attributes(step.vf) == home:
                return home
            self._attributes.restore(link, home, operation)
            self._restore_rdma_name(step)
            why = differences(home, self.attributes(step.vf))
        if why:
            self._renew(step, why, mac=step.mac)
            self._new[step.vf] = self._link(step.vf).index
        return None

    def _restore_rdma_name(self, step: CleanVf | BringHome) -> None:
        name = dict(step.home.attributes or ()).get(RDMA_DEVICE, "")
        operation = f"{describe(step.vf)}: RDMA device as at home"
        self._rdma.restore_name(self._places.function(step.vf).pci, name, operation)

    def _renew(self, step: CleanVf | BringHome, why: Sequence[str], *, mac: str | None) -> None:
        self._binding.renew(step.vf, step.home, "; ".join(why), mac=mac)
        self._restore_rdma_name(step)
        remaining = programs(self.attributes(step.vf))
        if remaining:
            msg = f"{describe(step.vf)}: bound anew, and {', '.join(remaining)}"
            raise KernelError(msg)

    def _link(self, vf: VfRef) -> Link:
        link = self._places.at_home(vf)
        if link is None:
            msg = f"{describe(vf)}: its netdev is not in the host's namespace"
            raise KernelError(msg)
        return link
