"""Cache of nodes: the last report of each node, and the reservations on it.

The cache takes values and returns values; it has no clock and does no I/O. Times are seconds of one monotonic
clock, given by the caller. `core.allocation` determines the use of a node; this module only keeps its inputs.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from k8s_rdma.core.allocation import used_on_node
from k8s_rdma.core.fit import NodeState, NodeStates
from k8s_rdma.core.inventory import Inventory
from k8s_rdma.core.pf_use import Used, total
from k8s_rdma.core.placement import PlacedInterface, Placement, capped_to_request, usage_of
from k8s_rdma.core.reported_rates import ReportedRates
from k8s_rdma.core.shortage import NodeTotals
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.errors import visible
from k8s_rdma.extender.leased_addresses import LeasedAddresses
from k8s_rdma.extender.promised_addresses import PromisedAddresses
from k8s_rdma.extender.reservation import OPEN, Reservation, ReservationEvent
from k8s_rdma.wire.node_facts import ClaimsUse, NodeFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from k8s_rdma.core.mac_ranges import MacRanges
    from k8s_rdma.core.packing import Room
    from k8s_rdma.extender.bound_pods import BoundPod
    from k8s_rdma.extender.metrics import Reading
    from k8s_rdma.wire.report import RatesRefusal

    Interfaces: TypeAlias = tuple[PlacedInterface, ...]
    OnChange: TypeAlias = "Callable[[NodeName, NodeSnapshot | None, NodeSnapshot | None], None]"
    PodUse: TypeAlias = tuple[PodUid, str, Interfaces]
    OnUse: TypeAlias = Callable[[NodeName, list[PodUse]], None]
    OnFailure: TypeAlias = Callable[[Exception, NodeName], str]


_NOTHING_HELD: Mapping[PodUid, Interfaces] = MappingProxyType({})
_NO_INVENTORY = Inventory(node=NodeName(""), pfs=())

_MOST_OF_WHY = 2048

NOT_ASKED = "the API server knows no such node, or it was not asked yet"


class NodeSnapshot(NodeState):
    """A node's state with the figures of its headroom, which every new request compares on every node.

    totals, each_mbps: 0 if the node has no headroom.
    """

    __slots__ = ("each_mbps", "totals")

    def __init__(self, inventory: Inventory, used: Mapping[PciAddress, Used]) -> None:
        super().__init__(inventory, used)
        self.each_mbps = self.headroom.each_mbps if self.headroom else 0
        self.totals = NodeTotals.of_rooms(self.rooms)

    @property
    def rooms(self) -> tuple[Room, ...]:
        """The free capacity of each PF; empty if the node has no headroom."""
        return self.headroom.rooms if self.headroom else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LastKnown:
    """A node by its last report.

    snapshot: None if the node has no report, or if its data cannot be added up.
    claims: as in `NodeFacts`.
    pods: the pods that the report holds or that have a reservation.
    """

    snapshot: NodeSnapshot | None = None
    claims: tuple[ClaimsUse, ...] = ()
    pods: frozenset[PodUid] = frozenset()


class _Node:
    """A node's last report and reservations.

    alone: the node's name, as the only place of a pod; shared by its pods.
    spoiled: facts that no decision may use.
    why: the reason for it.
    """

    __slots__ = ("_facts", "_rates", "alone", "requested_at", "reservations", "spoiled", "why")

    def __init__(
        self,
        name: NodeName,
        facts: NodeFacts | None = None,
        reservations: dict[PodUid, Reservation] | None = None,
    ) -> None:
        self.alone = (name,)
        self._facts: NodeFacts | None = None
        self._rates = ReportedRates()
        self.reservations = {} if reservations is None else reservations
        self.facts = facts
        self.requested_at = float("-inf")
        self.spoiled: NodeFacts | None = None
        self.why = ""

    @property
    def facts(self) -> NodeFacts | None:
        """The last report."""
        return self._facts

    @facts.setter
    def facts(self, facts: NodeFacts | None) -> None:
        """Replace the last report; keep generations of rates of pods that the new report does not hold."""
        earlier = {uid: found for uid in self.reservations if (found := self.programmed(uid))}
        self._facts = facts
        self._rates = (
            ReportedRates(facts.reported, facts.generations, earlier)
            if facts
            else ReportedRates(earlier=earlier)
        )

    def used(
        self, excluded: Collection[PodUid] = (), holding: Mapping[PodUid, Interfaces] = _NOTHING_HELD
    ) -> dict[PciAddress, Used]:
        facts = self.facts
        promised = self._rates.counted(self.reservations)
        return used_on_node(
            reported=self._rates.settled(self.reservations),
            foreign=facts.foreign if facts else {},
            promised={**holding, **promised},
            entries=facts.entries if facts else {},
            inventory=facts.inventory if facts else _NO_INVENTORY,
            excluding=excluded,
        )

    def programmed(self, uid: PodUid) -> int:
        """Return the generation of a pod's rates that the last report on the pod names as programmed."""
        return self._rates.programmed(uid)

    def use(self, unpromised: Mapping[PodUid, BoundPod] | None) -> list[PodUse]:
        """List each pod's interfaces that count for its namespace.

        The last report counts even if the node cannot be read now. A promise counts as it was made, even if
        the node reports something else. If a pod has no promise, its reported interfaces count up to the
        pod's request.

        unpromised: as in `ClusterState`, of this node.
        """
        promised = (
            (uid, reservation.pod.partition("/")[0], reservation.counted(self.programmed(uid)))
            for uid, reservation in self.reservations.items()
        )
        reported = self._reported_use(unpromised)
        return [*(use for use in reported if use[0] not in self.reservations), *promised]

    def _reported_use(self, unpromised: Mapping[PodUid, BoundPod] | None) -> Iterable[PodUse]:
        facts = self.facts
        if facts is None:
            return ()
        if unpromised is None:
            return zip(facts.reported, facts.namespaces, facts.reported.values(), strict=False)
        return (
            (uid, pod.namespace, capped_to_request(facts.reported[uid], pod.rates_mbps))
            for uid, pod in unpromised.items()
            if uid in facts.reported
        )


