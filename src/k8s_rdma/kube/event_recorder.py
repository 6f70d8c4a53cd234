"""Event recorder: one Event for each object and cause, counted, written when there is time.

A pod that is refused every 2 s must not fill its namespace's list of events. Writes go one at a time, and
no caller waits for them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import structlog

from k8s_rdma.core.backoff import Backoff
from k8s_rdma.core.types import NodeName
from k8s_rdma.kube.api import EventsApi, EventSubject, ObjectEvent
from k8s_rdma.kube.errors import API_ERRORS, ApiRefusedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from k8s_rdma.kube.informer import Time

    Key = tuple[str, str, str]
    Write = Callable[[], Awaitable[None]]

_log = structlog.get_logger()

OUTBOX_LIMIT = 512
"""A node has 110 pods, and each at most a status, an eviction and an event or two."""

SETTLE_S = 0.2
"""The delay of the first write: its replacement, such as for a pod's next network, often follows soon."""

PACE_S = 0.05
"""The pause between two writes: a whole node's pods must not be a burst for the API server."""

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 30.0
_TOO_MANY_REQUESTS = 429

REPEAT_S = 30.0

MAX_MESSAGE_BYTES = 1024
"""Longer ones are refused (`NoteLengthLimit`, k8s.io/kubernetes/pkg/apis/core/validation/events.go)."""

_RECORDED_LIMIT = 512
_MOST_OF_NAME = 200
_NOT_FOUND = 404
_CONFLICT = 409


class Outbox:
    """Queues writes by key (the kind, its object, and which of several); the latest one replaces the others.

    Writes run in the order in which their keys came. A failed one is tried again after all others, because
    the fault may be its own.
    """

    def __init__(self, time: Time, *, limit: int = OUTBOX_LIMIT) -> None:
        """Begin idle, until `run`. limit: of waiting writes; a further one drops the oldest."""
        self._waiting: OrderedDict[Key, Write] = OrderedDict()
        self._limit = limit
        self._pause = time.pause
        self._filled = asyncio.Event()
        self._backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S)

    def put(self, key: Key, write: Write) -> None:
        """Have it written, instead of a write that waits under this key.

        write: raises as `kube.api` describes; the error decides whether it is tried again.
        """
        if key not in self._waiting and len(self._waiting) >= self._limit:
            dropped, _ = self._waiting.popitem(last=False)
            _log.warning("cluster_not_told", what=dropped, why=f"{self._limit} others wait to be written")
        self._waiting[key] = write
        self._filled.set()

    def discard(self, uid: str) -> None:
        """Write no more about that object."""
        for key in [key for key in self._waiting if key[1] == uid]:
            del self._waiting[key]

    async def run(self) -> NoReturn:
        """Write everything that is put, until cancelled."""
        while True:
            await self._filled.wait()
            await self._pause(SETTLE_S)
            while self._waiting:
                key, write = next(iter(self._waiting.items()))
                retry_s = await self._attempt(key, write)
                if self._waiting.get(key) is write:
                    if retry_s is None:
                        del self._waiting[key]
                    else:
                        self._waiting.move_to_end(key)
                await self._pause(PACE_S if retry_s is None else retry_s)
            self._filled.clear()

    async def _attempt(self, key: Key, write: Write) -> float | None:
        """Write once; return the delay before the next attempt, if another attempt can help."""
        try:
            await write()
        except API_ERRORS as error:
            if isinstance(error, ApiRefusedError) and error.status == _NOT_FOUND:
                _log.info("object_gone", what=key, why=error.message)
                return None
            if isinstance(error, ApiRefusedError) and error.status != _TOO_MANY_REQUESTS:
                _log.warning("cluster_not_told", what=key, why=error.message)
                return None
            if not self._backoff.failing:
                _log.warning("cluster_told_later", what=key, why=error.message)
            return self._backoff.fail()
        except Exception:  # a fault of ours: this one is lost, the others are not
            _log.exception("cluster_fault", what=key)
        self._backoff.reset()
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """The component that records, and its node if it belongs to one.

    repeat_s: the least time between two writes of one event.
    """

    component: str
    node: NodeName | None = None
    repeat_s: float = REPEAT_S


