"""A cache of a selection of the API server's objects, kept by list and watch (in Kubernetes: client-go)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

import structlog

from k8s_rdma_demo.cluster.client import ApiClient, ApiError
from k8s_rdma_demo.cluster.objects import key_of, uid_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from k8s_rdma_demo.cluster.objects import JsonObject, Key
    from k8s_rdma_demo.cluster.resources import ResourceType

OnChange: TypeAlias = "Callable[[JsonObject | None, JsonObject | None], None]"

_GONE = 410
_log = structlog.get_logger()


class Informer:
    """Keeps `objects` current and tells `on_change(old, new)` of each change, in order.

    old is None for a new object, new is None for one that is gone; an object that was deleted and made
    again under its name is told as gone and new. synced is set once everything there was has been told.
    """

    def __init__(
        self,
        client: ApiClient,
        resource: ResourceType,
        on_change: OnChange,
        *,
        field_selector: str = "",
        retry_s: float = 1.0,
    ) -> None:
        self.objects: dict[Key, JsonObject] = {}
        self.synced = asyncio.Event()
        self._client = client
        self._resource = resource
        self._on_change = on_change
        self._field_selector = field_selector
        self._retry_s = retry_s

    async def run(self) -> NoReturn:
        """Follow the API server; one that does not answer is asked again every `retry_s`."""
        while True:
            try:
                revision = await self._list()
                await self._watch(revision)
            except ApiError as error:
                if error.code != _GONE:
                    _log.warning("informer.retry", resource=self._resource.plural, error=error.message)
                    await asyncio.sleep(self._retry_s)

    async def _list(self) -> str:
        items, revision = await self._client.list(self._resource, self._field_selector)
        found = {key_of(obj): obj for obj in items}
        for key in [key for key in self.objects if key not in found]:
            self._take(key, None)
        for key, obj in found.items():
            self._take(key, obj)
        self.synced.set()
        return revision

    async def _watch(self, revision: str) -> None:
        while True:
            async for kind, obj in self._client.watch(self._resource, revision, self._field_selector):
                revision = obj["metadata"]["resourceVersion"]
                self._take(key_of(obj), None if kind == "DELETED" else _untyped(obj))
            # The server ends a watch now and then; the next one goes on where this one was.
            await asyncio.sleep(0)

    def _take(self, key: Key, new: JsonObject | None) -> None:
        old = self.objects.pop(key, None)
        if new is not None:
            self.objects[key] = new
        if old is not None and new is not None and uid_of(old) != uid_of(new):
            self._on_change(old, None)
            old = None
        if old != new:
            self._on_change(old, new)


def _untyped(obj: JsonObject) -> JsonObject:
    """Without `kind` and `apiVersion`: objects in lists have none, and Go's typed objects neither."""
    return {name: value for name, value in obj.items() if name not in {"kind", "apiVersion"}}
