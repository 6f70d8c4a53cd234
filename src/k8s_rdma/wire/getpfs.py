"""The document of `GET /getpfs`: a node's PFs and VFs as the RDMA hardware DaemonSet has always shown them.

Field names, their order and their types are those that existing scripts and extenders read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.wire.report import NodeReport, PfReport, VfReport

if TYPE_CHECKING:
    from collections.abc import Collection

_encoder = msgspec.json.Encoder()


class LegacyPf(msgspec.Struct, frozen=True, kw_only=True):
    """A PF; rates in Mb/s.

    used_tx_rate: the sum of its VFs' `min_tx_rate`, and the rest of the link's part for claims, if it is
        split.
    capacity_tx_rate: the link's speed. It is 0 if unknown, because the readers decode an unsigned integer,
        and with 0 they place no reservation on the PF, as placement itself does; `/v1/node` has null.
    used_vfs: VFs that a pod has, or somebody else, in any namespace, and those of exclusive resources and
        ResourceClaims, because the readers do not know these, and would give them by annotation.
    capacity_vfs: VFs that exist.
    """

    name: str
    used_tx_rate: int
    capacity_tx_rate: int
    used_vfs: int
    capacity_vfs: int
    vfs: tuple[VfReport, ...]


def legacy_pf(pf: PfReport, claimed_vfs: Collection[int]) -> LegacyPf:
    """Return a PF in the form of `/getpfs`; the report must hold the VFs. claimed_vfs: those of claims."""
    foreign = {vf.vf for vf in pf.foreign}
    vfs = tuple(replace(vf, allocated=True) if vf.vf in foreign else vf for vf in pf.vfs)
    by_claims = sum(vf.min_tx_rate for vf in vfs if vf.vf in claimed_vfs)
    set_aside_mbps = max(0, (pf.claims_mbps or 0) - by_claims)
    return LegacyPf(
        name=pf.name,
        used_tx_rate=sum(vf.min_tx_rate for vf in vfs) + set_aside_mbps,
        capacity_tx_rate=pf.link_mbps or 0,
        used_vfs=sum(vf.allocated for vf in vfs),
        capacity_vfs=pf.capacity_vfs + sum(pf.pools.values()),
        vfs=vfs,
    )


def encode_getpfs(report: NodeReport) -> bytes:
    """Return the document's bytes, PFs in the report's order."""
    claimed: dict[str, set[int]] = {}
    for allocation in report.allocations:
        for interface in allocation.interfaces:
            if interface.pool == CLAIMS_POOL:
                claimed.setdefault(interface.pf, set()).add(interface.vf)
    return _encoder.encode([legacy_pf(pf, claimed.get(pf.pci, ())) for pf in report.pfs])
