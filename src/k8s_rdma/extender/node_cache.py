"""Cache of nodes: the last report of each, and what was promised there.

Values in, values out; no clock and no I/O. Times are seconds of one monotonic clock, given by the caller.
What is used on a node is the one rule of `core.allocation`; this module only keeps its inputs.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from k8s_rdma.core.allocation import ReportedRates, used_on_node
from k8s_rdma.core.fit import NodeState, NodeStates
from k8s_rdma.core.inventory import Inventory, Used, total
from k8s_rdma.core.placement import PlacedInterface, Placement, capped_to_request, usage_of
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.errors import visible
from k8s_rdma.extender.leased_addresses import LeasedAddresses
from k8s_rdma.extender.promised_addresses import PromisedAddresses
from k8s_rdma.extender.reservation import OPEN, Reservation, ReservationEvent
from k8s_rdma.wire.node_facts import ClaimsUse, NodeFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from k8s_rdma.core.mac_ranges import MacRanges
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
    """A state with its headroom's two figures, which every new request compares on every node.

    vfs, each_mbps: 0 without a headroom.
    """

    __slots__ = ("each_mbps", "vfs")

    def __init__(self, inventory: Inventory, used: Mapping[PciAddress, Used]) -> None:
        super().__init__(inventory, used)
        headroom = self.headroom
        self.vfs, self.each_mbps = (headroom.vfs, headroom.each_mbps) if headroom else (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastKnown:
    """A node by its last report.

    snapshot: None if there is no report, or none that can be added up. claims: as in `NodeFacts`.
    pods: that hold something, or were promised it.
    """

    snapshot: NodeSnapshot | None = None
    claims: tuple[ClaimsUse, ...] = ()
    pods: frozenset[PodUid] = frozenset()


class _Node:
    """spoiled: facts that nothing may be decided by, for the reason `why`."""

    __slots__ = ("_facts", "_rates", "requested_at", "reservations", "spoiled", "why")

    def __init__(
        self, facts: NodeFacts | None = None, reservations: dict[PodUid, Reservation] | None = None
    ) -> None:
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
        """Replace the last report; what it said of rates stays of pods that the next one does not hold."""
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
        """The generation of a pod's rates that the last report on it says to be programmed."""
        return self._rates.programmed(uid)

    def use(self, unpromised: Mapping[PodUid, BoundPod] | None) -> list[PodUse]:
        """List what counts for each pod's namespace, by the last report even where the node cannot be read.

        unpromised: as in `ClusterState`, of this node.
        What a pod was promised counts as it was promised, whatever the node says of it; of one that was
        promised nothing the node's word counts as far as the pod asks for that much.
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
    """The nodes. `snapshots` and `unreadable` are to be read only; a node is in at most one of them.

    ending: where what an ended pod held counts until a report that was asked for later does not hold it.
    exists: whether there may be such a node. No report will name what an ended pod held on a deleted node.

    on_change: called for every node whose snapshot changed (None: unreadable or unknown).
    on_use: called for every node whose pods may take something else than before, with each pod, its
        namespace, and what counts for it.
    unpromised: the pods that the API server has bound to a node without a promise; None if none is asked.
    on_failure: called with the failure that a node's data caused; returns the reason for the node's
        quarantine.
    on_addresses: called for every node on which a MAC or GUID may have become free.
    promised_addresses: those of reservations. leased_addresses: those that nodes hold by Leases.
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
        """Readings for metrics."""
        return {
            "nodes_readable": ("Nodes whose last answer is usable.", "gauge", lambda: len(self.snapshots)),
            "pods_promised": ("Pods that hold a placement.", "gauge", lambda: len(self.pods())),
        }

    def postpone_updates(self) -> None:
        """Have changes take effect at `apply_updates`; until then nothing may be decided by the snapshots.

        What is used on a node is made anew with every change otherwise, for each of its pods.
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
        """Have the changes within take effect at once, in the end; nothing else may run meanwhile."""
        if self._postponed is not None:  # for longer
            yield
            return
        self.postpone_updates()
        try:
            yield
        finally:
            self.apply_updates()

    # what nodes say

    def observe(self, node: NodeName, facts: NodeFacts, requested_at: float) -> None:
        """Take a report that the node was asked for at that time; an older one than the last is ignored."""
        entry = self._nodes.setdefault(node, _Node())
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
        """The node, asked at that time, said that its last report still holds."""
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
        """The node could not be read: its last report counts for nothing now; reservations stand.

        Of the reason so much is kept as people read, and so that they can: the node may have written it, and
        it becomes an Event of the pod's.
        """
        self.unreadable[node] = visible(why[:_MOST_OF_WHY])
        self._update(node)

    def recount(self, node: NodeName, uid: PodUid) -> None:
        """The pod was bound there, or ended: what the node reports of it counts for its namespace, or not."""
        entry = self._nodes.get(node)
        if entry is None or entry.facts is None or uid not in entry.facts.reported:
            return
        if self._postponed is None:
            self._report_use(node)
        else:
            self._postponed.add(node)

    def quarantine(self, node: NodeName, why: str) -> None:
        """Treat the node as unreadable until it reports something else: its report makes decisions fail."""
        if self._spoil(node, why):
            self._update(node)

    def quarantined(self) -> int:
        """The number of quarantined nodes."""
        return sum(entry.spoiled is not None for entry in self._nodes.values())

    def forget(self, node: NodeName) -> None:
        """The node object was deleted. Reservations stay for as long as their pods are not finished."""
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
        """The last report, None when the node cannot be read now."""
        entry = self._nodes.get(node)
        return entry.facts if entry and node not in self.unreadable else None

    def last_known(self, node: NodeName) -> LastKnown:
        """The node by its last report, even where it cannot be read now. Nothing is decided by it."""
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
        """The time of the question that the node's last report answers; None when there is none."""
        entry = self._nodes.get(node)
        return entry.requested_at if entry and entry.facts else None

    def nodes(self) -> frozenset[NodeName]:
        """The nodes that answered or were asked in vain."""
        return frozenset((*self.snapshots, *self.unreadable))

    def reported_macs(self) -> Iterator[tuple[NodeName, MacRanges]]:
        """The MACs in each node's last report, even where it cannot be read now: its VFs are still there."""
        return ((node, entry.facts.macs) for node, entry in self._nodes.items() if entry.facts)

    def why_unreadable(self, node: NodeName) -> str:
        """The reason why the node has no snapshot."""
        return self.unreadable.get(node, NOT_ASKED)

    # what was promised

    def reserve(self, node: NodeName, uid: PodUid, reservation: Reservation) -> None:
        """Hold a placement, in place of any that this pod has on this node."""
        entry = self._nodes.get(node) or self._nodes.setdefault(node, _Node())
        previous = entry.reservations.get(uid)
        entry.reservations[uid] = reservation
        if previous and previous.counts_as(reservation):
            return
        self.promised_addresses.hold(node, uid, reservation.interfaces)
        if node not in (places := self._places.get(uid, ())):
            self._places[uid] = (*places, node)
        self._update(node)

    def withdraw(self, node: NodeName, uid: PodUid) -> None:
        """The pod is surely not bound to the node: the reservation is over at once."""
        entry = self._nodes.get(node)
        if entry and entry.reservations.pop(uid, None):
            self._forget_pod(node, uid)
            self._update(node)

    def bound(self, node: NodeName, uid: PodUid, promised: Reservation | None) -> Reservation | None:
        """The pod is bound to the node; it holds nothing anywhere else. Return what it holds there, if any.

        promised: by its placement annotation, None when it has none that counts. What the pod was known to
        be bound with first stands until the annotation has a later generation: its owner may edit it, and
        only this system signs one. What is only decided here may not be what was written: another extender
        may have bound it to the same node.
        """
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
        """The API server answered that the pod is bound to the node; it holds nothing anywhere else.

        placement: what was written; None when it is what is held. The answer may come after the pod's
        end: what has ended stays ended, and what is no longer held is not created again, since nothing would
        end it.
        """
        self._leave_others(node, uid)
        reservation = self.after(node, uid, ReservationEvent.FOUND_BOUND)
        if reservation is not None and placement is not None:
            self.reserve(node, uid, reservation.with_rates_of(placement))

    def doubt(self, node: NodeName, uid: PodUid) -> Reservation | None:
        """Return the reservation once a write that binds the pod here got no answer: a new object each time.

        None if nothing is in doubt, because the pod has ended or is known to be bound.
        """
        reservation = self.after(node, uid, ReservationEvent.UNANSWERED)
        if reservation is None or not reservation.in_doubt:
            return None
        uncertain = msgspec.structs.replace(reservation)
        self.reserve(node, uid, uncertain)
        return uncertain

    def after(self, node: NodeName, uid: PodUid, event: ReservationEvent) -> Reservation | None:
        """Take an event of the pod's reservation on this node, and return what is held then, if anything."""
        entry = self._nodes.get(node)
        reservation = entry.reservations.get(uid) if entry else None
        if entry is None or reservation is None:
            return None
        following = reservation.after(event)
        if following is None:
            self.withdraw(node, uid)
        elif following is not reservation:  # a stage alone changes nothing of what is used
            entry.reservations[uid] = following
        return following

    def on_delete(self, uid: PodUid, ended_at: float) -> None:
        """The pod is finished or gone.

        Its reservation ends once a report that was asked for later does not hold the pod: the node may
        have been giving it devices while the last report was under way. Of a node that is gone there is no
        such report, and it ends at once.
        """
        for node in self._places.get(uid, ()):
            reservation = self._nodes[node].reservations[uid]
            if reservation.ended_at is None:
                self._nodes[node].reservations[uid] = reservation.ended(ended_at)
                self.ending.add(node)
                if not self._exists(node):
                    self.forget(node)

    def reservation(self, node: NodeName, uid: PodUid) -> Reservation | None:
        """The pod's reservation on the node."""
        entry = self._nodes.get(node)
        return entry.reservations.get(uid) if entry else None

    def reservations(self, node: NodeName) -> Mapping[PodUid, Reservation]:
        """The reservations on the node."""
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
        """The nodes on which the pod has a reservation."""
        return frozenset(self._places.get(uid, ()))

    def assumed_since(self, uid: PodUid) -> float:
        """The time of the pod's latest reservation; it must have one."""
        return max(self._nodes[node].reservations[uid].created_at for node in self._places[uid])

    def pods(self) -> frozenset[PodUid]:
        """The pods that hold something."""
        return frozenset(self._places)

    # what follows

    def snapshot_if(
        self,
        node: NodeName,
        *,
        excluded: Collection[PodUid] = (),
        holding: Mapping[PodUid, Interfaces] = _NOTHING_HELD,
    ) -> NodeSnapshot | None:
        """The node's snapshot if some pods held nothing there and others held this.

        None when the node cannot be read. What a pod holds already counts, not what it would be `holding`.
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
        """Take a snapshot of what is used on the node; None if its data makes that fail."""
        try:
            return self._states.find(facts.inventory, self._nodes[node].used(excluded, holding))
        except Exception as error:  # whatever it is, it is of this node alone
            self._spoil(node, self._on_failure(error, node))
            return None

    def _spoil(self, node: NodeName, why: str) -> bool:
        entry = self._nodes.get(node)
        if entry is None or entry.facts is None:
            return False
        entry.spoiled, entry.why = entry.facts, why
        self.unreadable[node] = why
        return True
