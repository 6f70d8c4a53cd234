"""What one report of a node says, as core values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn

from k8s_rdma.core.allocation import foreign_use
from k8s_rdma.core.ids import NodeName, PciAddress, PodUid, pci_address
from k8s_rdma.core.inventory import NOTHING_USED, Inventory, Pf, Used
from k8s_rdma.core.placement import PlacedInterface
from k8s_rdma.core.rates import Enforce
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.rest import ability_of

if TYPE_CHECKING:
    from k8s_rdma.wire.rest import NodeReport


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node at one generation of its report.

    reported: what each pod holds there; the interfaces of several sandboxes of a pod together. Reservations
        are as programmed, which may be more than was asked for.
    foreign: VFs that someone else holds or rated.
    """

    generation: str
    inventory: Inventory
    reported: Mapping[PodUid, tuple[PlacedInterface, ...]]
    foreign: Mapping[PciAddress, Used]


def facts_of(report: NodeReport, node: NodeName) -> NodeFacts:
    """The facts of a report that `node` was asked for.

    MalformedError (`UNREADABLE_NODE`) when nothing may be concluded from it: another node answered, the
    agent is down (its allocations are not known, and no pod could start there), what it tells of a PF
    has no meaning, or not everything could be seen: what is missing must not look like less hardware.
    """
    if report.node != node:
        _refuse(f"the address answers for node {report.node!r}")
    if report.ledger != "ok":
        _refuse("its agent is down, so that what it has allocated is not known")
    if report.unreadable:
        _refuse(f"not all of its hardware could be looked at: {'; '.join(report.unreadable)}")
    try:
        return _facts(report, node)
    except ValueError as error:
        _refuse(str(error))


def _facts(report: NodeReport, node: NodeName) -> NodeFacts:
    pfs, foreign = [], {}
    for entry in report.pfs:
        pci = _pci(entry.pci)
        if min(entry.capacity_vfs, entry.link_mbps or 0, *(vf.min_tx_rate for vf in entry.foreign)) < 0:
            msg = f"PF {entry.name}: a negative number"
            raise ValueError(msg)
        rates = ability_of(entry.rates)
        pfs.append(
            Pf(
                name=entry.name,
                pci=pci,
                capacity_vfs=entry.capacity_vfs,
                link_mbps=entry.link_mbps,
                rates=rates,
                enforce=Enforce(entry.enforce),
                driver=entry.driver,
            )
        )
        if entry.foreign:
            foreign[pci] = sum((foreign_use(rates, vf.min_tx_rate) for vf in entry.foreign), NOTHING_USED)
    reported: dict[PodUid, tuple[PlacedInterface, ...]] = {}
    for allocation in report.allocations:
        uid = PodUid(allocation.pod.uid)
        placed = tuple(
            _placed(i.pf, max(i.min_tx_rate, i.set_min_tx_rate), i.max_tx_rate) for i in allocation.interfaces
        )
        reported[uid] = reported.get(uid, ()) + placed
    return NodeFacts(
        generation=report.generation,
        inventory=Inventory(node=node, pfs=tuple(pfs)),
        reported=reported,
        foreign=foreign,
    )


_pci = lru_cache(maxsize=4096)(pci_address)


@lru_cache(maxsize=65_536)
def _placed(pf: str, min_mbps: int, max_mbps: int) -> PlacedInterface:
    """Shared between all nodes that say the same: thousands of nodes have few different interfaces."""
    if min_mbps < 0:
        msg = f"an interface on PF {pf} reserves {min_mbps} Mb/s"
        raise ValueError(msg)
    return PlacedInterface(pf=_pci(pf), min_tx_rate_mbps=min_mbps, max_tx_rate_mbps=max_mbps)


def _refuse(why: str) -> NoReturn:
    raise MalformedError(why, reason=Reason.UNREADABLE_NODE)
