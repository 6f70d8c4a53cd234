"""What one report of a node says, as core values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn

from k8s_rdma.core.allocation import foreign_use
from k8s_rdma.core.ids import NodeName, PciAddress, PodUid, pci_address
from k8s_rdma.core.inventory import NOTHING_USED, Inventory, Pf, Used
from k8s_rdma.core.options import LinkType, Setting
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
    entries: which of its request's interfaces these are, of each pod whose agent tells.
    foreign: VFs that someone else holds or rated.
    """

    generation: str
    inventory: Inventory
    reported: Mapping[PodUid, tuple[PlacedInterface, ...]]
    foreign: Mapping[PciAddress, Used]
    entries: Mapping[PodUid, frozenset[int]]


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
                takes=_settings(entry.takes),
                link_type=LinkType(entry.link_type),
                mtu=entry.mtu,
                vendor=entry.vendor,
            )
        )
        if entry.foreign:
            foreign[pci] = sum((foreign_use(rates, vf.min_tx_rate) for vf in entry.foreign), NOTHING_USED)
    reported: dict[PodUid, tuple[PlacedInterface, ...]] = {}
    entries: dict[PodUid, frozenset[int]] = {}
    for allocation in report.allocations:
        uid = PodUid(allocation.pod.uid)
        placed = tuple(
            _placed(i.pf, max(i.min_tx_rate, i.set_min_tx_rate), i.max_tx_rate) for i in allocation.interfaces
        )
        if not placed:
            continue  # of an agent that tells of pods which got nothing but their ordinary interface
        reported[uid] = reported.get(uid, ()) + placed
        told = tuple(i.entry for i in allocation.interfaces if i.entry is not None)
        if told:
            entries[uid] = _union(entries.get(uid, frozenset()), told)
    return NodeFacts(
        generation=report.generation,
        inventory=Inventory(node=node, pfs=tuple(pfs)),
        reported=reported,
        foreign=foreign,
        entries=entries,
    )


_pci = lru_cache(maxsize=4096)(pci_address)


@lru_cache(maxsize=256)
def _settings(told: tuple[str, ...]) -> frozenset[Setting]:
    """Those that are known here; one object for all that say the same. A newer agent may know more."""
    known = {setting.value for setting in Setting}
    return frozenset(Setting(each) for each in told if each in known)


@lru_cache(maxsize=4096)
def _union(some: frozenset[int], more: tuple[int, ...]) -> frozenset[int]:
    """Both; one object for all pods of which it is the same: thousands have their first interface."""
    return some.union(more)


@lru_cache(maxsize=65_536)
def _placed(pf: str, min_mbps: int, max_mbps: int) -> PlacedInterface:
    """Shared between all nodes that say the same: thousands of nodes have few different interfaces."""
    if min_mbps < 0:
        msg = f"an interface on PF {pf} reserves {min_mbps} Mb/s"
        raise ValueError(msg)
    return PlacedInterface(pf=_pci(pf), min_tx_rate_mbps=min_mbps, max_tx_rate_mbps=max_mbps)


def _refuse(why: str) -> NoReturn:
    raise MalformedError(why, reason=Reason.UNREADABLE_NODE)
