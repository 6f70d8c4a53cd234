"""The recorder of events on pods, as `kubectl describe` shows them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import structlog

from k8s_rdma_demo.cluster.client import ApiClient, ApiError
from k8s_rdma_demo.cluster.objects import (
    EVENTS,
    PODS,
    Clock,
    JsonObject,
    ResourceType,
    name_of,
    namespace_of,
    system_clock,
    timestamp,
    uid_of,
)

_NOTE_LIMIT = 1024  # k8s.io/kubernetes/pkg/apis/core/validation: NoteLengthLimit
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecorder:
    """Posts events of one component; an event that cannot be posted is logged and lost.

    host: the node, for a component that runs on one.
    """

    client: ApiClient
    component: str
    host: str = ""
    clock: Clock = system_clock

    async def normal(self, pod: JsonObject, reason: str, message: str) -> None:
        """Something went as it should."""
        await self._post(pod, "Normal", reason, message)

    async def warning(self, pod: JsonObject, reason: str, message: str) -> None:
        """Something did not."""
        await self._post(pod, "Warning", reason, message)

    async def _post(
        self, pod: JsonObject, kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        now = timestamp(self.clock())
        # As client-go names them: a pod's events sort by their time.
        name = f"{name_of(pod)}.{time.time_ns():x}"
        source = {"component": self.component, "host": self.host}
        event = {
            "metadata": {"name": name, "namespace": namespace_of(pod)},
            "involvedObject": _reference(PODS, pod),
            "reason": reason,
            "message": _shortened(message),
            "source": {name: value for name, value in source.items() if value},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "type": kind,
            "reportingComponent": self.component,
            "reportingInstance": self.host,
        }
        try:
            await self.client.create(EVENTS, event)
        except ApiError as error:
            _log.warning("event.lost", reason=reason, pod=name_of(pod), error=error.message)


def _reference(resource: ResourceType, obj: JsonObject) -> JsonObject:
    return {
        "kind": resource.kind,
        "namespace": namespace_of(obj),
        "name": name_of(obj),
        "uid": uid_of(obj),
        "apiVersion": resource.api_version,
        "resourceVersion": obj["metadata"]["resourceVersion"],
    }


def _shortened(message: str) -> str:
    if len(message) <= _NOTE_LIMIT:
        return message
    return f"{message[: _NOTE_LIMIT - 4]} ..."
