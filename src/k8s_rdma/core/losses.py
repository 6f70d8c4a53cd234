"""Which pods have lost an interface that was given to them, for the node's operator.

VFs go with their PF's driver and with a change of `sriov_numvfs`, netdevs with their VF's driver, whoever has
them. The netdev of a VF that gets a driver again is another one, in the host's network namespace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from k8s_rdma.core.kernel import PfState, Vf
    from k8s_rdma.core.ledger import AllocatedInterface


def lost_interfaces(pf: PfState, held: Iterable[tuple[str, AllocatedInterface]]) -> Iterator[str]:
    """The pods that do not have the VFs of a PF that they were given, one sentence each.

    held: each interface with its pod, `namespace/name`, of sandboxes that exist.
    """
    vfs = {vf.index: vf for vf in pf.vfs}
    for pod, interface in held:
        if interface.vf.pf != pf.pci:
            continue
        why = _why_lost(pf, vfs.get(interface.vf.index), interface)
        if why:
            yield (
                f"VF {interface.vf.index} of PF {pf.name}, which pod {pod} was given as {interface.ifname}, "
                f"is lost to it: {why}; the pod has to be started anew"
            )


def _why_lost(pf: PfState, vf: Vf | None, interface: AllocatedInterface) -> str:
    """In a clause; empty while it is not."""
    if vf is None:
        return f"the PF has {len(pf.vfs)} VFs now"
    if vf.netdev is not None:
        return f"its netdev is in the host's network namespace, as {vf.netdev}"
    serves = not interface.is_netdev and vf.driver == interface.options.driver
    return "" if serves else vf.unusable
