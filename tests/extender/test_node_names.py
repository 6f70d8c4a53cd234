"""Names and addresses of nodes, by the API server's watch or by the scheduler's own words."""

from __future__ import annotations

import json

import pytest

from extender.serving import FILTER, served
from extender.test_pod_informer import W1
from extender.world import cluster
from k8s_rdma.core.types import NodeName
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.node_names import NodeNames
from k8s_rdma.kube.api import NodeView
from k8s_rdma.kube.informer import Changed, Deleted, Listed

pytestmark = pytest.mark.anyio


def test_nodes_that_a_later_list_misses_are_forgotten():
    told = []

    class States:
        def learn(self, node, addresses):
            told.append(("learn", node, addresses))

        def forget(self, node):
            told.append(("forget", node))

    tracker = NodeNames(state=ClusterState(), states=States())
    tracker.on_event(Listed((NodeView(W1, ("a",)), NodeView(NodeName("w2"), ()))))
    tracker.on_event(Changed(NodeView(W1, ("b",))))
    tracker.on_event(Listed((NodeView(W1, ("b",)),)))
    tracker.on_event(Deleted(NodeView(W1, ("b",))))
    assert [entry for entry in told if entry[0] == "forget"] == [("forget", "w2"), ("forget", "w1")]
    assert ("learn", "w1", ("b",)) in told
    assert tracker.listed


async def test_full_nodes_are_polled_at_their_own_addresses_if_the_api_server_shows_none():
    async with cluster("w1") as c, served(c) as s:
        await c.http.delete("/api/v1/nodes/w1")
        await s.ready()
        pod = await c.create_pod("p", 1)
        addresses = [{"type": "InternalIP", "address": c.nodes["w1"].address}]
        node = {"metadata": {"name": "w1", "labels": {"kept": "yes"}}, "status": {"addresses": addresses}}
        body = {"Pod": pod, "Nodes": {"metadata": {}, "items": [node]}, "NodeNames": None}
        answer = (await s.post(FILTER, json.dumps(body))).json()
    assert answer["Nodes"]["items"] == [node]
    assert answer["NodeNames"] is None
