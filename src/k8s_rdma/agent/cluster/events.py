"""Events on pods: one for each pod and cause, counted.

A pod that is refused every 2 s must not fill its namespace's list of events.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from k8s_rdma.kube.api import ApiRefusedError, PodEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.agent.cluster.outbox import Outbox
    from k8s_rdma.core.ids import NodeName, PodUid
    from k8s_rdma.core.ledger import Pod
    from k8s_rdma.kube.api import NodePodsApi

    Key = tuple[PodUid, str]

COMPONENT = "k8s-rdma-agent"

REPEAT_S = 30.0
"""The least time between two writes of one event."""

MAX_MESSAGE_BYTES = 1024
"""Longer ones are refused (`NoteLengthLimit`, k8s.io/kubernetes/pkg/apis/core/validation/events.go)."""

_MOST = 512
_MOST_OF_NAME = 200
_GONE = 404
_CONFLICT = 409


@dataclass(slots=True)
class _Told:
    """An event, whether the API server has it, and when it was last to be written."""

    event: PodEvent
    written_at: datetime
    made: bool = False


class Events:
    """Tells events of pods, each cause again at most every `REPEAT_S`, with how often it came meanwhile."""

    def __init__(
        self, api: NodePodsApi, outbox: Outbox, *, node: NodeName, now: Callable[[], datetime]
    ) -> None:
        """Nothing was told. now: the time of day, with a time zone."""
        self._api = api
        self._outbox = outbox
        self._node = node
        self._now = now
        self._told: OrderedDict[Key, _Told] = OrderedDict()
        self._named_at_us = 0

    def tell(self, pod: Pod, reason: str, message: str, *, warning: bool) -> None:
        """Tell it, or that it happened again, when there is time.

        reason: one word in CamelCase.
        """
        told = self._note(pod, reason, message, warning=warning)
        if told is not None:
            self._outbox.put(("event", pod.uid, reason), partial(self._write, told))

    async def tell_now(self, pod: Pod, reason: str, message: str, *, warning: bool) -> None:
        """The same, over when it is told; raises as `kube.api` says."""
        told = self._note(pod, reason, message, warning=warning)
        if told is not None:
            await self._write(told)

    def forget(self, uid: PodUid) -> None:
        """What comes of that pod from now on is told as new."""
        for key in [key for key in self._told if key[0] == uid]:
            del self._told[key]

    def _note(self, pod: Pod, reason: str, message: str, *, warning: bool) -> _Told | None:
        """Count it; None when it was written too short a time ago to be written again."""
        key, now = (pod.uid, reason), self._now()
        told = self._told.get(key)
        if told is None:
            told = self._told[key] = _Told(self._first(pod, reason, message, now, warning=warning), now)
            if len(self._told) > _MOST:
                self._told.popitem(last=False)
        else:
            told.event = replace(
                told.event, message=_shortened(message), count=told.event.count + 1, last=now
            )
            self._told.move_to_end(key)
            if (now - told.written_at).total_seconds() < REPEAT_S:
                return None
            told.written_at = now
        return told

    def _first(self, pod: Pod, reason: str, message: str, now: datetime, *, warning: bool) -> PodEvent:
        return PodEvent(
            pod=pod,
            name=self._name(pod, now),
            reason=reason,
            message=_shortened(message),
            warning=warning,
            count=1,
            first=now,
            last=now,
            component=COMPONENT,
            host=self._node,
        )

    def _name(self, pod: Pod, now: datetime) -> str:
        """As client-go names them: a pod's events sort by their time. No two get the same."""
        self._named_at_us = max(int(now.timestamp() * 1e6), self._named_at_us + 1)
        return f"{pod.name[:_MOST_OF_NAME].rstrip('.-')}.{self._named_at_us:x}"

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
            told.event = replace(told.event, name=self._name(told.event.pod, self._now()))
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
