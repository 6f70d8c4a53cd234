"""Events on objects: one for each object and cause, counted.

A pod that is refused every 2 s must not fill its namespace's list of events.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import NodeName
from k8s_rdma.kube.api import ApiRefusedError, ObjectEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.kube.api import EventsApi, Subject
    from k8s_rdma.kube.outbox import Outbox

    Key = tuple[str, str, str]

REPEAT_S = 30.0

MAX_MESSAGE_BYTES = 1024
"""Longer ones are refused (`NoteLengthLimit`, k8s.io/kubernetes/pkg/apis/core/validation/events.go)."""

_MOST = 512
_MOST_OF_NAME = 200
_GONE = 404
_CONFLICT = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class Teller:
    """Who tells, on which node. repeat_s: the least time between two writes of one event."""

    component: str
    node: NodeName
    repeat_s: float = REPEAT_S


@dataclass(slots=True)
class _Told:
    """An event, whether the API server has it, and when it was last to be written."""

    event: ObjectEvent
    written_at: datetime
    made: bool = False


class Events:
    """Tells each cause again at most every so often, with how often it came meanwhile."""

    def __init__(
        self,
        api: EventsApi,
        outbox: Outbox,
        *,
        teller: Teller,
        now: Callable[[], datetime],
    ) -> None:
        """Nothing was told. now: the time of day, with a time zone."""
        self._teller = teller
        self._api = api
        self._outbox = outbox
        self._now = now
        self._told: OrderedDict[Key, _Told] = OrderedDict()
        self._named_at_us = 0

    def tell(self, about: Subject, reason: str, message: str, *, warning: bool, part: str = "") -> None:
        """Tell it, or that it happened again, when there is time.

        reason: one word in CamelCase. part: of the object; each has an event of its own.
        """
        told = self._note(about, reason, message, warning=warning, part=part)
        if told is not None:
            self._outbox.put(("event", about.uid, f"{reason} {part}".rstrip()), partial(self._write, told))

    async def tell_now(self, about: Subject, reason: str, message: str, *, warning: bool) -> None:
        """The same, over when it is told; raises as `kube.api` says."""
        told = self._note(about, reason, message, warning=warning)
        if told is not None:
            await self._write(told)

    def forget(self, uid: str) -> None:
        """What comes of that object from now on is told as new."""
        for key in [key for key in self._told if key[0] == uid]:
            del self._told[key]

    def _note(
        self, about: Subject, reason: str, message: str, *, warning: bool, part: str = ""
    ) -> _Told | None:
        """Count it; None when it was written too short a time ago to be written again."""
        key, now = (about.uid, reason, part), self._now()
        told = self._told.get(key)
        if told is None:
            told = self._told[key] = _Told(self._first(about, reason, message, now, warning=warning), now)
            if len(self._told) > _MOST:
                self._told.popitem(last=False)
        else:
            told.event = replace(
                told.event, message=_shortened(message), count=told.event.count + 1, last=now
            )
            self._told.move_to_end(key)
            if (now - told.written_at).total_seconds() < self._teller.repeat_s:
                return None
            told.written_at = now
        return told

    def _first(
        self, about: Subject, reason: str, message: str, now: datetime, *, warning: bool
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
            host=self._teller.node,
        )

    def _name(self, about: Subject, now: datetime) -> str:
        """As client-go names them: an object's events sort by their time. No two get the same."""
        self._named_at_us = max(int(now.timestamp() * 1e6), self._named_at_us + 1)
        return f"{about.name[:_MOST_OF_NAME].rstrip('.-')}.{self._named_at_us:x}"

    async def _write(self, told: _Told) -> None:
        """Write the event as it is by now; make it anew where it has expired."""
        try:
            if told.made:
                await self._api.repeat_event(told.event)
            else:
                await self._make(told)
        except ApiRefusedError as refused:
            if refused.status != _GONE or not told.made:
                raise
            told.event = replace(told.event, name=self._name(told.event.about, self._now()))
            await self._make(told)

    async def _make(self, told: _Told) -> None:
        try:
            await self._api.create_event(told.event)
        except ApiRefusedError as refused:
            if refused.status != _CONFLICT:
                raise
            await self._api.repeat_event(told.event)  # made by an attempt whose answer was lost
        told.made = True


def _shortened(message: str) -> str:
    data = message.encode()
    if len(data) <= MAX_MESSAGE_BYTES:
        return message
    return data[: MAX_MESSAGE_BYTES - 4].decode(errors="ignore") + " ..."
