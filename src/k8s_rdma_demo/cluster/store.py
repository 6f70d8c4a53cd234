"""The store of the API server: objects, revisions, and changes for watches."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, TypeAlias

from k8s_rdma_demo.cluster.objects import (
    JsonObject,
    Key,
    ResourceType,
    key_of,
    metadata,
)
from k8s_rdma_demo.cluster.status import expired

ChangeType: TypeAlias = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One write. previous: the object before it, unless it was created."""

    revision: int
    type: ChangeType
    resource: ResourceType
    object: JsonObject
    previous: JsonObject | None


class Store:
    """Objects by resource and key, in memory, for one event loop.

    Invariants: revisions only grow, by one a write; a stored object carries the revision of its last write
    as `metadata.resourceVersion`, as text, and is never changed in place.
    """

    def __init__(self, *, history_limit: int = 10_000) -> None:
        self.revision = 1
        self._objects: dict[ResourceType, dict[Key, JsonObject]] = {}
        self._history: deque[Change] = deque(maxlen=history_limit)
        self._grown = asyncio.Event()

    def get(self, resource: ResourceType, key: Key) -> JsonObject | None:
        """Return the object, if it exists."""
        return self._objects.get(resource, {}).get(key)

    def items(self, resource: ResourceType, namespace: str = "") -> list[JsonObject]:
        """All objects, of one namespace if it is given, in the order of their keys as etcd has them."""
        found = self._objects.get(resource, {})
        return [found[key] for key in sorted(found) if not namespace or key[0] == namespace]

    def put(self, resource: ResourceType, obj: JsonObject) -> JsonObject:
        """Create or replace, unless the object is the same already. Return the stored object."""
        key = key_of(obj)
        previous = self.get(resource, key)
        if previous is not None and _without_revision(previous) == _without_revision(obj):
            return previous
        stored = self._record("ADDED" if previous is None else "MODIFIED", resource, obj, previous)
        self._objects.setdefault(resource, {})[key] = stored
        return stored

    def remove(self, resource: ResourceType, key: Key) -> JsonObject:
        """Delete; returns the object as its watchers see it go. KeyError when it is not there."""
        previous = self._objects[resource].pop(key)
        return self._record("DELETED", resource, previous, previous)

    def resources(self) -> list[ResourceType]:
        """List the resources that there are objects of."""
        return [resource for resource, objects in self._objects.items() if objects]

    def draft(self) -> Store:
        """Return a store of the same objects, whose writes reach neither this one nor a watch."""
        draft = _Draft(history_limit=0)
        draft.revision = self.revision
        draft._objects = {resource: dict(objects) for resource, objects in self._objects.items()}
        return draft

    def changes_after(self, revision: int) -> list[Change]:
        """The writes since a revision, oldest first; StatusError 410 when they are not all known."""
        oldest = self.revision - len(self._history)
        if revision < oldest:
            raise expired(revision, oldest)
        newest_first = takewhile(lambda change: change.revision > revision, reversed(self._history))
        return list(newest_first)[::-1]

    async def wait_after(self, revision: int) -> None:
        """Return when there has been a write after that revision."""
        while self.revision <= revision:
            await self._grown.wait()

    def _record(
        self, kind: ChangeType, resource: ResourceType, obj: JsonObject, previous: JsonObject | None
    ) -> JsonObject:
        self.revision += 1
        stored = {**obj, "metadata": {**metadata(obj), "resourceVersion": str(self.revision)}}
        self._history.append(
            Change(revision=self.revision, type=kind, resource=resource, object=stored, previous=previous)
        )
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()
        return stored


class _Draft(Store):
    def _record(
        self, _kind: ChangeType, _resource: ResourceType, obj: JsonObject, _previous: JsonObject | None
    ) -> JsonObject:
        return obj


def _without_revision(obj: JsonObject) -> JsonObject:
    fields = {name: value for name, value in metadata(obj).items() if name != "resourceVersion"}
    return {**obj, "metadata": fields}
