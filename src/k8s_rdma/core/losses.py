"""Losses on a node, for its operator: rates, caps, interfaces and PFs that are lost.

The pods keep what is left. VFs go with their PF's driver and with a change of `sriov_numvfs`, netdevs with
their VF's driver. The netdev of a VF that gets a driver again is another one, in the host's network
namespace. A PF goes with its card, for example after a PCI Express error that the kernel answers by removing
the device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from k8s_rdma.core.round_robin import keeps_minimums

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Set

    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.kernel import Hardware, PfState, Vf
    from k8s_rdma.core.ledger import AllocatedInterface
    from k8s_rdma.core.pf_use import Used
    from k8s_rdma.core.step import VfRef
    from k8s_rdma.core.types import PciAddress


def lost_interfaces(pf: PfState, allocated: Iterable[tuple[str, AllocatedInterface]]) -> Iterator[str]:
    """Yield the pods that do not have the VFs of a PF that they were given, one sentence each.

    allocated: each interface with its pod, `namespace/name`, of sandboxes that exist.
    """
    for pod, interface in allocated:
        if interface.vf.pf != pf.pci:
            continue
        why = _why_lost(pf, pf.vf(interface.vf.index), interface)
        if why:
            yield (
                f"VF {interface.vf.index} of PF {pf.name}, which pod {pod} was given as {interface.ifname}, "
                f"is lost to it: {why}; the pod has to be started anew"
            )


def _why_lost(pf: PfState, vf: Vf | None, interface: AllocatedInterface) -> str:
    """Describe in a clause why the interface is lost; empty while it is not."""
    if vf is None:
        return f"the PF has {len(pf.vfs)} VFs now"
    if vf.netdev is not None:
        return f"its netdev is in the host's network namespace, as {vf.netdev}"
    serves = not interface.is_netdev and vf.driver == interface.options.driver
    return "" if serves else vf.unusable


def unkept_reservations(pf: Pf, used: Used) -> Iterator[str]:
    """Describe the reservations that the PF's link cannot keep, one sentence each."""
    if pf.link_mbps is None and used.mbps:
        yield f"PF {pf.name}: {used.mbps} Mb/s are reserved, and its link speed is unknown now"
        return
    if pf.link_mbps is not None and used.mbps > pf.link_mbps:
        yield f"PF {pf.name}: {used.mbps} Mb/s are reserved, and its link has {pf.link_mbps} Mb/s now"
        return
    if not keeps_minimums(pf, used):
        yield (
            f"PF {pf.name}: minimum rates of {pf.driver} are weights, by which some of its {used.in_use} VFs "
            "in use get less than is reserved for them"
        )


def holds_its_rates(pf: PfState, interface: AllocatedInterface) -> bool:
    """Report whether the VF still has its programmed rates; true if its PF does not show them."""
    rate, vf = interface.rate(), pf.vf(interface.vf.index)
    return vf is None or (vf.min_tx_rate_mbps, vf.max_tx_rate_mbps) == (
        rate.min_tx_rate_mbps,
        rate.max_tx_rate_mbps,
    )


def lost_rates(pf: PfState, allocated: Iterable[tuple[str, AllocatedInterface]]) -> Iterator[str]:
    """Yield the pods whose VFs on the PF have other rates than were programmed, one sentence each.

    allocated: each interface with its pod, `namespace/name`. Some drivers forget rates when their link
        changes.
    """
    for pod, interface in allocated:
        if interface.vf.pf == pf.pci and not holds_its_rates(pf, interface):
            rate = interface.rate()
            yield (
                f"VF {interface.vf.index} of PF {pf.name}, which pod {pod} has, no longer has the rates that "
                f"were programmed on it: min {rate.min_tx_rate_mbps}, max {rate.max_tx_rate_mbps} Mb/s"
            )


def lost_caps(
    pf: PfState, allocated: Iterable[tuple[str, AllocatedInterface]], reasons: Mapping[VfRef, str]
) -> Iterator[str]:
    """Yield the pods whose caps on the PF were to be kept by software and are not, one sentence each.

    allocated: as for `lost_rates`.
    reasons: by VF, the reason in a clause.
    """
    for pod, interface in allocated:
        why = reasons.get(interface.vf)
        if interface.vf.pf == pf.pci and why:
            yield (
                f"VF {interface.vf.index} of PF {pf.name}, which pod {pod} has as {interface.ifname}, is not "
                f"limited to {interface.software_max_tx_rate_mbps} Mb/s by software now: {why}"
            )


class SeenPfs:
    """The PFs and VFs that a node's observations had: the only trace of a lost card without pods."""

    def __init__(self) -> None:
        """Start without any."""
        self._names: dict[PciAddress, str] = {}
        self._vfs: dict[PciAddress, int] = {}

    def with_losses(self, hardware: Hardware) -> Hardware:
        """Return the hardware with a problem for each PF, and each number of VFs, that are no longer there.

        A PF that cannot be read is not lost, so PFs are not reported lost while any of them may be
        unreadable.
        """
        for pf in hardware.pfs:
            self._names[pf.pci] = pf.name
            self._vfs[pf.pci] = max(len(pf.vfs), self._vfs.get(pf.pci, 0))
        pfs = tuple(map(self._with_lost_vfs, hardware.pfs))
        problems = (*hardware.problems, *self._lost_pfs(hardware))
        if (pfs, problems) == (hardware.pfs, hardware.problems):
            return hardware
        return replace(hardware, pfs=pfs, problems=problems)

    def _lost_pfs(self, hardware: Hardware) -> Iterator[str]:
        present = _present(hardware)
        for pci, name in sorted(self._names.items()) if present is not None else ():
            if pci not in (present or ()):
                yield (
                    f"PF {name} ({pci}) is gone: the machine has no such network card any more, and had it "
                    f"with {self._vfs[pci]} VFs; see the kernel's log for PCI Express errors; if it was "
                    "removed on purpose, restart the agent"
                )

    def _with_lost_vfs(self, pf: PfState) -> PfState:
        largest, number = self._vfs[pf.pci], len(pf.vfs)
        if number == largest:
            return pf
        problem = (
            f"it has {number} VFs, and had {largest}: run k8s-rdma init, or restart the agent if so wanted"
        )
        return replace(pf, problems=(*pf.problems, problem))


def _present(hardware: Hardware) -> Set[PciAddress] | None:
    """Return the PFs that are there, readable or not, if that is known."""
    unreadable = {item.pf for item in hardware.unreadable}
    if None in unreadable:
        return None
    return {pf.pci for pf in hardware.pfs} | {pci for pci in unreadable if pci is not None}


def lost_with_pfs(hardware: Hardware, allocated: Iterable[tuple[str, AllocatedInterface]]) -> Iterator[str]:
    """Yield the pods that do not have the VFs of PFs which are gone, one sentence each.

    PFs that may be unreadable instead are left out.

    allocated: as for `lost_interfaces`.
    """
    present = _present(hardware)
    for pod, interface in allocated if present is not None else ():
        if interface.vf.pf not in (present or ()):
            yield (
                f"VF {interface.vf.index} of PF {interface.vf.pf}, which pod {pod} was given as "
                f"{interface.ifname}, is lost to it: the PF is gone; the pod has to be started anew"
            )
