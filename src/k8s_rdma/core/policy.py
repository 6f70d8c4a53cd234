"""How the interfaces of one pod are to be spread over a node's PFs."""

from __future__ import annotations

from enum import StrEnum, unique


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