@dataclass(slots=True)
class _Recorded:
    """An event, whether the API server has it, and when it was last to be written."""

    event: ObjectEvent
    written_at: datetime
    exists: bool = False


class EventRecorder:
    """Repeats each cause at most at this interval, with the number of its occurrences since."""

    def __init__(
        self,
        api: EventsApi,
        outbox: Outbox,
        *,
        teller: EventSource,
        now: Callable[[], datetime],
    ) -> None:
        """Begin without events. now: the time of day, with a time zone."""
        self._teller = teller
        self._api = api
        self._outbox = outbox
        self._now = now
        self._recorded: OrderedDict[Key, _Recorded] = OrderedDict()
        self._named_at_us = 0

    def record(
        self, about: EventSubject, reason: str, message: str, *, warning: bool, part: str = ""
    ) -> None:
        """Tell it, or that it happened again, when there is time.

        reason: one word in CamelCase.
        part: of the object; each has an event of its own.
        """
        note = self._note(about, reason, message, warning=warning, part=part)
        if note is not None:
            self._outbox.put(("event", about.uid, f"{reason} {part}".rstrip()), partial(self._write, note))

    async def record_now(self, about: EventSubject, reason: str, message: str, *, warning: bool) -> None:
        """Record an event and wait until it is written; raises as `kube.api` says."""
        note = self._note(about, reason, message, warning=warning)
        if note is not None:
            await self._write(note)

    def forget(self, uid: str) -> None:
        """Forget the object: its next events are new ones."""
        for key in [key for key in self._recorded if key[0] == uid]:
            del self._recorded[key]

    def _note(
        self, about: EventSubject, reason: str, message: str, *, warning: bool, part: str = ""
    ) -> _Recorded | None:
        """Count it; return it unless its last write is too recent for another one."""
        key, now = (about.uid, reason, part), self._now()
        previous = self._recorded.get(key)
        if previous is None:
            previous = self._recorded[key] = _Recorded(
                self._first(about, reason, message, now, warning=warning), now
            )
            if len(self._recorded) > _RECORDED_LIMIT:
                self._recorded.popitem(last=False)
        else:
            previous.event = replace(
                previous.event, message=_shortened(message), count=previous.event.count + 1, last=now
            )
            self._recorded.move_to_end(key)
            # The time of day may be put back.
            if 0 <= (now - previous.written_at).total_seconds() < self._teller.repeat_s:
                return None
            previous.written_at = now
        return previous

    def _first(
        self, about: EventSubject, reason: str, message: str, now: datetime, *, warning: bool
    ) -> ObjectEvent:
        return ObjectEvent(
            about=about,
            name=self._name(about, now),
            reason=reason,
            message=_shortened(message),
            warning=warning,
            count=1,
            first=now,
            last=now,
            component=self._teller.component,
            host=self._teller.node or NodeName(""),
        )

    def _name(self, about: EventSubject, now: datetime) -> str:
        """Return a unique name as client-go's: an object's events sort by their time."""
        self._named_at_us = max(int(now.timestamp() * 1e6), self._named_at_us + 1)
        return f"{about.name[:_MOST_OF_NAME].rstrip('.-')}.{self._named_at_us:x}"

    async def _write(self, recorded: _Recorded) -> None:
        """Write the present state of the event; create it again if it has expired."""
        try:
            if recorded.exists:
                await self._api.repeat_event(recorded.event)
            else:
                await self._create(recorded)
        except ApiRefusedError as refused:
            if refused.status != _NOT_FOUND or not recorded.exists:
                raise
            recorded.event = replace(recorded.event, name=self._name(recorded.event.about, self._now()))
            await self._create(recorded)

    async def _create(self, recorded: _Recorded) -> None:
        try:
            await self._api.create_event(recorded.event)
        except ApiRefusedError as refused:
            if refused.status != _CONFLICT:
                raise
            await self._api.repeat_event(recorded.event)  # made by an attempt whose answer was lost
        recorded.exists = True


def _shortened(message: str) -> str:
    data = message.encode()
    if len(data) <= MAX_MESSAGE_BYTES:
        return message
    return data[: MAX_MESSAGE_BYTES - 4].decode(errors="ignore") + " ..."
