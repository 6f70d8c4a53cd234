"""`GET /getpfs`: a node's PFs and VFs as the RDMA hardware DaemonSet has always shown them.

Field names, their order and their types are those that existing scripts and extenders read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from k8s_rdma.wire.rest import Interface, VfReport

if TYPE_CHECKING:
    from k8s_rdma.wire.rest import NodeReport, PfReport


class LegacyPf(msgspec.Struct, frozen=True, kw_only=True):
    """A PF; rates in Mb/s.

    used_tx_rate: the sum of its VFs' `min_tx_rate`.
    capacity_tx_rate: the link's speed. 0 when it is unknown: the readers decode an unsigned integer, and
        with 0 they place no reservation on the PF, as placement itself does; `/v1/node` says null.
    used_vfs: VFs that a pod has, or somebody else. capacity_vfs: VFs that exist.
    """

    name: str
    used_tx_rate: int
    capacity_tx_rate: int
    used_vfs: int
    capacity_vfs: int
    vfs: tuple[VfReport, ...]


_encoder = msgspec.json.Encoder()

Holdings = Mapping[tuple[str, int], Interface]
"""What is allocated, by PF and VF."""


def legacy_pf(pf: PfReport, held: Holdings) -> LegacyPf:
    """A PF in the words of `/getpfs`; the report must hold the VFs."""
    foreign = {vf.vf for vf in pf.foreign}
    vfs = tuple(_vf(vf, held.get((pf.pci, vf.vf)), foreign=vf.vf in foreign) for vf in pf.vfs)
    return LegacyPf(
        name=pf.name,
        used_tx_rate=sum(vf.min_tx_rate for vf in vfs),
        capacity_tx_rate=pf.link_mbps or 0,
        used_vfs=sum(vf.allocated for vf in vfs),
        capacity_vfs=pf.capacity_vfs,
        vfs=vfs,
    )


def encode_getpfs(report: NodeReport) -> bytes:
    """The document's bytes, PFs in the report's order."""
    held = {(each.pf, each.vf): each for pod in report.allocations for each in pod.interfaces}
    return _encoder.encode([legacy_pf(pf, held) for pf in report.pfs])


def _vf(vf: VfReport, held: Interface | None, *, foreign: bool) -> VfReport:
    """What a VF promises to whom it was given, whatever of that its driver programs: readers add that up."""
    if held is None:
        return replace(vf, allocated=True) if foreign else vf
    rates = {"min_tx_rate": held.min_tx_rate, "max_tx_rate": held.max_tx_rate}
    return replace(vf, mac=held.mac or vf.mac, **rates, allocated=True)
