"""A write to a pod by which this process knows that its watch has shown everything that was written before.

A watch shows the writes to one kind of objects in the order of their versions ("Efficient detection of
changes" in Kubernetes' API concepts; etcd gives each write a later revision). So once it shows a write that
began at some moment, all earlier writes to pods are known, without a new list. A bookmark would tell the
same, but the API server sends one each minute only (k8s.io/apiserver, `cache_watcher.go`).
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.core.types import PodUid

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class WatchMarker:
    """Notes the versions of one pod that the watch shows. The watch may be faster than the write's answer."""

    _uid: PodUid | None = None
    _versions: set[str] = field(default_factory=set)
    _lists_anew: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def expecting(self, uid: PodUid) -> Iterator[WatchMarker]:
        """Note the versions of this pod within the block, in which it is written to."""
        self._uid, self._lists_anew = uid, False
        try:
            yield self
        finally:
            self._uid = None
            self._versions.clear()

    def on_update(self, uid: PodUid, version: str) -> None:
        """Take a version that the watch shows; objects of a list are no changes in an order."""
        if uid == self._uid:
            self._versions.add(version)
            self._changed.set()

    def on_list_begun(self) -> bool:
        """Note that the watch is lost; return whether the list that begins now is to be waited for."""
        self._lists_anew = self._uid is not None
        self._changed.set()
        return self._lists_anew

    async def wait_shown(self, version: str) -> bool:
        """Return True once the watch has shown this version; False if a list has begun instead."""
        while version not in self._versions:
            if self._lists_anew:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True
