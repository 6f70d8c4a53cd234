"""Nominated pods: the room that preemption made for a pod, held until the pod is bound, gone or too late.

A pod whose victims were evicted waits until the victims have ended and their node has their VFs back. During
this time no pod of equal or lower priority may take the room. kube-scheduler alone chooses among the nodes
that `preempt` answered, and writes its choice to the pod's `status.nominatedNodeName` at once. Until this is
seen, room is held on all of these nodes. A hold does not count against a pod of higher priority. The
nominated pod itself is bound only to capacity that `core.allocation` finds free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import structlog

from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.extender.pod_store import PodIndex, PodStore

if TYPE_CHECKING:
    from k8s_rdma.extender.fit_cache import FitCache
    from k8s_rdma.extender.metrics import Reading
    from k8s_rdma.extender.node_cache import ClusterState
    from k8s_rdma.extender.pod_requests import PendingPod

UNNAMED_S = 10.0
"""The time for which the answer's rooms are held until the scheduler's choice is known. The scheduler writes
its choice within a second of the answer. It writes none if the preemption failed after the answer."""

_LOOK_AGAIN_S = 1.0
"""The interval of searches for a pod without a place on an unchanged node: its victims may be terminating."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Room on a node that is held for a pod.

    pod: `namespace/name`.
    priority: the hold counts against pods of this priority or a lower one.
    deadline: seconds of the caller's clock; from then on the hold does not count.
    victims: the pods that are evicted for it there.
    """

    interfaces: tuple[PlacedInterface, ...]
    pod: str
    priority: int
    deadline: float
    victims: Collection[PodUid] = ()


class Holds:
    """The holds by node and pod."""

    def __init__(self) -> None:
        self._nodes: dict[NodeName, dict[PodUid, Hold]] = {}
        self._places: dict[PodUid, set[NodeName]] = {}

    def __contains__(self, uid: PodUid) -> bool:
        return uid in self._places

    def __len__(self) -> int:
        """Return the number of pods with a hold, expired or not."""
        return len(self._places)

    def hold(self, node: NodeName, uid: PodUid, hold: Hold) -> None:
        """Hold room on a node; it replaces the pod's earlier hold there."""
        self._nodes.setdefault(node, {})[uid] = hold
        self._places.setdefault(uid, set()).add(node)

    def get(self, node: NodeName, uid: PodUid) -> Hold | None:
        """Return the pod's hold on the node."""
        return self._nodes.get(node, {}).get(uid)

    def release(self, uid: PodUid) -> dict[NodeName, Hold]:
        """Release all holds for the pod, and return them."""
        return {node: self._drop(node, uid) for node in self._places.pop(uid, ())}

    def expire(self, now: float) -> dict[NodeName, dict[PodUid, Hold]]:
        """Forget the holds that have reached their deadline, and return them."""
        expired = {
            node: holds
            for node, node_holds in self._nodes.items()
            if (holds := {uid: hold for uid, hold in node_holds.items() if hold.deadline <= now})
        }
        for node, holds in expired.items():
            for uid in holds:
                self._drop(node, uid)
                self._places[uid].discard(node)
                if not self._places[uid]:
                    del self._places[uid]
        return expired

    def against(
        self, node: NodeName, uid: PodUid, priority: int, now: float
    ) -> Mapping[PodUid, tuple[PlacedInterface, ...]]:
        """Return the holds on the node that count against a pod of that priority; its own does not."""
        return {
            held_uid: hold.interfaces
            for held_uid, hold in self._nodes.get(node, {}).items()
            if held_uid != uid and hold.priority >= priority and hold.deadline > now
        }

    def all_against(self, uid: PodUid, priority: int, now: float) -> Iterator[tuple[NodeName, Hold]]:
        """Yield all holds that count against a pod of that priority, with their nodes."""
        for node, holds in self._nodes.items():
            for held_uid, hold in holds.items():
                if held_uid != uid and hold.priority >= priority and hold.deadline > now:
                    yield node, hold

    def next_end(self) -> float | None:
        """Return the earliest deadline; None without holds."""
        return min((hold.deadline for node in self._nodes.values() for hold in node.values()), default=None)

    def nodes(self) -> frozenset[NodeName]:
        """Return the nodes with holds."""
        return frozenset(self._nodes)

    def nodes_of(self, uid: PodUid) -> frozenset[NodeName]:
        """Return the nodes with a hold for the pod."""
        return frozenset(self._places.get(uid, ()))

    def _drop(self, node: NodeName, uid: PodUid) -> Hold:
        holds = self._nodes[node]
        hold = holds.pop(uid)
        if not holds:
            del self._nodes[node]
        return hold


