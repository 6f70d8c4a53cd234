"""Views of who holds what, on a node or in a namespace: by promises, and by the nodes' reports.

The extender does not know which VF an interface has, its name in the pod, and its traffic: nodes do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.programming import enforcers
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.extender.scheduler_cache import SchedulerCache
from k8s_rdma.wire.views import HolderRow, HoldersView, NamespaceView

if TYPE_CHECKING:
    from k8s_rdma.core.inventory import Pf
    from k8s_rdma.core.placement import PlacedInterface

MAX_HOLDERS = 2_000
"""Interfaces in an answer; a node with 8 PFs of 128 VFs has half as many."""

_SLICE = 64


class _Holder(NamedTuple):
    """A pod on a node.

    generation: the generation of its rates that is programmed.
    admitted: the generation of its promise, if it has one.
    """

    uid: PodUid
    namespace: str
    name: str
    interfaces: tuple[PlacedInterface, ...]
    generation: int = 0
    admitted: int | None = None


@dataclass(slots=True, kw_only=True)
class Holders:
    """Answers from the caches.

    nodes: the names of all that are known. api: whether the API server tells which pods are bound: then a
        namespace has those alone, whatever nodes report.
    """

    cache: SchedulerCache
    nodes: Callable[[], Collection[NodeName]]
    api: bool = False
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def of_node(self, node: NodeName) -> HoldersView | None:
        """Return the interfaces that are held on a node; None if there is no such node."""
        if node not in self.nodes():
            return None
        rows = [row for holder in self._on(node) for row in self._rows(node, holder)]
        notes = [] if self.cache.state.facts(node) else [f"from placements alone: {self._silence(node)}"]
        if len(rows) > MAX_HOLDERS:
            notes.append(f"{len(rows) - MAX_HOLDERS} more interfaces are not shown")
        return HoldersView(holders=tuple(rows[:MAX_HOLDERS]), notes=tuple(notes))

    async def of_namespace(self, namespace: str) -> NamespaceView:
        """Return the interfaces that a namespace's pods hold; goes through all nodes, in slices."""
        rows: list[HolderRow] = []
        interfaces = reserved_mbps = 0
        async with self._turn:
            for index, node in enumerate(sorted(self.nodes())):
                if index % _SLICE == 0:
                    await asyncio.sleep(0)
                for holder in self._on(node):
                    if holder.namespace == namespace and self._exists(node, holder):
                        interfaces += len(holder.interfaces)
                        reserved_mbps += sum(interface.min_tx_rate_mbps for interface in holder.interfaces)
                        if len(rows) < MAX_HOLDERS:
                            rows += self._rows(node, holder)
        return NamespaceView(
            namespace=namespace,
            interfaces=interfaces,
            reserved_mbps=reserved_mbps,
            holders=tuple(rows[:MAX_HOLDERS]),
            limit=self.cache.limits.use(namespace),
        )

    def _exists(self, node: NodeName, holder: _Holder) -> bool:
        """Report whether the pod counts for its namespace: a node may report any, in any namespace."""
        promised = holder.admitted is not None
        return promised or not self.api or self.cache.pods.is_bound_in(holder.namespace, node, holder.uid)

    def _silence(self, node: NodeName) -> str:
        return self.cache.state.why_unreadable(node)

    def _on(self, node: NodeName) -> Iterator[_Holder]:
        """The pods that were promised something on a node, then others that its report has."""
        state = self.cache.state
        reservations, facts = state.reservations(node), state.facts(node)
        for uid, reservation in reservations.items():
            namespace, _, name = reservation.pod.partition("/")
            programmed = state.programmed(node, uid)
            interfaces = reservation.counted(programmed)
            yield _Holder(uid, namespace, name, interfaces, programmed, reservation.generation)
        if facts is None:
            return
        occupants = self.cache.pods.occupants(node)
        for uid, namespace, interfaces in zip(
            facts.reported, facts.namespaces, facts.reported.values(), strict=False
        ):
            if uid not in reservations:
                occupant = occupants.get(uid)
                name = occupant.name if occupant else ""
                yield _Holder(uid, namespace, name, interfaces, facts.generations.get(uid, 0))

    def _rows(self, node: NodeName, holder: _Holder) -> Iterator[HolderRow]:
        snapshot = self.cache.state.last_known(node).snapshot
        pfs: dict[PciAddress, Pf] = {pf.pci: pf for pf in snapshot.inventory.pfs} if snapshot else {}
        for interface in holder.interfaces:
            pf = pfs.get(interface.pf)
            min_by, max_by = _enforcers(pf, interface)
            yield HolderRow(
                node=node,
                pf=pf.name if pf else interface.pf,
                pci=interface.pf,
                namespace=holder.namespace,
                pod=holder.name,
                uid=holder.uid,
                reserved_mbps=interface.min_tx_rate_mbps,
                cap_mbps=interface.max_tx_rate_mbps,
                min_by=min_by,
                max_by=max_by,
                generation=holder.generation,
                admitted=holder.admitted,
                pool=interface.pool,
            )


def _enforcers(pf: Pf | None, interface: PlacedInterface) -> tuple[str | None, str | None]:
    """Name who enforces an interface's rates; `none` for a rate that there is not, None if not known."""
    if pf is None:
        return None, None
    found = enforcers(pf, interface.as_request())
    return (
        found.min if interface.min_tx_rate_mbps else "none",
        found.max if interface.max_tx_rate_mbps else "none",
    )