class ClusterState:
    """The nodes of the cluster.

    Callers only read `snapshots` and `unreadable`. A node is in at most one of them.

    ending: nodes with reservations of ended pods. Such a reservation counts until a report that was
        requested after the pod's end does not hold the pod.
    exists: whether the node may exist. On a deleted node a reservation ends with its pod, because no report
        will follow.
    on_change: called for every node whose snapshot changed (None: unreadable or unknown).
    on_use: called for every node whose pods' use may have changed, with each pod, its namespace, and the
        interfaces that count for it.
    unpromised: the pods that the API server has bound to a node without a promise; None if the API server is
        not asked.
    on_failure: called with the failure that a node's data caused; returns the reason for the node's
        quarantine.
    on_addresses: called for every node on which a MAC or GUID may have become free.
    promised_addresses: the addresses of reservations.
    leased_addresses: the addresses that nodes hold by Leases.
    """

    def __init__(  # noqa: PLR0913 - whom changes concern
        self,
        *,
        on_change: OnChange | None = None,
        on_use: OnUse | None = None,
        exists: Callable[[NodeName], bool] = lambda _: True,
        on_failure: OnFailure = lambda error, _: str(error),
        unpromised: Callable[[NodeName], Mapping[PodUid, BoundPod]] | None = None,
        on_addresses: Callable[[NodeName], None] = lambda _: None,
    ) -> None:
        self.promised_addresses = PromisedAddresses()
        self.leased_addresses = LeasedAddresses(on_free=on_addresses)
        self.snapshots: dict[NodeName, NodeSnapshot] = {}
        self.unreadable: dict[NodeName, str] = {}
        self.ending: set[NodeName] = set()
        self._nodes: dict[NodeName, _Node] = {}
        self._places: dict[PodUid, tuple[NodeName, ...]] = {}
        self._states = NodeStates(NodeSnapshot)
        self._postponed: set[NodeName] | None = None
        self._on_change = on_change
        self._on_use = on_use
        self._exists = exists
        self._on_failure = on_failure
        self._unpromised = unpromised
        self._on_addresses = on_addresses

    def readings(self) -> dict[str, Reading]:
        """Return readings for metrics."""
        return {
            "nodes_readable": ("Nodes whose last answer is usable.", "gauge", lambda: len(self.snapshots)),
            "pods_promised": ("Pods that hold a placement.", "gauge", lambda: len(self.pods())),
        }

    def postpone_updates(self) -> None:
        """Have changes take effect at `apply_updates`; until then no decision may use the snapshots.

        Otherwise every change adds up the use of all pods of its node again.
        """
        if self._postponed is None:
            self._postponed = set()

    def apply_updates(self) -> None:
        """Have all changes that were postponed take effect."""
        postponed, self._postponed = self._postponed or (), None
        for node in postponed:
            self._update(node)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Have the changes within take effect together at the end; no other code may run in between."""
        if self._postponed is not None:  # the caller postponed them for longer
            yield
            return
        self.postpone_updates()
        try:
            yield
        finally:
            self.apply_updates()

    # reports of nodes

    def observe(self, node: NodeName, facts: NodeFacts, requested_at: float) -> None:
        """Take a report that was requested at that time; ignore it if it is older than the last report."""
        entry = self._nodes.get(node) or self._nodes.setdefault(node, _Node(node))
        if requested_at >= entry.requested_at:
            previous, entry.facts, entry.requested_at = entry.facts, facts, requested_at
            if facts == entry.spoiled:
                if self.unreadable.get(node) != entry.why:
                    self.quarantine(node, entry.why)
                return
            entry.spoiled = None
            self.unreadable.pop(node, None)
            self._drop_ended(node, entry, ended_before=requested_at)
            self._update(node)
            if previous is not None and previous.macs != facts.macs:
                self._on_addresses(node)

    def confirm(self, node: NodeName, requested_at: float) -> None:
        """Note that the node, asked at that time, answered that its last report still holds."""
        entry = self._nodes.get(node)
        if entry is None or entry.facts is None or requested_at < entry.requested_at:
            return
        entry.requested_at = requested_at
        if entry.spoiled is not None:
            return
        again = self.unreadable.pop(node, None) is not None
        if self._drop_ended(node, entry, ended_before=requested_at) or again:
            self._update(node)

    def lose(self, node: NodeName, why: str) -> None:
        """Note that the node could not be read. Its last report does not count now; its reservations stand.

        The reason is cut and its invisible characters are made visible, because the node may have written it
        and it becomes an Event of the pod.
        """
        self.unreadable[node] = visible(why[:_MOST_OF_WHY])
        self._update(node)

    def recount(self, node: NodeName, uid: PodUid) -> None:
        """Update whether a pod's reported interfaces count for its namespace, after it was bound or ended."""
        entry = self._nodes.get(node)
        if entry is None or entry.facts is None or uid not in entry.facts.reported:
            return
        if self._postponed is None:
            self._report_use(node)
        else:
            self._postponed.add(node)

    def quarantine(self, node: NodeName, why: str) -> None:
        """Treat the node as unreadable until its report changes, because the report makes decisions fail."""
        if self._spoil(node, why):
            self._update(node)

    def quarantined(self) -> int:
        """Return the number of quarantined nodes."""
        return sum(entry.spoiled is not None for entry in self._nodes.values())

    def forget(self, node: NodeName) -> None:
        """Forget a node whose object was deleted. A reservation stays until its pod has finished."""
        entry = self._nodes.get(node)
        if entry is None:
            return
        entry.facts = entry.spoiled = None
        self.unreadable.pop(node, None)
        self._drop_ended(node, entry, ended_before=float("inf"))
        self._update(node)
        if not entry.reservations:
            del self._nodes[node]

    def facts(self, node: NodeName) -> NodeFacts | None:
        """Return the last report; None if the node cannot be read now."""
        entry = self._nodes.get(node)
        return entry.facts if entry and node not in self.unreadable else None

    def last_known(self, node: NodeName) -> LastKnown:
        """Return the node by its last report, even if it cannot be read now. No decision uses it."""
        entry = self._nodes.get(node)
        if entry is None:
            return LastKnown()
        facts = entry.facts
        pods = frozenset(entry.reservations) | (facts.reported.keys() if facts else frozenset())
        if facts is None or entry.spoiled is not None:
            return LastKnown(pods=pods)
        snapshot = self.snapshots.get(node) or self._snapshot_of(node, facts)
        return LastKnown(snapshot=snapshot, claims=facts.claims, pods=pods)

    def heard_at(self, node: NodeName) -> float | None:
        """Return the time of the question that the node's last report answers; None without a report."""
        entry = self._nodes.get(node)
        return entry.requested_at if entry and entry.facts else None

    def nodes(self) -> frozenset[NodeName]:
        """Return the nodes that answered or were asked in vain."""
        return frozenset((*self.snapshots, *self.unreadable))

    def reported_macs(self) -> Iterator[tuple[NodeName, MacRanges]]:
        """Return the MACs in each node's last report.

        A node that cannot be read now is included, because its VFs are still there.
        """
        return ((node, entry.facts.macs) for node, entry in self._nodes.items() if entry.facts)

    def why_unreadable(self, node: NodeName) -> str:
        """Return the reason why the node has no snapshot."""
        return self.unreadable.get(node, NOT_ASKED)

    # reservations

    def reserve(self, node: NodeName, uid: PodUid, reservation: Reservation) -> None:
        """Hold a placement; it replaces the pod's earlier reservation on this node."""
        entry = self._nodes.get(node)
        if entry is None:
            entry = self._nodes[node] = _Node(node)
        previous = entry.reservations.get(uid)
        entry.reservations[uid] = reservation
        if previous and previous.counts_as(reservation):
            return
        self.promised_addresses.hold(node, uid, reservation.interfaces)
        places = self._places.get(uid)
        if places is None:
            self._places[uid] = entry.alone
        elif node not in places:
            self._places[uid] = (*places, node)
        self._update(node)

    def withdraw(self, node: NodeName, uid: PodUid) -> None:
        """End a reservation at once, because the pod is certainly not bound to the node."""
        entry = self._nodes.get(node)
        if entry and entry.reservations.pop(uid, None):
            self._forget_pod(node, uid)
            self._update(node)

    def bound(self, node: NodeName, uid: PodUid, promised: Reservation | None) -> Reservation | None:
        """Note that the pod is bound to the node, and return its reservation there, if any.

        Its reservations on other nodes end. The placement of the pod's first known bind stands until the
        annotation has a later generation, because the pod's owner may edit the annotation, and only this
        system signs a later generation. A placement that was only decided here may differ from the written
        one, because another extender may have bound the pod to the same node.

        promised: the reservation by the pod's placement annotation; None if no annotation counts.
        """
        if uid in self._places:
            self._leave_others(node, uid)
        reservation = self.reservation(node, uid)
        if reservation is None and promised is not None:
            reservation = promised if promised.bound else promised.bound_with(promised)
            self.reserve(node, uid, reservation)
        elif reservation is not None and (
            reservation.stage in OPEN
            or (promised is not None and promised.generation > reservation.generation)
        ):
            reservation = reservation.bound_with(promised or reservation)
            self.reserve(node, uid, reservation)
        return reservation

    def written(self, node: NodeName, uid: PodUid, placement: Placement | None = None) -> None:
        """Note the API server's answer that the pod is bound to the node; end its reservations elsewhere.

        The answer may come after the pod's end. A reservation that has ended stays ended. A reservation that
        is gone is not created again, because no later event would end it.

        placement: the written placement; None if it equals the reservation's.
        """
        self._leave_others(node, uid)
        reservation = self.after(node, uid, ReservationEvent.FOUND_BOUND)
        if reservation is not None and placement is not None:
            self.reserve(node, uid, reservation.with_rates_of(placement))

    def doubt(self, node: NodeName, uid: PodUid) -> Reservation | None:
        """Return the reservation of a bind whose write got no answer, as a new object each time.

        Return None if the reservation is not in doubt, because the pod has ended or is known to be bound.
        """
        reservation = self.after(node, uid, ReservationEvent.UNANSWERED)
        if reservation is None or not reservation.in_doubt:
            return None
        uncertain = msgspec.structs.replace(reservation)
        self.reserve(node, uid, uncertain)
        return uncertain

    def after(self, node: NodeName, uid: PodUid, event: ReservationEvent) -> Reservation | None:
        """Apply an event to the pod's reservation on this node, and return the following one, if any."""
        entry = self._nodes.get(node)
        reservation = entry.reservations.get(uid) if entry else None
        if entry is None or reservation is None:
            return None
        following = reservation.after(event)
        if following is None:
            self.withdraw(node, uid)
        elif following is not reservation:  # a stage alone does not change the node's use
            entry.reservations[uid] = following
        return following

    def on_delete(self, uid: PodUid, ended_at: float) -> None:
        """Note that the pod is finished or gone.

        Its reservation ends when a report that was requested later does not hold the pod, because the node
        may have given it devices while the last report was under way. If the node is gone, the reservation
        ends at once, because no report will follow.
        """
        for node in self._places.get(uid, ()):
            reservation = self._nodes[node].reservations[uid]
            if reservation.ended_at is None:
                self._nodes[node].reservations[uid] = reservation.ended(ended_at)
                self.ending.add(node)
                if not self._exists(node):
                    self.forget(node)

    def reservation(self, node: NodeName, uid: PodUid) -> Reservation | None:
        """Return the pod's reservation on the node."""
        entry = self._nodes.get(node)
        return entry.reservations.get(uid) if entry else None

    def reservations(self, node: NodeName) -> Mapping[PodUid, Reservation]:
        """Return the reservations on the node."""
        entry = self._nodes.get(node)
        return entry.reservations if entry else {}

    def programmed(self, node: NodeName, uid: PodUid) -> int:
        """Return the generation of the pod's rates that the node last reported to be programmed."""
        entry = self._nodes.get(node)
        return entry.programmed(uid) if entry else 0

    def refusal(self, node: NodeName, uid: PodUid) -> RatesRefusal | None:
        """Return the change of the pod's rates that the node's last report refuses; None without one."""
        entry = self._nodes.get(node)
        return entry.facts.refusals.get(uid) if entry and entry.facts else None

    def nodes_of(self, uid: PodUid) -> frozenset[NodeName]:
        """Return the nodes on which the pod has a reservation."""
        return frozenset(self._places.get(uid, ()))

    def assumed_since(self, uid: PodUid) -> float:
        """Return the time of the pod's latest reservation; it must have one."""
        return max(self._nodes[node].reservations[uid].created_at for node in self._places[uid])

    def pods(self) -> frozenset[PodUid]:
        """Return the pods that have a reservation."""
        return frozenset(self._places)

    # snapshots

    def snapshot_if(
        self,
        node: NodeName,
        *,
        excluded: Collection[PodUid] = (),
        holding: Mapping[PodUid, Interfaces] = _NOTHING_HELD,
    ) -> NodeSnapshot | None:
        """Return the node's snapshot under an assumption; None if the node cannot be read.

        excluded: pods that are assumed to hold no interfaces there.
        holding: interfaces that pods are assumed to hold. If a pod already holds interfaces there, these
            count instead.
        """
        facts = self.facts(node)
        if facts is None:
            return None
        now = self._postponed is None or node not in self._postponed
        reservations = self._nodes[node].reservations
        excluded = [uid for uid in excluded if uid in facts.reported or uid in reservations or uid in holding]
        if not now or excluded:
            found = self._snapshot_of(node, facts, excluded, holding)
            if found is None:
                self._update(node)
            return found
        snapshot = self.snapshots[node]
        added = [
            interfaces
            for uid, interfaces in holding.items()
            if uid not in facts.reported and uid not in reservations
        ]
        if not added:
            return snapshot
        added_usage = (usage_of(interfaces, facts.inventory) for interfaces in added)
        return self._states.find(facts.inventory, total(snapshot.used, *added_usage))

    def _drop_ended(self, node: NodeName, entry: _Node, *, ended_before: float) -> bool:
        ended = [
            uid
            for uid, reservation in entry.reservations.items()
            if reservation.ended_at is not None and reservation.ended_at < ended_before
        ]
        for uid in ended:
            del entry.reservations[uid]
            self._forget_pod(node, uid)
        if node in self.ending and all(
            entry_reservation.ended_at is None for entry_reservation in entry.reservations.values()
        ):
            self.ending.discard(node)
        return bool(ended)

    def _leave_others(self, node: NodeName, uid: PodUid) -> None:
        places = self._places.get(uid)
        for place in places or ():
            if place != node:
                self.withdraw(place, uid)

    def _forget_pod(self, node: NodeName, uid: PodUid) -> None:
        if self.promised_addresses.release(node, uid):
            self._on_addresses(node)
        self._places[uid] = tuple(place for place in self._places[uid] if place != node)
        if not self._places[uid]:
            del self._places[uid]

    def _update(self, node: NodeName) -> None:
        if self._postponed is not None:
            self._postponed.add(node)
            return
        facts = self.facts(node)
        previous = self.snapshots.pop(node, None)
        after = self._snapshot_of(node, facts) if facts else None
        if after is not None:
            self.snapshots[node] = after
        self._report_use(node)
        if after is not previous and self._on_change:
            self._on_change(node, previous, after)

    def _report_use(self, node: NodeName) -> None:
        if self._on_use:
            unpromised, entry = self._unpromised and self._unpromised(node), self._nodes.get(node)
            self._on_use(node, entry.use(unpromised) if entry else [])

    def _snapshot_of(
        self,
        node: NodeName,
        facts: NodeFacts,
        excluded: Collection[PodUid] = (),
        holding: Mapping[PodUid, Interfaces] = _NOTHING_HELD,
    ) -> NodeSnapshot | None:
        """Take a snapshot of the node's use; return None if its data makes this fail."""
        try:
            return self._states.find(facts.inventory, self._nodes[node].used(excluded, holding))
        except Exception as error:  # any failure concerns this node alone
            self._spoil(node, self._on_failure(error, node))
            return None

    def _spoil(self, node: NodeName, why: str) -> bool:
        entry = self._nodes.get(node)
        if entry is None or entry.facts is None:
            return False
        entry.spoiled, entry.why = entry.facts, why
        self.unreadable[node] = why
        return True
