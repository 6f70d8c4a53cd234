"""Fit cache: whether a request fits a node's snapshot, searched once, then looked up.

Most nodes take a request by counting alone (`core.offers`), thousands in some milliseconds; a node's score
takes a placement, and is found when it is asked for.

A verdict depends on the request and on the snapshot alone, so that nodes with equal snapshots share it, and
it holds until a node's snapshot becomes another one. Of the request it depends on its policy and the
classes of its interfaces alone, so that the pods of a StatefulSet, each with MACs of its own, share it too.

A node's report is checked on arrival (`wire.report`, `extender.node_source`). Data that passes the checks and
still makes the code fail shows a defect, and its author chooses the time. The failure must cost only that
node, or that one pod on that node, and neither an answer about others nor the process. The simplest request
shows whether the node's data is at fault: if that also fails, the node is quarantined until its report
changes. Otherwise only that pod is refused there, so that no pod can take nodes from others.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from sys import intern
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

import structlog

from k8s_rdma.core.devices.placement import options_refused
from k8s_rdma.core.fit import FitEngine, bounds_of
from k8s_rdma.core.inventory import Inventory
from k8s_rdma.core.offers import Bounds, Headroom
from k8s_rdma.core.placement import (
    Placement,
    Rejection,
    fits,
    place,
)
from k8s_rdma.core.refusal import Detail, Need
from k8s_rdma.core.request import InterfaceRequest, Request, Shape
from k8s_rdma.core.types import NO_NEEDS, NodeName, Setting, Strategy
from k8s_rdma.errors import Reason
from k8s_rdma.extender.verdicts import (
    COUNTED,
    UNRESOLVABLE,
    Feasible,
    Infeasible,
    Shortage,
    Shortages,
    Verdict,
)
from k8s_rdma.wire.extender import NOT_ENOUGH_FREE, UNREADABLE_NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from k8s_rdma.extender.metrics import Reading
    from k8s_rdma.extender.node_cache import ClusterState, NodeSnapshot
    from k8s_rdma.extender.reservation import Reservation

T = TypeVar("T")

_Key = tuple[Shape, tuple[tuple[str, ...], ...]]
"""The part of a request that a verdict depends on: its shape, and the unusable options of interfaces that may
be devices."""

MAX_REQUESTS = 256
MAX_INTERFACES = 65_536
"""Requests whose verdicts are kept, and the interfaces of them all: each takes 2 KiB at worst."""


_HAD_ON_A_RUNNING_NODE = frozenset({Setting.VFIO_PCI, Setting.SOFTWARE_CAPS})
_SIMPLEST = Request((InterfaceRequest(),))
_MOST_LOGGED = 256
_MOST_SHOWN = 300
_log = structlog.get_logger()


_MOST_INVENTORIES = 1_024
"""Different hardware for which a request's bounds are kept; nodes differ in their GPUs' use, too."""


@dataclass(slots=True)
class _Count:
    """Counts one request on nodes of equal hardware, whose inventory this keeps, and thereby its identity.

    each_mbps: as of `bounds`.
    fits_empty: whether the empty node takes it; None if that is not known, or no more of account.
    shortages: of these nodes, if a lack of free capacity is the only cause for which they refuse the request.
    refusal: the verdict on all these nodes if not even the empty node takes it.
    """

    inventory: Inventory
    bounds: Bounds | None
    each_mbps: int | None
    fits_empty: bool | None
    shortages: Shortages | None
    refusal: Infeasible | None = None


class FitCache:
    """Verdicts by request and situation.

    strategy: which fits are the better ones. detail: how much refusals tell.
    quarantine: of nodes whose data makes a verdict fail, which refuses there.
    limit: how many are kept; beyond, those of the namespace are forgotten that has most, and of its requests
        those not asked about for longest: one tenant's many requests do not flush what others' led to.
    counted, searches, undecided: how many verdicts were found by counting, how many were searched, scores
        included, and how many of these reached the search's work budget; for metrics.
    """

    def __init__(
        self,
        strategy: Strategy = Strategy.BINPACK,
        detail: Detail = Detail.NUMBERS,
        *,
        quarantine: Quarantine | None = None,
        limit: int = 65_536,
    ) -> None:
        self.quarantine = quarantine or Quarantine()
        self._engine = FitEngine(strategy)
        self._detail = detail
        self.searches = 0
        self.counted = 0
        self.undecided = 0
        self._limit = limit
        self._size = 0
        self._interfaces = 0
        self._tables: OrderedDict[_Key, dict[NodeSnapshot, Verdict]] = OrderedDict()
        self._counts: dict[_Key, dict[int, _Count]] = {}
        self._owners: dict[_Key, str] = {}
        self._sizes: Counter[str] = Counter()

    def __len__(self) -> int:
        """The number of cached verdicts."""
        return self._size

    def readings(self) -> dict[str, Reading]:
        """Readings for metrics."""
        return {
            "searches_total": ("Placements searched for by filter.", "counter", lambda: self.searches),
            "counted_total": ("Verdicts found by counting alone.", "counter", lambda: self.counted),
            "undecided_total": ("Searches that ended at their budget.", "counter", lambda: self.undecided),
            "verdicts": ("Verdicts kept.", "gauge", lambda: len(self)),
            **self.quarantine.readings(),
        }

    def verdicts(self, request: Request, namespace: str = "") -> dict[NodeSnapshot, Verdict]:
        """The verdicts on this request so far; to be read only, and not beyond the next `verdict`.

        namespace: the owner of the verdicts, if they have no owner yet.
        """
        key = _key(request)
        table = self._tables.get(key)
        if table is None:
            while len(self._tables) >= MAX_REQUESTS or self._interfaces + _size(key) > MAX_INTERFACES:
                self._forget_oldest()  # before: the new one must not be the one
            table = self._tables[key] = {}
            self._counts[key] = {}
            self._owners[key] = namespace
            self._interfaces += _size(key)
            self._sizes[namespace] += _size(key)
        self._tables.move_to_end(key)
        return table

    def cached_verdict(
        self, request: Request, snapshot: NodeSnapshot, namespace: str = ""
    ) -> Feasible | Infeasible | None:
        """Return the verdict in words, if it is known. namespace: as of `verdicts`."""
        verdict = self.verdicts(request, namespace).get(snapshot)
        return verdict.on(snapshot) if isinstance(verdict, Shortage) else verdict

    def verdict(self, request: Request, snapshot: NodeSnapshot, namespace: str = "") -> Feasible | Infeasible:
        """The verdict with score or words, searched for if it is not known. namespace: as of `verdicts`."""
        verdict = self.cached_verdict(request, snapshot, namespace)
        if verdict is None or verdict is COUNTED:
            verdict = self.quarantine.decide(snapshot, lambda: self._judge(request, snapshot), _undecidable)
            self.searches += 1
            self.undecided += isinstance(verdict, Infeasible) and verdict.reason is Reason.UNDECIDED
            self._keep(request, {snapshot: verdict}, namespace)
        return verdict

    def fits(self, request: Request, snapshot: NodeSnapshot, namespace: str = "") -> bool:
        """Report whether the request fits, searching for no score. namespace: as of `verdicts`."""
        if snapshot not in self.verdicts(request, namespace):
            self.count(request, [snapshot], namespace)
        verdict = self.verdicts(request, namespace).get(snapshot)
        return isinstance(verdict or self.verdict(request, snapshot, namespace), Feasible)

    def count(
        self, request: Request, snapshots: Sequence[NodeSnapshot], namespace: str = ""
    ) -> list[NodeSnapshot]:
        """Find the verdicts that counting decides; return the snapshots of the others.

        After a node that refuses the request, sums are compared first: they decide faster that the next one
        refuses it, too, and only delay the verdict on one that takes it.
        namespace: as of `verdicts`.
        """
        verdicts: dict[NodeSnapshot, Verdict] = {}
        undecided: list[NodeSnapshot] = []
        self.verdicts(request, namespace)
        cached, number = self._counts[_key(request)], len(request.interfaces)
        count: _Count | None = None
        refused = False
        for snapshot in snapshots:
            inventory = snapshot.inventory
            if count is None or inventory is not count.inventory:
                count = cached.get(id(inventory)) or self._count_for(request, inventory)
            each_mbps = count.each_mbps
            if each_mbps is not None and number <= snapshot.totals.vfs and each_mbps <= snapshot.each_mbps:
                verdicts[snapshot] = COUNTED
            elif refused and count.shortages and (shortage := count.shortages.by_sums(snapshot.totals)):
                verdicts[snapshot] = shortage
            elif (verdict := self._count(request, snapshot, count)) is None:
                undecided.append(snapshot)
            else:
                verdicts[snapshot] = verdict
                refused = verdict is not COUNTED
        self.counted += len(verdicts)
        self._keep(request, verdicts, namespace)
        return undecided

    def place(self, request: Request, snapshot: NodeSnapshot) -> Placement | Rejection:
        """Place the request by the strategy; a bind must follow the verdict that it was filtered by."""
        node = snapshot.inventory.node
        return self.quarantine.decide(
            snapshot,
            lambda: self._engine.place(request, snapshot),
            lambda why: Rejection(node=node, reason=Reason.UNREADABLE_NODE, message=why),
        )

    def still_fits(self, reservation: Reservation, snapshot: NodeSnapshot) -> bool:
        """Report whether a pod's reservation still fits in the node's free capacity."""
        interfaces, inventory, used = reservation.interfaces, snapshot.inventory, snapshot.used
        return self.quarantine.decide(
            snapshot, lambda: fits(interfaces, inventory, used, reservation.policy), lambda _: False
        )

    def _count_for(self, request: Request, inventory: Inventory) -> _Count:
        cached = self._counts[_key(request)]
        found = cached.get(id(inventory))
        if found is None:
            if len(cached) >= _MOST_INVENTORIES:
                cached.clear()
            bounds, empty = _bounds(request, inventory), Headroom.of_node(inventory, {})
            fits_empty = bounds.fits(empty) if bounds and empty else None
            each_mbps = bounds.each_mbps if bounds else None
            needs_nothing = all(kind.needs is NO_NEEDS for kind in request.shape.kinds)
            rooms_alone = fits_empty and bounds and bounds.runs and inventory.takes_every_rate
            shortages = None
            if rooms_alone and needs_nothing:
                shortages = Shortages(Need.of_interfaces(request.interfaces), inventory.pfs, self._detail)
            found = cached[id(inventory)] = _Count(inventory, bounds, each_mbps, fits_empty, shortages)
        return found

    def _count(self, request: Request, snapshot: NodeSnapshot, count: _Count) -> Verdict | None:
        """Return the verdict by counting how much each PF takes; None if counting cannot decide."""
        shortages, bounds, headroom = count.shortages, count.bounds, snapshot.headroom
        fits = bounds.fits(headroom) if bounds is not None and headroom is not None else None
        if fits:
            return COUNTED
        if shortages is not None and (shortage := shortages.by_sums(snapshot.totals)):
            return shortage
        if fits is None:
            return None
        return self._refusal(request, snapshot, count) if shortages is None else shortages.of_places()

    def _refusal(self, request: Request, snapshot: NodeSnapshot, count: _Count) -> Verdict | None:
        """Return the verdict if not even the empty node takes it; None if its words take a search."""
        if count.refusal is None and count.fits_empty is False:
            count.fits_empty = None  # searched for once
            verdict = self.quarantine.decide(snapshot, lambda: self._judge(request, snapshot), _undecidable)
            if isinstance(verdict, Infeasible) and verdict.reason in UNRESOLVABLE:
                count.refusal = verdict
        return count.refusal

    def _keep(self, request: Request, verdicts: dict[NodeSnapshot, Verdict], namespace: str) -> None:
        table = self.verdicts(request, namespace)
        while self._size and self._size + len(verdicts) > self._limit:  # early, where scores replace some
            self._forget_oldest()
        table = self.verdicts(request, namespace)
        added = -len(table)
        table |= verdicts
        added += len(table)
        self._size += added
        self._sizes[self._owners[_key(request)]] += added

    def _judge(self, request: Request, snapshot: NodeSnapshot) -> Feasible | Infeasible:
        bounds = self._count_for(request, snapshot.inventory).bounds
        found = self._engine.count(bounds, snapshot) or self._engine.place(request, snapshot)
        if isinstance(found, Rejection):
            return self._infeasible(request, snapshot, found)
        return Feasible(self._engine.score(request, snapshot, found))

    def _infeasible(self, request: Request, snapshot: NodeSnapshot, found: Rejection) -> Infeasible:
        text = f"{NOT_ENOUGH_FREE} ({found.text(self._detail)})"
        cause = intern(f"{NOT_ENOUGH_FREE} ({found.cause})") if found.cause else ""
        return Infeasible(found.reason, text, _may_pass(found, request, snapshot), cause)

    def _forget_oldest(self) -> None:
        """Forget the oldest request of the namespace that has most; verdicts and interfaces count alike."""
        greediest = max(self._sizes, key=self._sizes.__getitem__)
        key = next(table for table in self._tables if self._owners[table] == greediest)
        verdicts = len(self._tables.pop(key))
        del self._owners[key], self._counts[key]
        self._size -= verdicts
        self._interfaces -= _size(key)
        self._sizes[greediest] -= verdicts + _size(key)
        if not self._sizes[greediest]:
            del self._sizes[greediest]


class Quarantine:
    """Makes decisions that may fail; counts those that did, and logs each kind of failure once."""

    def __init__(self) -> None:
        """No cluster is watched yet, see `watch`."""
        self.failures = 0
        self._state: ClusterState | None = None
        self._logged: set[str] = set()
        self._examined: WeakSet[NodeSnapshot] = WeakSet()

    def watch(self, state: ClusterState) -> None:
        """Quarantine the nodes of this cluster."""
        self._state = state

    def decide(self, snapshot: NodeSnapshot, decision: Callable[[], T], otherwise: Callable[[str], T]) -> T:
        """Decide on a snapshot; if the decision fails, return the result of `otherwise` for the reason."""
        try:
            return decision()
        except Exception as error:  # whatever it is, it is of this situation alone
            why = self.failed(error)
            self._isolate(snapshot, why)
            return otherwise(why)

    def failed(self, error: Exception, node: NodeName | None = None) -> str:
        """Take note of a failure, of this node if that is known; the reason, in a clause."""
        self.failures += 1
        why = f"what is known of it makes decisions fail: {type(error).__name__}: {error}"[:_MOST_SHOWN]
        if why not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add(why)
            _log.error("decision_failed", node=node, error=why, exc_info=error)
        return why

    def _isolate(self, snapshot: NodeSnapshot, why: str) -> None:
        """Quarantine the nodes of the same PFs and GPUs on which no decision can be made."""
        if self._state is None or snapshot in self._examined:
            return
        self._examined.add(snapshot)
        hardware = snapshot.inventory.hardware
        alike = {
            similar for similar in self._state.snapshots.values() if similar.inventory.hardware == hardware
        }
        undecidable = {similar for similar in alike if not _is_decidable(similar)}
        for node, similar in list(self._state.snapshots.items()):
            if similar in undecidable:
                self._state.quarantine(node, why)

    def readings(self) -> dict[str, Reading]:
        """Readings for metrics."""
        state = self._state
        return {
            "decisions_failed_total": (
                "Decisions that failed for what is known of a node; a defect, see the log.",
                "counter",
                lambda: self.failures,
            ),
            "nodes_quarantined": (
                "Nodes that are not decided upon until they report something else.",
                "gauge",
                lambda: 0 if state is None else state.quarantined(),
            ),
        }


def _bounds(request: Request, inventory: Inventory) -> Bounds | None:
    """Return the bounds; None also if a node's data makes that fail, which its search reports."""
    try:
        return bounds_of(request, inventory)
    except Exception:
        return None


