"""Kubernetes objects as JSON: where things are in them, and times as the API writes them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

JsonObject: TypeAlias = dict[str, Any]
"""An object as decoded from JSON; never changed in place once it is in a store or a cache."""

Key: TypeAlias = tuple[str, str]
"""Namespace and name; the namespace is empty for cluster-scoped objects."""

Clock: TypeAlias = "Callable[[], datetime]"


def system_clock() -> datetime:
    """The time now, in UTC."""
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """`metav1.Time`: RFC 3339 in UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def nano_timestamp() -> str:
    """The time now as Go's RFC3339Nano: UTC, up to nine decimals, without zeros at their end."""
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    whole = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{nanoseconds:09d}".rstrip("0").rstrip(".") + "Z"


def parse_timestamp(text: str) -> datetime:
    """The moment that `timestamp` wrote."""
    return datetime.fromisoformat(text)


def metadata(obj: JsonObject) -> JsonObject:
    """The object's metadata; empty where it has none."""
    return obj.get("metadata") or {}


def name_of(obj: JsonObject) -> str:
    """`metadata.name`."""
    return str(metadata(obj).get("name", ""))


def namespace_of(obj: JsonObject) -> str:
    """`metadata.namespace`; empty for cluster-scoped objects."""
    return str(metadata(obj).get("namespace", ""))


def uid_of(obj: JsonObject) -> str:
    """`metadata.uid`."""
    return str(metadata(obj).get("uid", ""))


def key_of(obj: JsonObject) -> Key:
    """Namespace and name."""
    return namespace_of(obj), name_of(obj)


def annotations_of(obj: JsonObject) -> dict[str, str]:
    """`metadata.annotations`; empty where there are none."""
    return metadata(obj).get("annotations") or {}


def labels_of(obj: JsonObject) -> dict[str, str]:
    """`metadata.labels`; empty where there are none."""
    return metadata(obj).get("labels") or {}


def spec_of(obj: JsonObject) -> JsonObject:
    """`spec`; empty where there is none."""
    return obj.get("spec") or {}


def status_of(obj: JsonObject) -> JsonObject:
    """`status`; empty where there is none."""
    return obj.get("status") or {}


def node_name_of(pod: JsonObject) -> str:
    """The node a pod is bound to; empty while it is not."""
    return str(spec_of(pod).get("nodeName", ""))


def priority_of(pod: JsonObject) -> int:
    """A pod's priority; 0 where admission set none."""
    return int(spec_of(pod).get("priority") or 0)


def is_terminating(obj: JsonObject) -> bool:
    """Whether the object was asked to go and is still there."""
    return bool(metadata(obj).get("deletionTimestamp"))


def is_finished(pod: JsonObject) -> bool:
    """Whether all of a pod's containers have ended for good."""
    return status_of(pod).get("phase") in {"Succeeded", "Failed"}


def condition_of(obj: JsonObject, kind: str) -> JsonObject | None:
    """The status condition of that type, if the object has it."""
    conditions: list[JsonObject] = status_of(obj).get("conditions") or []
    return next((condition for condition in conditions if condition.get("type") == kind), None)
