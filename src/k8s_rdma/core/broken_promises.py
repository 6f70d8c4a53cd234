"""Promises on a node that do not hold now, for its operator: rates, caps, and interfaces that pods have lost.

Nothing is taken from the pods that have them. VFs go with their PF's driver and with a change of
`sriov_numvfs`, netdevs with their VF's driver. The netdev of a VF that gets a driver again is another one,
in the host's network namespace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.weights import RoundRobin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from k8s_rdma.core.inventory import Pf, Used
    from k8s_rdma.core.kernel import PfState, Vf
    from k8s_rdma.core.ledger import AllocatedInterface
    from k8s_rdma.core.step import VfRef


def lost_interfaces(pf: PfState, allocated: Iterable[tuple[str, AllocatedInterface]]) -> Iterator[str]:
    """The pods that do not have the VFs of a PF that they were given, one sentence each.

    allocated: each interface with its pod, `namespace/name`, of sandboxes that exist.
    """
    vfs = {vf.index: vf for vf in pf.vfs}
    for pod, interface in allocated:
        if interface.vf.pf != pf.pci:
            continue
        why = _why_lost(pf, vfs.get(interface.vf.index), interface)
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


def broken_promises(pf: Pf, used: Used) -> Iterator[str]:
    """Describe the reservations that the PF's link cannot keep, one sentence each."""
    if pf.link_mbps is None and used.mbps:
        yield f"PF {pf.name}: {used.mbps} Mb/s are reserved, and its link speed is unknown now"
        return
    if pf.link_mbps is not None and used.mbps > pf.link_mbps:
        yield f"PF {pf.name}: {used.mbps} Mb/s are reserved, and its link has {pf.link_mbps} Mb/s now"
        return
    round_robin = RoundRobin.for_pf(pf, used)
    if round_robin is not None and not round_robin.load().is_within_limit:
        yield (
            f"PF {pf.name}: minimum rates of {pf.driver} are weights, by which some of its {used.in_use} VFs "
            "in use get less than is reserved for them"
        )


def holds_its_rates(pf: PfState, interface: AllocatedInterface) -> bool:
    """Report whether the VF still has its programmed rates; true where its PF does not show them."""
    rate = interface.rate()
    return all(
        (vf.min_tx_rate_mbps, vf.max_tx_rate_mbps) == (rate.min_tx_rate_mbps, rate.max_tx_rate_mbps)
        for vf in pf.vfs
        if vf.index == interface.vf.index
    )


def lost_rates(pf: PfState, allocated: Iterable[tuple[str, AllocatedInterface]]) -> Iterator[str]:
    """The pods whose VFs on the PF have other rates than were programmed, one sentence each.

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
    """The pods whose caps on the PF were to be kept by software and are not, one sentence each.

    allocated: as for `lost_rates`. reasons: of which VFs, and why, in a clause.
    """
    for pod, interface in allocated:
        why = reasons.get(interface.vf)
        if interface.vf.pf == pf.pci and why:
            yield (
                f"VF {interface.vf.index} of PF {pf.name}, which pod {pod} has as {interface.ifname}, is not "
                f"limited to {interface.software_max_tx_rate_mbps} Mb/s by software now: {why}"
            )
