"""Watches: the changes to a selection of objects, one JSON document a line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from k8s_rdma.sim.cluster.go_json import go_json
from k8s_rdma.sim.cluster.status import StatusError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.sim.cluster.objects import JsonObject
    from k8s_rdma.sim.cluster.resources import ResourceType
    from k8s_rdma.sim.cluster.selectors import Selection
    from k8s_rdma.sim.cluster.store import Change, Store


async def watch_lines(
    store: Store, resource: ResourceType, selection: Selection, revision: int, timeout_s: float | None
) -> AsyncIterator[bytes]:
    """Every change to the selection after a revision, for `timeout_s` or without end.

    revision 0: first every object there is as ADDED, then what changes (source: API concepts, "Semantics
    for watch"). A revision whose successors are no longer known ends the watch with an ERROR line that
    carries the 410 Status, and the HTTP status stays 200, as kube-apiserver does.
    """
    try:
        async with asyncio.timeout(timeout_s):
            if revision == 0:
                revision = store.revision
                for obj in filter(selection.takes, store.items(resource)):
                    yield _line("ADDED", obj)
            while True:
                for change in store.changes_after(revision):
                    revision = change.revision
                    if change.resource == resource and (kind := _as_seen(change, selection)):
                        yield _line(kind, change.object)
                await store.wait_after(revision)
    except StatusError as error:
        yield _line("ERROR", error.document())
    except TimeoutError:
        return


def _as_seen(change: Change, selection: Selection) -> str | None:
    """What a change is to somebody who sees the selection only: an object may enter or leave it."""
    was = selection.takes(change.previous)
    if change.type == "DELETED":
        return "DELETED" if was else None
    now = selection.takes(change.object)
    if now:
        return "MODIFIED" if was else "ADDED"
    return "DELETED" if was else None


def _line(kind: str, obj: JsonObject) -> bytes:
    return go_json({"type": kind, "object": obj}) + b"\n"
