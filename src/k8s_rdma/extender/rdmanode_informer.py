"""Informer of the objects that agents publish: `RdmaNode` objects, and a Lease for each.

A renewal of the Lease names a generation. It states that the report of this generation was published, and
was still the node's report after the previous renewal was written (`agent.cluster.publisher`). So a node
counts as heard from if a renewal names the report that is known here, or an earlier one. A node is refused if
this was too long ago, because its agent is dead or cannot publish, or because one of the watches lags. A
Lease has its duration in it, because agents of other versions and configurations renew at other intervals.
kube-scheduler leaves out a node that is down altogether, by kubelet's Lease.

The informer does not compare clocks, and one watch may lag behind the other by any time. It relies on the API
server's version at a moment: an object with a larger version was written after that moment.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NoReturn, Self

import structlog

from k8s_rdma.core.types import NodeName
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.node_source import MAX_ADDRESSES, facts_of_status
from k8s_rdma.kube.errors import API_ERRORS
from k8s_rdma.kube.informer import Changed, Deleted, Event, Listed, ListPage, follow, handle_item
from k8s_rdma.kube.published_api import LeaseView, PublishedApi, RdmaNodeView
from k8s_rdma.wire.address_leases import ADDRESS_LEASES
from k8s_rdma.wire.node_facts import NodeFacts
from k8s_rdma.wire.node_lease import covers, is_count, silence, silent_after_s
from k8s_rdma.wire.rdma_node import decode_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable
    from types import TracebackType

    from k8s_rdma.extender.metrics import Reading
    from k8s_rdma.extender.node_cache import ClusterState

NEVER = float("-inf")
_MAX_MARKS = 600

UNPUBLISHED = "its agent publishes no RdmaNode"
REPORTS_AT_ONCE = 30
REPORTS_PER_S = 1.0
"""The rate limit for one node's reports, after a burst of that many. The largest admissible report takes 0.07
s of processor time, and all nodes share one processor."""

_log = structlog.get_logger()


@dataclass(slots=True)
class Marks:
    """The API server's last versions and the moments of their requests, both in ascending order."""

    _moments: list[float] = field(default_factory=list)
    _versions: list[int] = field(default_factory=list)

    def add(self, requested_at: float, version: int) -> None:
        """Note the API server's version by a request made at that time; requests must not overlap."""
        if self._versions and version < self._versions[-1]:  # its data is from a backup
            self._moments.clear()
            self._versions.clear()
        self._moments.append(requested_at)
        self._versions.append(version)
        if len(self._versions) > _MAX_MARKS:
            del self._moments[: _MAX_MARKS // 2], self._versions[: _MAX_MARKS // 2]

    def newest_before(self, version: int) -> float:
        """Return the last moment after which this version was certainly written."""
        index = bisect_left(self._versions, version)
        return self._moments[index - 1] if index else NEVER


@dataclass(slots=True, kw_only=True)
class WatchedNode:
    """The state of one published node. Times are seconds of the extender's clock.

    learned: whether there is a Node object.
    addresses: the addresses of the Node object.
    published: whether there is an `RdmaNode`.
    facts: the facts of its report; None if the report supports no conclusion.
    heard_at: when the last renewal was seen that names the known report or an earlier one.
    requested_at: after that time the known report was still the node's.
    unreadable_reason: why the node cannot be read, as the state was last informed; empty if it can.
    holds_until: after that time age alone may change the reason; kept by `RdmaNodeInformer`.
    deferred: the last report, if the node publishes too often for it to be taken yet. Until it is taken, the
        facts are of the report before it, and renewals that name the later report do not confirm them.
    """

    learned: bool = False
    addresses: tuple[str, ...] = ()
    published: bool = False
    facts: NodeFacts | None = None
    heard_at: float = NEVER
    requested_at: float = NEVER
    unreadable_reason: str = ""
    holds_until: float = NEVER
    deferred: RdmaNodeView | None = None
    _why: str = UNPUBLISHED
    _generation: str = ""
    _version: str = ""
    _lease_version: str = ""
    _lease_s: int = 0
    _names: str = ""
    _named_at: float = NEVER
    _renewed_at: float = NEVER
    _heard: bool = True
    _allowance: float = 0.0
    _allowed_at: float = NEVER

    def exists(self) -> bool:
        """Report whether the node has a Node object or an `RdmaNode`; a Lease alone does not count."""
        return self.learned or self.published

    def admit(self, view: RdmaNodeView, now: float) -> bool:
        """Report whether a report may be taken now; otherwise defer it, in place of an earlier one."""
        earned = (now - self._allowed_at) * REPORTS_PER_S
        self._allowance, self._allowed_at = min(REPORTS_AT_ONCE, self._allowance + earned), now
        admitted = self._allowance >= 1
        self._allowance -= admitted
        self.deferred = None if admitted else view
        return admitted

    def publish(self, view: RdmaNodeView) -> bool:
        """Take a published report; report whether it is new."""
        if self.published and self._version == view.version:
            return False
        self.published, self._version = True, view.version
        self.facts, self._why, self._generation = None, UNPUBLISHED, ""
        if view.status:
            self._conclude(view)
        self._hear()
        return True

    def unpublish(self) -> None:
        """Forget the report, because the `RdmaNode` was deleted."""
        self.published, self._version, self._generation = False, "", ""
        self.facts, self._why, self.heard_at, self.deferred = None, UNPUBLISHED, NEVER, None

    def renew(self, lease: LeaseView, now: float, marks: Marks) -> bool:
        """Take a renewal that is seen now; return False if it was seen before."""
        if lease.version == self._lease_version:
            return False
        if is_count(self._lease_version):
            self._named_at = max(self._named_at, marks.newest_before(int(self._lease_version)))
        self._renewed_at, self._names, self._lease_version = now, lease.holder, lease.version
        self._lease_s = lease.duration_s
        self._heard = False
        self._hear()
        return True

    def is_stale(self, now: float, stale_s: float) -> bool:
        """Report whether the node was silent for longer than `stale_s` and than its Lease's duration."""
        return bool(silence(now - self.heard_at, stale_s, self._lease_s))

    def why(self, now: float, stale_s: float) -> str:
        """Return the reason why the node is unreadable; empty if it is readable.

        Ages in it are whole tens of seconds, so that the reason changes rarely.
        """
        if self.facts is None:
            return self._why
        return silence(now - self.heard_at, stale_s, self._lease_s)

    def why_holds_until(self, stale_s: float) -> float:
        """Return the time until which `why` stays the same if the node stays silent.

        The time has passed if the node is already silent for too long.
        """
        return inf if self.facts is None else self.heard_at + silent_after_s(stale_s, self._lease_s)

    def _conclude(self, view: RdmaNodeView) -> None:
        try:
            status = decode_status(view.status)
            self._generation = status.generation
            self.facts = facts_of_status(status, view.node)
        except MalformedError as error:
            self._why = error.message

    def _hear(self) -> None:
        """Count the last renewal if it has not counted yet and names the known report or an earlier one."""
        if not self._heard and covers(self._generation, self._names):
            self._heard = True
            self.heard_at, self.requested_at = self._renewed_at, self._named_at


@dataclass(slots=True)
class WatchCounts:
    """Counts of the watches' events, for metrics."""

    changed: int = 0
    renewals: int = 0
    unreadable: int = 0
    deferred: int = 0


class RdmaNodeInformer:
    """`NodeSource` by watches; an async context manager that owns them.

    stale_s: a node that was silent for so long cannot be read once its Lease has ended.
    namespace: the namespace of the nodes' Leases.
    look_s: the interval of checks of ages, and of requests for the API server's version.
    marks: the answers to these requests.
    """

    def __init__(  # noqa: PLR0913  each is of its own
        self,
        state: ClusterState,
        api: PublishedApi,
        clock: Callable[[], float],
        *,
        stale_s: float,
        namespace: str,
        look_s: float = 1.0,
    ) -> None:
        self.counts = WatchCounts()
        self.marks = Marks()
        self._state = state
        self._api = api
        self._clock = clock
        self._stale_s = stale_s
        self._namespace = namespace
        self._look_s = look_s
        self._nodes: dict[NodeName, WatchedNode] = {}
        self._listed: set[str] = set()
        self._paged: set[NodeName] = set()
        self._tasks = asyncio.TaskGroup()
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        leases = self._api.follow_leases
        self._running = [
            self._tasks.create_task(follow("rdmanodes", self.stream, self.on_event)),
            self._tasks.create_task(follow("leases", lambda: leases(self._namespace), self.take_lease)),
            self._tasks.create_task(self._mark()),
            self._tasks.create_task(self._watch_ages()),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running:
            task.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    # NodeStates

    async def refresh(self, nodes: Collection[NodeName], *, newer_than: float) -> None:
        """Implement `NodeSource.refresh`: the watches have already brought every report."""

    async def request_report(self, node: NodeName) -> None:
        """Implement `NodeSource.request_report`: a node cannot be asked, and its last report is known."""

    async def deliver(self, node: NodeName, placement: str) -> str:  # noqa: ARG002 - the Protocol's
        """Implement `NodeSource.deliver`: agents that publish follow the placements themselves."""
        return ""

    def learn(self, node: NodeName, addresses: tuple[str, ...]) -> None:
        """Implement `NodeSource.learn`; no node is asked here."""
        entry = self._nodes.setdefault(node, WatchedNode())
        entry.addresses = addresses[:MAX_ADDRESSES]
        if not entry.learned:
            entry.learned = True
            self._store(node, entry)

    def suggest(self, node: NodeName, addresses: Callable[[], tuple[str, ...]]) -> None:
        """Implement `NodeSource.suggest`: the watches bring every node."""

    def addresses(self, node: NodeName) -> tuple[str, ...]:
        """Implement `NodeSource.addresses`."""
        entry = self._nodes.get(node)
        return entry.addresses if entry is not None and entry.learned else ()

    def forget(self, node: NodeName) -> None:
        """Implement `NodeSource.forget`; an `RdmaNode` that stays counts for the next node of its name."""
        entry = self._nodes.get(node)
        if entry is not None:
            entry.learned = False
            self._drop_if_nothing(node, entry)

    def awaited(self) -> int:
        """Implement `NodeSource.awaited`."""
        return 0 if len(self._listed) == 2 else max(1, len(self._nodes))

    # for metrics

    def sources(self) -> Counter[tuple[str, ...]]:
        """Count the nodes that are `watched`, or `unreadable`."""
        nodes = (entry for entry in self._nodes.values() if entry.exists())
        return Counter(("unreadable" if entry.unreadable_reason else "watched",) for entry in nodes)

    def stale(self) -> int:
        """Count the nodes that publish, and are refused because they are stale."""
        now, stale_s = self._clock(), self._stale_s
        return sum(entry.published and entry.is_stale(now, stale_s) for entry in self._nodes.values())

    def oldest_s(self) -> float:
        """Return the time since the last sign of the readable node that has been silent for longest."""
        now = self._clock()
        readable = (entry for entry in self._nodes.values() if entry.exists() and not entry.unreadable_reason)
        return now - min((entry.heard_at for entry in readable), default=now)

    def readings(self) -> dict[str, Reading]:
        """Return readings for metrics."""
        counts = self.counts
        return {
            "node_reports_total": ("Reports that nodes published.", "counter", lambda: counts.changed),
            "node_renewals_total": (
                "Renewals of nodes' Leases, which say that a report holds.",
                "counter",
                lambda: counts.renewals,
            ),
            "node_unreadable_total": (
                "Published reports that nothing can be concluded from.",
                "counter",
                lambda: counts.unreadable,
            ),
            "node_reports_deferred_total": (
                "Reports of nodes that publish too often, taken later or never.",
                "counter",
                lambda: counts.deferred,
            ),
            "nodes_stale": (
                "Nodes that are refused because they have not reported in time.",
                "gauge",
                self.stale,
            ),
        }

    # events of the watches

    def stream(self) -> AsyncIterator[Event[RdmaNodeView]]:
        """List and watch `RdmaNode` objects; each event goes to `on_event`."""
        self._paged.clear()
        return self._api.follow_rdma_nodes()

    def on_event(self, event: Event[RdmaNodeView]) -> None:
        """Handle an event of the `RdmaNode` objects."""
        match event:
            case ListPage(views, is_anew):
                self._on_page(views, is_anew=is_anew)
            case Listed(views, is_anew):
                self._on_page(views, is_anew=is_anew)
                listed = self._paged
                for node in [n for n, entry in self._nodes.items() if entry.published and n not in listed]:
                    self._unpublished(node)
                self._listed.add("rdmanodes")
                for node, entry in self._nodes.items():
                    self._store(node, entry)
                _log.info("rdmanodes_listed", nodes=len(listed))
            case Changed(view):
                self._published(view)
            case Deleted(view):
                self._unpublished(view.node)

    def take_lease(self, event: Event[LeaseView]) -> None:
        """Handle an event of the Leases; a deleted one is not renewed."""
        match event:
            case Listed(leases):
                self._state.leased_addresses.replace(leases)
                for lease in leases:
                    handle_item("leases", self._renewed, lease)
                self._listed.add("leases")
                _log.info("node_leases_listed", leases=len(leases))
            case Changed(lease):
                self._state.leased_addresses.put(lease)
                self._renewed(lease)
            case Deleted(lease):
                self._state.leased_addresses.drop(lease)
                self._drop_if_nothing(NodeName(lease.name), self._nodes.get(NodeName(lease.name)))

    def _on_page(self, views: Iterable[RdmaNodeView], *, is_anew: bool) -> None:
        if is_anew:
            self._paged.clear()
        for view in views:
            self._paged.add(view.node)
            handle_item("rdmanodes", self._published, view)

    def _published(self, view: RdmaNodeView) -> None:
        entry = self._nodes.setdefault(view.node, WatchedNode())
        if not entry.admit(view, self._clock()):
            self.counts.deferred += 1
        elif entry.publish(view):
            if entry.facts is not None:
                self.counts.changed += 1
            else:
                self.counts.unreadable += 1
            self._store(view.node, entry, changed=True)

    def _unpublished(self, node: NodeName) -> None:
        entry = self._nodes.get(node)
        if entry is not None:
            entry.unpublish()
            self._store(node, entry)
            self._drop_if_nothing(node, entry)

    def _renewed(self, lease: LeaseView) -> None:
        if lease.name.startswith(ADDRESS_LEASES):
            return
        node = NodeName(lease.name)
        entry = self._nodes.setdefault(node, WatchedNode())
        if entry.renew(lease, self._clock(), self.marks):
            self.counts.renewals += 1
            if entry.facts is not None and not entry.unreadable_reason:
                self._state.confirm(node, entry.requested_at)
            self._store(node, entry)

    # updates of the state

    def _store(self, node: NodeName, entry: WatchedNode, *, changed: bool = False) -> None:
        """Update the state if the node's report or readability has changed."""
        if not entry.exists():
            return
        entry.holds_until = entry.why_holds_until(self._stale_s)
        why = entry.why(self._clock(), self._stale_s)
        if entry.facts is not None and not why:
            if changed or entry.unreadable_reason or self._state.facts(node) is not entry.facts:
                entry.unreadable_reason = ""
                self._state.observe(node, entry.facts, entry.requested_at)
        elif why != entry.unreadable_reason:
            entry.unreadable_reason = why
            self._state.lose(node, why)

    def _drop_if_nothing(self, node: NodeName, entry: WatchedNode | None) -> None:
        if entry is not None and not entry.exists():
            del self._nodes[node]
            self._state.forget(node)

    async def _watch_ages(self) -> NoReturn:
        """Refuse silent nodes, with the time of their silence; take deferred reports."""
        while True:
            await asyncio.sleep(self._look_s)
            now = self._clock()
            nodes = self._nodes.items()
            for node, entry in [(n, e) for n, e in nodes if e.holds_until < now or e.deferred is not None]:
                if entry.deferred is not None:
                    handle_item("rdmanodes", self._published, entry.deferred)
                self._store(node, entry)

    async def _mark(self) -> NoReturn:
        """Keep asking for the API server's current version, which bounds the age of a renewal."""
        while True:
            requested_at = self._clock()
            try:
                self.marks.add(requested_at, await self._api.leases_version(self._namespace))
            except API_ERRORS as error:
                _log.warning("version_unknown", error=error.message)
            await asyncio.sleep(self._look_s)
