"""Owners decide how much their pods hold, up to 1.5 MiB each: what the extender keeps of it is bounded."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import msgspec
import pytest

from k8s_rdma.core.types import PodUid
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.pod_requests import PodRequestCache
from k8s_rdma.extender.pod_store import PodStore
from k8s_rdma.kube.list_watch import decode_object
from k8s_rdma.kube.objects import PodObject
from k8s_rdma.wire.extender import PodToSchedule

PODS = 4


def labels(pod: int) -> dict[str, Any]:
    return {"labels": {f"k{pod}-{number}": "" for number in range(40_000)}}


def claims(_pod: int) -> dict[str, Any]:
    names = (f"{number}" for number in range(20_000))
    return {"resourceClaims": [{"name": name, "resourceClaimName": name} for name in names]}


def amounts(pod: int) -> dict[str, Any]:
    some = {f"a.io/r{number}": f"{pod + 1}" for number in range(10_000)}
    return {"containers": [{"name": "c", "resources": {"limits": some, "requests": some}}]}


def document(pod: int, node: str, large: dict[str, Any]) -> bytes:
    annotations = {"rdma_interfaces_required": '[{"min_tx_rate": 100}]'}
    meta = {"namespace": "d", "name": f"p{pod}", "uid": f"p{pod}", "annotations": annotations}
    meta |= {key: value for key, value in large.items() if key == "labels"}
    spec = {"nodeName": node, **{key: value for key, value in large.items() if key != "labels"}}
    return msgspec.json.encode({"metadata": meta, "spec": spec})


@pytest.mark.parametrize("node", ["", "w1"], ids=["unbound", "bound"])
@pytest.mark.parametrize("large", [labels, claims, amounts])
def test_large_pods_take_little_memory_and_none_once_they_are_gone(large, node):
    documents = [document(pod, node, large(pod)) for pod in range(PODS)]
    store = PodStore(max_characters=1 << 20)
    tracemalloc.start()
    try:
        for each in documents:
            store.on_update(decode_object(PodObject, each).view())
        kept, _ = tracemalloc.get_traced_memory()
        assert kept < 2 << 20
        for pod in range(PODS):
            store.on_delete(PodUid(f"p{pod}"))
        left, _ = tracemalloc.get_traced_memory()
        assert left < 1 << 19
    finally:
        tracemalloc.stop()


def test_view_of_a_pod_with_very_many_amounts_takes_little_longer_than_to_decode_it():
    large = document(0, "", amounts(0))
    began = time.process_time()
    decoded = decode_object(PodObject, large)
    decoded_at = time.process_time()
    view = decoded.view()
    assert time.process_time() - decoded_at < 10 * (decoded_at - began)
    assert view.demand is None
    assert view.devices == ()


def test_pod_of_more_extended_resources_than_nodes_have_is_refused_and_not_remembered():
    requests = PodRequestCache()
    decoded = msgspec.json.decode(document(0, "", amounts(0)), type=PodToSchedule)
    with pytest.raises(MalformedError, match="10000 extended resources are more than 64"):
        requests.put(decoded, 0.0)
    assert requests.get(PodUid("p0")) is None


def test_bound_pod_keeps_the_labels_that_pods_have():
    few = {"app": "x", "pod-template-hash": "7d4b"}
    view = decode_object(PodObject, document(0, "w1", {"labels": few})).view()
    assert view.labels == few