class NominatedRoom(NamedTuple):
    """Interfaces held on a node for a pod, and the pods evicted for it."""

    interfaces: tuple[PlacedInterface, ...]
    victims: Collection[PodUid] = ()


class _Nomination(NamedTuple):
    """The node that a pod's status names, and the end of the time for which room is held there."""

    node: NodeName
    deadline: float


class NominatedPods(PodIndex):
    """Holds the room that preemption made for pods.

    clock: seconds, monotonic.
    nomination_s: how long room is held.
    on_release: called for every node that more pods may fit on, because less room is held there.
    settled: the pods for which no room is held any more.
    """

    def __init__(  # noqa: PLR0913 - the parts that it brings together
        self,
        state: ClusterState,
        pods: PodStore,
        fit_cache: FitCache,
        clock: Callable[[], float],
        *,
        nomination_s: float,
        on_release: Callable[[NodeName], None],
        settled: Container[PodUid] = (),
    ) -> None:
        self._holds = Holds()
        self._state = state
        self._pods = pods
        self._fit_cache = fit_cache
        self._clock = clock
        self._nomination_s = nomination_s
        self._on_release = on_release
        self._settled = settled
        self._named: dict[PodUid, _Nomination] = {}
        self._unnamed: dict[PodUid, float] = {}
        self._unreserved: dict[PodUid, PendingPod] = {}
        self._due: set[PodUid] = set()
        self._all_due_at = float("-inf")
        self._refused: dict[PodUid, frozenset[NodeName]] = {}
        self._work_added = asyncio.Event()
        self._choice = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of pods with a hold."""
        return len(self._holds)

    def nodes(self) -> frozenset[NodeName]:
        """Return the nodes with holds."""
        self._place_those_left()
        return self._holds.nodes()

    def nodes_of(self, uid: PodUid) -> frozenset[NodeName]:
        """Return the nodes with a hold for the pod."""
        return self._holds.nodes_of(uid)

    def against(
        self, node: NodeName, uid: PodUid, priority: int
    ) -> Mapping[PodUid, tuple[PlacedInterface, ...]]:
        """Return the holds on the node that count against a pod of that priority now; its own do not."""
        self._place_those_left()
        return self._holds.against(node, uid, priority, self._clock())

    def holds_against(self, uid: PodUid, priority: int) -> Iterator[tuple[NodeName, Hold]]:
        """Return all holds that count against a pod of that priority, with their nodes."""
        self._place_those_left()
        return self._holds.all_against(uid, priority, self._clock())

    def refused(self, uid: PodUid) -> frozenset[NodeName]:
        """Return the nodes with a hold for the pod that refused it in the last filter."""
        return self._holds.nodes_of(uid) & self._refused.get(uid, frozenset())

    def victims(self, node: NodeName, uid: PodUid) -> Collection[PodUid]:
        """Return the victims on the node, as `preempt` answered the scheduler."""
        hold = self._holds.get(node, uid)
        return hold.victims if hold else ()

    def expired(self, uid: PodUid) -> bool:
        """Report whether the pod's status names a node and the time for holding room there is over."""
        named = self._named.get(uid)
        return named is not None and named.deadline <= self._clock()

    def readings(self) -> dict[str, Reading]:
        """Return readings for metrics."""
        help_text = "Pods that room is held for, since others were evicted."
        return {"pods_nominated": (help_text, "gauge", lambda: len(self))}

    def undecided(self, pod: PendingPod) -> frozenset[NodeName]:
        """Return the nodes on which room for other pods may soon be released.

        Until the scheduler's choice is seen, room for a pod is held on several nodes, although it needs only
        one. On the others a preemption would evict more victims than necessary.
        """
        now = self._clock()
        return frozenset(
            node
            for uid, deadline in self._unnamed.items()
            if uid != pod.uid and deadline > now and len(nodes := self._holds.nodes_of(uid)) > 1
            for node in nodes
            if (hold := self._holds.get(node, uid)) and hold.priority >= pod.priority
        )

    async def wait_for_choices(self, pod: PendingPod, nodes: Collection[NodeName], within_s: float) -> None:
        """Return when no node is `undecided` for the pod any more, or after that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self.undecided(pod).isdisjoint(nodes):
                    await self._choice.wait()

    # events

    def filtered(self, uid: PodUid, refused: Container[str]) -> None:
        """Remember the nodes on which the last filter of the pod refused it."""
        nodes = self._holds.nodes_of(uid)
        if nodes:
            self._refused[uid] = frozenset(node for node in nodes if node in refused)

    def changed(self, node: NodeName) -> None:
        """Note that the node's snapshot has changed.

        While victims still have their interfaces, the hold counts in addition, and the node looks fuller than
        it is or will be. A pod that was refused for this reason fits when the victims go, although by the
        snapshot alone it fitted before.
        """
        self._due.update(uid for uid in self._unreserved if self._named[uid].node == node)
        if node in self._holds.nodes():
            self._on_release(node)

    def answered(self, pod: PendingPod, found: Mapping[NodeName, NominatedRoom]) -> None:
        """Hold the rooms that the scheduler got as an answer for the pod; they replace its earlier holds."""
        if pod.uid in self._settled:
            self.on_delete(pod.uid)
            return
        released = self._holds.release(pod.uid)
        self._unreserved.pop(pod.uid, None)
        self._refused.pop(pod.uid, None)
        now, named = self._clock(), self._named.get(pod.uid)
        for node, room in found.items():
            # If the pod is nominated to the same node again, its status does not change and no event follows.
            again = named is not None and named.node == node
            held_s = self._nomination_s if again else min(UNNAMED_S, self._nomination_s)
            self._hold(pod, node, room, now + held_s)
        self._unnamed[pod.uid] = now + UNNAMED_S
        self._notify(pod.uid, released.keys() - found.keys())

    def nominated(self, pod: PendingPod, node: NodeName) -> None:
        """Note that the pod's status names this node; the time of the hold runs from the first such event."""
        if not pod.request or pod.uid in self._settled:
            return
        now, named, nodes = self._clock(), self._named.get(pod.uid), self._holds.nodes_of(pod.uid)
        if self._unnamed.get(pod.uid, now) > now and (node not in nodes or (named and named.node == node)):
            return  # the event may be older than the last answer
        if named is None or named.node != node:
            self._unnamed.pop(pod.uid, None)
            named = self._named[pod.uid] = _Nomination(node, now + self._nomination_s)
            _log.info("nominated", pod=pod.pod, uid=pod.uid, node=node)
        else:
            return
        self._tell_choice()
        released = self._holds.release(pod.uid)
        hold = released.pop(node, None)
        if hold is not None:
            self._hold(pod, node, NominatedRoom(hold.interfaces, hold.victims), named.deadline)
        else:
            self._unreserved[pod.uid] = pod
            self._due.add(pod.uid)
        self._notify(pod.uid, released)

    def cleared(self, uid: PodUid) -> None:
        """Note that the pod's status names no node.

        The scheduler removes a nomination if a pod of higher priority makes room on the same node. That pod's
        hold then replaces this one. The scheduler also removes it if an attempt fails, for example because
        an extender does not answer. In this case the pod keeps its room.
        """
        named, now = self._named.get(uid), self._clock()
        hold = self._holds.get(named.node, uid) if named else None
        if named and hold and self._holds.against(named.node, uid, hold.priority + 1, now):
            _log.info("nomination_lost", pod=hold.pod, uid=uid, node=named.node)
            self.on_delete(uid)

    def on_delete(self, uid: PodUid) -> None:
        """Release the room of a pod that is bound, finished or gone."""
        if (
            uid not in self._named
            and uid not in self._unnamed
            and uid not in self._unreserved
            and uid not in self._refused
            and uid not in self._holds
        ):
            return  # the usual case: most pods of a cluster were never nominated
        self._named.pop(uid, None)
        self._unnamed.pop(uid, None)
        self._unreserved.pop(uid, None)
        self._release(uid)
        self._tell_choice()

    def uids(self) -> Iterable[PodUid]:
        """Return the pods of this index."""
        return (*self._named, *self._unnamed)

    # time

    def expire(self) -> None:
        """Release the holds that have reached their deadline."""
        now = self._clock()
        for node, holds in self._holds.expire(now).items():
            for uid, hold in holds.items():
                if not self._holds.nodes_of(uid):
                    self._refused.pop(uid, None)
                _log.warning("nomination_expired", pod=hold.pod, uid=uid, node=node)
                self._notify(uid, [node])
        for uid in [uid for uid, deadline in self._unnamed.items() if deadline <= now]:
            del self._unnamed[uid]

    async def keep_time(self) -> NoReturn:
        """Release each hold at its deadline, for as long as the process runs."""
        while True:
            self._work_added.clear()
            end = self._holds.next_end()
            try:
                async with asyncio.timeout(None if end is None else max(0.0, end - self._clock())):
                    await self._work_added.wait()
            except TimeoutError:
                self.expire()

    def _tell_choice(self) -> None:
        choice, self._choice = self._choice, asyncio.Event()
        choice.set()

    def _release(self, uid: PodUid) -> None:
        self._refused.pop(uid, None)
        self._notify(uid, self._holds.release(uid))

    def _hold(self, pod: PendingPod, node: NodeName, room: NominatedRoom, deadline: float) -> None:
        hold = Hold(
            interfaces=room.interfaces,
            pod=pod.pod,
            priority=pod.priority,
            deadline=deadline,
            victims=room.victims,
        )
        self._holds.hold(node, pod.uid, hold)
        self._work_added.set()

    def _place_those_left(self) -> None:
        """Hold room for pods whose status names a node that this process did not answer, once it is known.

        Either another process answered `preempt`, or this process has started since.
        """
        now = self._clock()
        if self._all_due_at <= now:
            self._due, self._all_due_at = set(self._unreserved), now + _LOOK_AGAIN_S
        if not self._due:
            return
        due, self._due = [pod for uid, pod in self._unreserved.items() if uid in self._due], set()
        for pod in due:
            named = self._named[pod.uid]
            interfaces = self._placed(pod, named.node, now)
            if interfaces is not None:
                self._hold(pod, named.node, NominatedRoom(interfaces), named.deadline)
            if interfaces is not None or named.deadline <= now:
                del self._unreserved[pod.uid]

    def _placed(self, pod: PendingPod, node: NodeName, now: float) -> tuple[PlacedInterface, ...] | None:
        """Place the pod as if terminating pods had gone; None if it has no place or there is no snapshot."""
        snapshot = self._state.snapshot_if(
            node,
            excluded=[pod.uid, *self._pods.terminating(node)],
            holding=self._holds.against(node, pod.uid, pod.priority, now),
        )
        if snapshot is None:
            return None
        if not self._fit_cache.fits(pod.request, snapshot, pod.namespace):
            return None
        found = self._fit_cache.place(pod.request, snapshot)
        return found.interfaces if isinstance(found, Placement) else None

    def _notify(self, uid: PodUid, released: Iterable[NodeName]) -> None:
        for node in released:
            if self._state.reservation(node, uid) is None:
                self._on_release(node)
