"""Watches of objects that seldom change, as users of other informers reported them."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

import pytest

from k8s_rdma.core.types import NodeName
from k8s_rdma.kube.api import NodeView
from k8s_rdma.kube.informer import Changed, Listed
from k8s_rdma_demo.cluster.http_server import Response

pytestmark = pytest.mark.anyio
LISTED, COMPACTED, NOW = 7, 500, 900


class QuietCluster:
    """An API server without a change of a Node for so long that the list's version is compacted.

    It ends each watch after a while. Before, it sends a bookmark to a client that asked for bookmarks
    (k8s.io/apiserver, `cache_watcher.go`). lists: the lists that were asked for.
    """

    def __init__(self) -> None:
        self.lists = 0
        self.watches: list[int] = []

    async def answer(self, request: Any) -> Response:
        if "watch" not in request.query:
            self.lists += 1
            body = {"metadata": {"resourceVersion": str(LISTED)}, "items": []}
            return Response(status=200, body=json.dumps(body).encode())
        self.watches.append(int(request.query["resourceVersion"]))
        event = self._event(request.query)
        return Response(status=200, body=json.dumps(event).encode() + b"\n" if event else b"")

    def _event(self, query: dict[str, str]) -> dict[str, Any] | None:
        meta = {"resourceVersion": str(NOW)}
        if len(self.watches) == 1:
            bookmarks = query.get("allowWatchBookmarks") == "true"
            return {"type": "BOOKMARK", "object": {"kind": "Node", "metadata": meta}} if bookmarks else None
        if self.watches[-1] < COMPACTED:
            status = {
                "kind": "Status",
                "code": 410,
                "reason": "Expired",
                "message": "too old resource version",
            }
            return {"type": "ERROR", "object": status}
        meta = {"name": "w1", "resourceVersion": str(NOW + 1)}
        return {"type": "ADDED", "object": {"metadata": meta}}


async def test_watch_that_ended_goes_on_at_a_bookmark_if_its_objects_had_no_change(answering):
    """Users' informers listed all again, or never went on, after the end of a watch: its version was too old.

    Source: https://github.com/kubernetes/minikube/issues/2585,
    https://github.com/operator-framework/operator-sdk/issues/596; KEP-956 is the remedy.
    """
    quiet = QuietCluster()
    async with answering(quiet.answer) as client, aclosing(client.follow_nodes()) as events:
        assert await anext(events) == Listed(())
        assert await anext(events) == Changed(NodeView(NodeName("w1"), ()))
    assert (quiet.lists, quiet.watches) == (1, [LISTED, NOW])
