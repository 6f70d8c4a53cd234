"""`GET /getpfs`: a node's PFs and VFs as the RDMA hardware DaemonSet has always shown them.

Field names, their order and their types are those that existing scripts and extenders read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from k8s_rdma.wire.rest import VfReport

if TYPE_CHECKING:
    from k8s_rdma.wire.rest import NodeReport, PfReport


class LegacyPf(msgspec.Struct, frozen=True, kw_only=True):
    """A PF; rates in Mb/s.

    used_tx_rate: the sum of its VFs' `min_tx_rate`.
    capacity_tx_rate: the link's speed. 0 when it is unknown: the readers decode an unsigned integer, and
        with 0 they place no reservation on the PF, as placement itself does; `/v1/node` says null.
    used_vfs: VFs that a pod has, or somebody else, wherever they are. capacity_vfs: VFs that exist, in any
        pool: the readers know of none.
    """

    name: str
    used_tx_rate: int
    capacity_tx_rate: int
    used_vfs: int
    capacity_vfs: int
    vfs: tuple[VfReport, ...]


_encoder = msgspec.json.Encoder()


def legacy_pf(pf: PfReport) -> LegacyPf:
    """A PF in the words of `/getpfs`; the report must hold the VFs."""
    foreign = {vf.vf for vf in pf.foreign}
    vfs = tuple(replace(vf, allocated=True) if vf.vf in foreign else vf for vf in pf.vfs)
    return LegacyPf(
        name=pf.name,
        used_tx_rate=sum(vf.min_tx_rate for vf in vfs),
        capacity_tx_rate=pf.link_mbps or 0,
        used_vfs=sum(vf.allocated for vf in vfs),
        capacity_vfs=pf.capacity_vfs + sum(pf.pools.values()),
        vfs=vfs,
    )


def encode_getpfs(report: NodeReport) -> bytes:
    """The document's bytes, PFs in the report's order."""
    return _encoder.encode([legacy_pf(pf) for pf in report.pfs])
