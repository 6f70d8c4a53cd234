from __future__ import annotations

import pytest

from k8s_rdma_demo.cluster.objects import NODES, PODS
from k8s_rdma_demo.cluster.status import StatusError
from k8s_rdma_demo.cluster.store import Store


def stored(name: str) -> dict:
    return {"metadata": {"name": name, "namespace": "d"}}


def test_store_forgets_the_oldest_change_when_its_history_is_full():
    store = Store(history_limit=2)
    revisions = [
        int(store.put(PODS, stored(name))["metadata"]["resourceVersion"]) for name in ("a", "b", "c")
    ]
    assert [change.object["metadata"]["name"] for change in store.changes_after(revisions[0])] == ["b", "c"]
    assert store.changes_after(revisions[2]) == []
    with pytest.raises(StatusError):
        store.changes_after(revisions[0] - 1)


def test_store_keeps_resources_apart_when_names_are_equal():
    store = Store()
    store.put(PODS, {"metadata": {"name": "x"}})
    store.put(NODES, {"metadata": {"name": "x"}})
    store.remove(PODS, ("", "x"))
    assert store.get(PODS, ("", "x")) is None
    assert store.get(NODES, ("", "x")) is not None
