"""The scheduling queue: active pods, unschedulable pods that wait for an event, failed pods in backoff.

The backoff doubles with each failure. Nothing is polled.

Source: `pkg/scheduler/backend/queue`; `framework/events.go` for the events that requeue a pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto, unique
from itertools import count

from k8s_rdma_demo.cluster.objects import (
    JsonObject,
    annotations_of,
    is_finished,
    labels_of,
    metadata,
    node_name_of,
    spec_of,
    status_of,
    uid_of,
)


def node_change_may_help(old: JsonObject | None, new: JsonObject | None) -> bool:
    """Report whether a change of a node may let a refused pod fit: more than a heartbeat, not a deletion."""
    if new is None:
        return False
    return old is None or _as_seen_by_filters(old) != _as_seen_by_filters(new)


def assigned_pod_ended(old: JsonObject | None, new: JsonObject | None) -> bool:
    """Report whether a pod with a node was deleted or has finished, which may free its resources."""
    had_node = old is not None and bool(node_name_of(old)) and not is_finished(old)
    return had_node and (new is None or is_finished(new))


def own_change_may_help(old: JsonObject, new: JsonObject) -> bool:
    """Report whether a waiting pod changed apart from its status, which the scheduler itself writes."""
    return _without_status(old) != _without_status(new)


def _as_seen_by_filters(node: JsonObject) -> tuple[object, ...]:
    conditions = status_of(node).get("conditions") or []
    return (
        labels_of(node),
        annotations_of(node),
        spec_of(node).get("taints"),
        spec_of(node).get("unschedulable"),
        status_of(node).get("allocatable"),
        {condition["type"]: condition["status"] for condition in conditions},
    )


def _without_status(pod: JsonObject) -> tuple[object, ...]:
    fields = {k: v for k, v in metadata(pod).items() if k not in {"resourceVersion", "managedFields"}}
    return fields, spec_of(pod)


@unique
class _State(Enum):
    ACTIVE = auto()
    IN_FLIGHT = auto()
    REFUSED = auto()
    BACKOFF = auto()
    ASSUMED = auto()


@dataclass(slots=True, kw_only=True)
class _Entry:
    pod: JsonObject
    order: int
    state: _State = _State.ACTIVE
    failures: int = 0
    ready_at: float = 0.0
    events_at_pop: int = 0


class SchedulingQueue:
    """Pods without a node, by UID. Times are of one monotonic clock, in seconds.

    A pod is popped once and then in flight, until it is refused, has failed, or is assumed to be bound.
    """

    def __init__(self, *, initial_backoff_s: float = 1.0, max_backoff_s: float = 10.0) -> None:
        self._initial_backoff_s = initial_backoff_s
        self._max_backoff_s = max_backoff_s
        self._entries: dict[str, _Entry] = {}
        self._order = count()
        self._events = 0

    def put(self, pod: JsonObject, *, worth_retry: bool) -> None:
        """A pod came, or changed; worth_retry: in a way that may let it fit now."""
        entry = self._entries.get(uid_of(pod))
        if entry is None:
            self._entries[uid_of(pod)] = _Entry(pod=pod, order=next(self._order))
            return
        entry.pod = pod
        if worth_retry and entry.state is _State.REFUSED:
            self._activate(entry)
        elif worth_retry and entry.state is _State.IN_FLIGHT:
            entry.events_at_pop = -1

    def drop(self, uid: str) -> None:
        """The pod has a node, has finished, or is gone."""
        self._entries.pop(uid, None)

    def pop(self, now: float) -> JsonObject | None:
        """The next pod to try: the highest priority first, then who came first; None when none is due."""
        for entry in self._entries.values():
            if entry.state is _State.BACKOFF and entry.ready_at <= now:
                self._activate(entry)
        active = [entry for entry in self._entries.values() if entry.state is _State.ACTIVE]
        if not active:
            return None
        entry = min(active, key=lambda entry: (-spec_of(entry.pod).get("priority", 0), entry.order))
        entry.state = _State.IN_FLIGHT
        entry.events_at_pop = self._events
        return entry.pod

    def next_due(self) -> float | None:
        """When the next pod's backoff ends; None when none is backing off."""
        return min((e.ready_at for e in self._entries.values() if e.state is _State.BACKOFF), default=None)

    def refuse(self, uid: str) -> None:
        """A popped pod fits nowhere: it waits for an event, unless one came since it was popped."""
        if entry := self._entries.get(uid):
            entry.failures = 0
            entry.state = _State.REFUSED
            if entry.events_at_pop != self._events:
                self._activate(entry)

    def fail(self, uid: str, now: float) -> None:
        """Back off after a failed attempt; the backoff doubles with every failure in a row."""
        if entry := self._entries.get(uid):
            backoff_s = min(self._initial_backoff_s * 2**entry.failures, self._max_backoff_s)
            entry.failures += 1
            entry.state = _State.BACKOFF
            entry.ready_at = now + backoff_s

    def assume(self, uid: str) -> None:
        """The pod was bound; it is kept from being tried until the API server shows its node."""
        if entry := self._entries.get(uid):
            entry.state = _State.ASSUMED

    def on_event(self) -> None:
        """Something happened that may let refused pods fit."""
        self._events += 1
        for entry in self._entries.values():
            if entry.state is _State.REFUSED:
                self._activate(entry)

    def _activate(self, entry: _Entry) -> None:
        entry.state = _State.ACTIVE
        entry.order = next(self._order)