def _is_decidable(snapshot: NodeSnapshot) -> bool:
    """Report whether the simplest request can be decided."""
    try:
        place(_SIMPLEST, snapshot.inventory, snapshot.used)
    except Exception:
        return False
    return True


def _may_pass(found: Rejection, request: Request, snapshot: NodeSnapshot) -> bool:
    """Report whether it may fit later, if only when a link that is down comes up."""
    if found.reason is Reason.DEVICES_DIFFER:
        return False
    link_down = any(pf.link_mbps is None for pf in snapshot.inventory.pfs)
    return found.reason not in UNRESOLVABLE or link_down or _waits_for_an_operator(request)


def _waits_for_an_operator(request: Request) -> bool:
    """Report whether it asks for what can be had on a running node.

    A larger MTU of a PF, vfio-pci for its VFs, an agent that can cap by software.
    """
    return any(
        kind.needs.mtu or not kind.needs.settings.isdisjoint(_HAD_ON_A_RUNNING_NODE)
        for kind in request.shape.kinds
    )


def _undecidable(why: str) -> Infeasible:
    return Infeasible(Reason.UNREADABLE_NODE, f"{UNREADABLE_NODE} ({why})")


def _size(key: _Key) -> int:
    return len(key[0].kind_at)


def _key(request: Request) -> _Key:
    refused = (
        tuple(options_refused(interface.options) for interface in request.interfaces)
        if request.devices
        else ()
    )
    return request.shape, refused
