"""How the interfaces of one pod are to be spread over a node's PFs."""

from __future__ import annotations

from enum import StrEnum, unique
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.core.inventory import Pf


@unique
class PfPolicy(StrEnum):
    """The annotation `k8s-rdma.io/policy`.

    SAME_PF: all on one PF. SPREAD_PFS: each on a PF of its own, for fabrics with a rail per PF.
    SAME_NUMA: all on PFs of one NUMA node; a PF that belongs to none is on none with others.
    """

    ANY = "any"
    SAME_PF = "same-pf"
    SPREAD_PFS = "spread-pfs"
    SAME_NUMA = "same-numa"


def groups(policy: PfPolicy, pfs: Iterable[Pf], beside: Collection[PciAddress] = ()) -> list[tuple[Pf, ...]]:
    """The sets of PFs of which one has to take all interfaces; `SPREAD_PFS` also says how.

    beside: where other interfaces of the same pod are already.
    """
    if policy is PfPolicy.ANY:
        return [tuple(pfs)]
    if policy is PfPolicy.SPREAD_PFS:
        return [tuple(pf for pf in pfs if pf.pci not in beside)]
    found: dict[object, list[Pf]] = {}
    for pf in pfs:
        alone = policy is PfPolicy.SAME_PF or pf.numa_node is None
        found.setdefault(pf.pci if alone else pf.numa_node, []).append(pf)
    return [tuple(group) for group in found.values() if {pf.pci for pf in group}.issuperset(beside)]


def keeps(
    policy: PfPolicy, chosen: Sequence[PciAddress], pfs: Iterable[Pf], beside: Collection[PciAddress] = ()
) -> bool:
    """Whether interfaces on these of the PFs, one for each time that it is named, are as the policy says."""
    if policy is PfPolicy.SPREAD_PFS and len(set(chosen)) < len(chosen):
        return False
    return any({pf.pci for pf in group}.issuperset(chosen) for group in groups(policy, pfs, beside))
