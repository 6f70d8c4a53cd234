"""Node states by watching what the agents publish: `RdmaNode` objects, and a Lease for each.

A renewal of the Lease says that the report of the generation which it names was published, and was the
node's after the renewal before it was written (`agent.cluster.status_publisher`). So a node counts as heard
from when a renewal was seen that names what is known here or what came before it, and is refused when that
was too long ago: it is dead, or cannot publish, or one of the watches lags.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Self

import structlog

from k8s_rdma.core.ids import NodeName
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.facts import NodeFacts, facts_of_status
from k8s_rdma.extender.following import follow
from k8s_rdma.extender.marks import NEVER, Marks
from k8s_rdma.kube.api import API_ERRORS, Changed, Gone, Listed, Page
from k8s_rdma.wire.rdma_node import decode_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable
    from types import TracebackType

    from k8s_rdma.extender.metrics import Reading
    from k8s_rdma.extender.state import ClusterState
    from k8s_rdma.kube.api import Event, LeaseView
    from k8s_rdma.kube.published import PublishedApi, RdmaNodeView

UNPUBLISHED = "its agent publishes no RdmaNode"
UNRENEWED = "no Lease says yet that what its agent publishes holds"
_AGE_STEP_S = 10
_log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class _Node:
    """What is known of a node.

    learned: whether there is a Node object. published, version: whether there is an `RdmaNode`, and which.
    facts: of its report; None where nothing may be concluded from it, `why` not. generation: of that report.
    renewed_at, lease_version, names: of the last renewal: when it was seen, its version, and the generation
        that it says was published. named_at: after that time it was the node's.
    heard: whether that was the report that is known, or one before it; heard_at: when the last such was seen.
    asked_at: after that time the report that is known was the node's.
    told: why the state was told last that the node cannot be read; empty when it can.
    """

    facts: NodeFacts | None = None
    why: str = UNPUBLISHED
    generation: str = ""
    version: str = ""
    published: bool = False
    learned: bool = False
    renewed_at: float = NEVER
    names: str = ""
    lease_version: str = ""
    heard: bool = True
    named_at: float = NEVER
    asked_at: float = NEVER
    heard_at: float = NEVER
    told: str = ""


@dataclass(slots=True)
class Counts:
    """What the watches brought, for metrics."""

    changed: int = 0
    renewals: int = 0
    unreadable: int = 0


class CrdNodeStates:
    """`NodeStates` by watches; an async context manager that owns them.

    stale_s: a node that was not heard from for so long cannot be read. namespace: of the nodes' Leases.
    look_s: how often ages are looked at, and the API server is asked for its version. marks: its answers.
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
        self.counts = Counts()
        self.marks = Marks()
        self._state = state
        self._api = api
        self._clock = clock
        self._stale_s = stale_s
        self._namespace = namespace
        self._look_s = look_s
        self._nodes: dict[NodeName, _Node] = {}
        self._listed: set[str] = set()
        self._paged: set[NodeName] = set()
        self._tasks = asyncio.TaskGroup()
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        leases = self._api.follow_leases
        self._running = [
            self._tasks.create_task(follow("rdmanodes", self.stream, self.take)),
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

    async def refresh(self, nodes: Collection[NodeName], *, since: float) -> None:
        """As `NodeStates.refresh`: the watch has told what there is."""

    async def ask(self, node: NodeName) -> None:
        """As `NodeStates.ask`: a node cannot be asked, and what it publishes is known."""

    def learn(self, node: NodeName, addresses: tuple[str, ...]) -> None:  # noqa: ARG002 - nobody is asked
        """As `NodeStates.learn`."""
        entry = self._nodes.setdefault(node, _Node())
        if not entry.learned:
            entry.learned = True
            self._tell(node, entry)

    def suggest(self, node: NodeName, addresses: tuple[str, ...]) -> None:
        """As `NodeStates.suggest`: the watches tell of every node."""

    def forget(self, node: NodeName) -> None:
        """As `NodeStates.forget`; what it published goes with it, or counts for the next of its name."""
        entry = self._nodes.get(node)
        if entry is not None:
            entry.learned = False
            self._drop_if_nothing(node, entry)

    def awaited(self) -> int:
        """As `NodeStates.awaited`."""
        return 0 if len(self._listed) == 2 else max(1, len(self._nodes))

    # for metrics

    def sources(self) -> Counter[tuple[str, ...]]:
        """How many nodes are `watched`, or `unreadable`."""
        return Counter(("unreadable" if entry.told else "watched",) for entry in self._nodes.values())

    def stale(self) -> int:
        """How many nodes publish, and are refused since they were not heard from."""
        now = self._clock()
        return sum(1 for entry in self._nodes.values() if entry.published and self._is_stale(entry, now))

    def oldest_s(self) -> float:
        """How long the node that can be read and was silent for longest has not been heard from."""
        now = self._clock()
        return now - min((entry.heard_at for entry in self._nodes.values() if not entry.told), default=now)

    def readings(self) -> dict[str, Reading]:
        """What metrics show."""
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
            "nodes_stale": (
                "Nodes that are refused since they were not heard from.",
                "gauge",
                self.stale,
            ),
        }

    # what the watches tell

    def stream(self) -> AsyncIterator[Event[RdmaNodeView]]:
        """What `take` is to be given, from the beginning."""
        self._paged.clear()
        return self._api.follow_rdma_nodes()

    def take(self, event: Event[RdmaNodeView]) -> None:
        """One event of the `RdmaNode` objects."""
        match event:
            case Page(views):
                self._take_some(views)
            case Listed(views):
                self._take_some(views)
                there = self._paged
                for node in [n for n, entry in self._nodes.items() if entry.published and n not in there]:
                    self._unpublished(node)
                self._listed.add("rdmanodes")
                for node, entry in self._nodes.items():
                    self._tell(node, entry)
                _log.info("rdmanodes_listed", nodes=len(there))
            case Changed(view):
                self._published(view)
            case Gone(view):
                self._unpublished(view.node)

    def take_lease(self, event: Event[LeaseView]) -> None:
        """One event of the Leases; one that is gone is not renewed."""
        match event:
            case Listed(leases):
                for lease in leases:
                    self._renewed(lease)
                self._listed.add("leases")
                _log.info("node_leases_listed", leases=len(leases))
            case Changed(lease):
                self._renewed(lease)

    def _take_some(self, views: Iterable[RdmaNodeView]) -> None:
        for view in views:
            self._paged.add(view.node)
            self._published(view)

    def _published(self, view: RdmaNodeView) -> None:
        entry = self._nodes.setdefault(view.node, _Node())
        if entry.published and entry.version == view.version:
            return
        entry.published, entry.version = True, view.version
        entry.facts, entry.why, entry.generation = None, UNPUBLISHED, ""
        if view.status:
            self._conclude(view, entry)
        _hear(entry)
        self._tell(view.node, entry, changed=True)

    def _conclude(self, view: RdmaNodeView, entry: _Node) -> None:
        try:
            status = decode_status(view.status)
            entry.generation = status.generation
            entry.facts = facts_of_status(status, view.node)
            self.counts.changed += 1
        except MalformedError as error:
            entry.why = error.message
            self.counts.unreadable += 1

    def _unpublished(self, node: NodeName) -> None:
        entry = self._nodes.get(node)
        if entry is None:
            return
        entry.published, entry.version, entry.generation = False, "", ""
        entry.facts, entry.why, entry.heard_at = None, UNPUBLISHED, NEVER
        self._tell(node, entry)
        self._drop_if_nothing(node, entry)

    def _renewed(self, lease: LeaseView) -> None:
        node = NodeName(lease.name)
        entry = self._nodes.setdefault(node, _Node())
        if lease.version == entry.lease_version:
            return
        if entry.lease_version.isdecimal():
            entry.named_at = max(entry.named_at, self.marks.before(int(entry.lease_version)))
        entry.renewed_at, entry.names, entry.lease_version = self._clock(), lease.holder, lease.version
        entry.heard = False
        self.counts.renewals += 1
        if _hear(entry) and not entry.told and entry.facts is not None:
            self._state.confirm(node, entry.asked_at)
        self._tell(node, entry)

    # what follows

    def _tell(self, node: NodeName, entry: _Node, *, changed: bool = False) -> None:
        """Tell the state what is known of the node, where that is something new."""
        if not (entry.learned or entry.published):
            return
        why = self._why(entry)
        if entry.facts is not None and not why:
            if changed or entry.told or node not in self._state.situations:
                entry.told = ""
                self._state.observe(node, entry.facts, entry.asked_at)
        elif why != entry.told:
            entry.told = why
            self._state.lose(node, why)

    def _why(self, entry: _Node) -> str:
        """Why the node cannot be read; empty when it can."""
        if entry.facts is None:
            return entry.why
        if entry.heard_at == NEVER:
            return UNRENEWED
        now = self._clock()
        if not self._is_stale(entry, now):
            return ""
        age_s = int((now - entry.heard_at) // _AGE_STEP_S * _AGE_STEP_S)
        return f"its agent was not heard from for {age_s} s"

    def _is_stale(self, entry: _Node, now: float) -> bool:
        return now - entry.heard_at > self._stale_s

    def _drop_if_nothing(self, node: NodeName, entry: _Node) -> None:
        if not (entry.learned or entry.published):
            del self._nodes[node]
            self._state.forget(node)

    async def _watch_ages(self) -> NoReturn:
        """Refuse who is silent, and tell for how long."""
        while True:
            await asyncio.sleep(self._look_s)
            for node, entry in self._nodes.items():
                self._tell(node, entry)

    async def _mark(self) -> NoReturn:
        """Keep asking for the version of now, which is what tells how old a renewal can be at most."""
        while True:
            asked_at = self._clock()
            try:
                self.marks.note(asked_at, await self._api.leases_version(self._namespace))
            except API_ERRORS as error:
                _log.warning("version_unknown", error=error.message)
            await asyncio.sleep(self._look_s)


def _hear(entry: _Node) -> bool:
    """Whether the last renewal, which was not heard so far, speaks of what is known; if so, it is heard."""
    if entry.heard or not covers(entry.generation, entry.names):
        return False
    entry.heard = True
    entry.heard_at, entry.asked_at = entry.renewed_at, entry.named_at
    return True


def covers(known: str, named: str) -> bool:
    """Whether a report of that generation is the named one or came after it, of the same observer."""
    (epoch, _, counter), (named_epoch, _, named_counter) = known.rpartition("."), named.rpartition(".")
    if epoch != named_epoch or not (counter.isdecimal() and named_counter.isdecimal()):
        return known == named != ""
    return int(counter) >= int(named_counter)
